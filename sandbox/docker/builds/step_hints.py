"""What to do about a step that failed, by what its command printed last."""

from __future__ import annotations

import re
from collections.abc import Iterable

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
    r"Temporary failure resolving|Could not resolve|Name or service not known|ENOTFOUND|403 +Forbidden": (
        "A host could not be reached: the warnings of the log say whether the network of the build is closed for it."
    ),
    r"certificate verify failed|SSL certificate problem|self.signed certificate": (
        "A certificate was not trusted: give the build the authority's as its CA bundle."
    ),
    r"No space left on device": (
        "The step wrote more than its sandbox may: give it more disk, or remove files that it does not need."
    ),
}
_BY_STATUS = {
    126: "The command cannot be executed: check its mode, and that its interpreter is in the image.",
    127: "A command was not found: install it in an earlier step, or correct its name.",
}
_OTHERWISE = "See the last lines of the log; steps before this one are in the cache."


def hint_for_step(exit_code: int | None, tail: Iterable[str]) -> str:
    """Return a hint for a command that ended with this status and printed these lines last."""
    printed = "\n".join(tail)
    found = next((hint for pattern, hint in _BY_OUTPUT.items() if re.search(pattern, printed)), None)
    return found or _BY_STATUS.get(exit_code or 0, _OTHERWISE)
