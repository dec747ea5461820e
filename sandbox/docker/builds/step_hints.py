"""What to do about a step that failed, by what its command printed last."""

from __future__ import annotations

import re
from collections.abc import Iterable

from sandbox.readers import Hint

WROTE_TOO_MUCH = Hint(
    "The step wrote more than its sandbox may: give it more disk, or remove files that it does not need.",
    cli="The step wrote more than its sandbox may: give it more with --disk, or remove files that it does not need.",
)
_UNREACHED = Hint(
    "A host could not be reached: the warnings of the log say whether the network of the build is closed for it.",
    cli="A host could not be reached: the warnings above say if the build may not; --network open --allow HOST opens it.",
)
# By the code of the notice that says which limit was hit.
BY_LIMIT = {
    "no_space": WROTE_TOO_MUCH,
    "out_of_memory": Hint(
        "Give the step more memory, or have it do less at once.",
        cli="Give the step more with --memory, or have it do less at once.",
    ),
}
_BY_OUTPUT = {
    r"Unable to locate package|has no installation candidate": (
        "apt knows no such package: check its name, and run apt-get update in the same step."
    ),
    r"Could not open lock file|are you root\?|Permission denied": (
        "The step may not do this as its user: run what needs root before USER, or as root."
    ),
    r"externally-managed-environment": (
        "This Python belongs to the system: install into a virtual environment, or with pip install --break-system-packages."
    ),
    r"No matching distribution found|Could not find a version that satisfies": (
        "The index has no such package for this Python: check its name and version, and that the index can be reached."
    ),
    r"Temporary failure resolving|Could not resolve|Name or service not known|ENOTFOUND|403 +Forbidden": _UNREACHED,
    r"certificate verify failed|SSL certificate problem|self.signed certificate": Hint(
        "A certificate was not trusted: give the build the authority's as its CA bundle.",
        cli="A certificate was not trusted: give the build the authority's with --ca-bundle FILE.",
    ),
    r"No space left on device": WROTE_TOO_MUCH,
}
_BY_STATUS = {
    126: "The command cannot be executed: check its mode, and that its interpreter is in the image.",
    127: "A command was not found: install it in an earlier step, or correct its name.",
}
_SILENT = "The command printed nothing: try it in a sandbox of the image before this step, or have it print more."
_OTHERWISE = "See the last lines of the log; steps before this one are in the cache."


def hint_for_step(exit_code: int | None, tail: Iterable[str], *, refused: bool = False) -> str:
    """Return a hint for a command that ended with this status and printed these lines last.

    ``refused`` says that the network refused it a connection.
    """
    printed = "\n".join(tail)
    found = next((hint for pattern, hint in _BY_OUTPUT.items() if re.search(pattern, printed)), None)
    if found is None and refused:
        return _UNREACHED
    return found or _BY_STATUS.get(exit_code or 0, _OTHERWISE if printed.strip() else _SILENT)
