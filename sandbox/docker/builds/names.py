"""Names of built images."""

from __future__ import annotations

import re

from docker.utils.build import match_tag

from sandbox.errors import ErrorCode, SandboxError
from sandbox.text.wording import value_text

_MOST_ENGINE_NAME = 255
# Of Gamebox itself; the last two belong to nobody's registry.
_OWN = ("gamebox", "gamebox-build", "gamebox.invalid")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def check_name(name: str) -> str:
    """Return the name. Raises SandboxError ``invalid_arguments`` for one that an image cannot have."""
    if not _NAME.fullmatch(name):
        raise SandboxError(
            ErrorCode.invalid_arguments,
            f"{value_text(name)} is not a name for a built image.",
            "Use up to 64 of a-z, 0-9, '.', '_' and '-', with a letter or digit first.",
        )
    return name


def check_engine_name(name: str) -> str:
    """Return the name with its tag, for the engine, as "app:latest" for "app".

    Raises SandboxError ``invalid_arguments`` for one that the engine does not take, and for those of Gamebox's own images.
    """
    whole = name if ":" in name.rpartition("/")[2] else f"{name}:latest"
    if len(whole) > _MOST_ENGINE_NAME or not match_tag(whole):
        raise SandboxError(
            ErrorCode.invalid_arguments,
            f"{value_text(name)} is not a name for an image.",
            "Use a-z, 0-9, '.', '_', '-' and '/', and a tag behind ':' if you like, as in app or team/app:2.",
        )
    if name.partition("/")[0].partition(":")[0] in _OWN:
        raise SandboxError(
            ErrorCode.invalid_arguments,
            f"{value_text(name)} is a name of Gamebox's own images.",
            "Choose another name, as in app or team/app:2.",
        )
    return whole
