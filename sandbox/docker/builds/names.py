"""Names of built images."""

from __future__ import annotations

import re

from sandbox.errors import ErrorCode, SandboxError
from sandbox.text.wording import value_text

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
