"""Read a Dockerfile of this host."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sandbox.docker.builds.dockerfile import MOST_BYTES, parse_dockerfile
from sandbox.docker.builds.steps import Plan, invalid
from sandbox.errors import ErrorCode, SandboxError
from sandbox.readers import Hint
from sandbox.text.wording import value_text


def read_dockerfile(file: Path, context: Path, arguments: Mapping[str, str], archive: str) -> Plan:
    """Return the plan of the file. ``archive`` stands for its context. Raises SandboxError."""
    if not context.is_dir():
        raise SandboxError(
            ErrorCode.path_not_found, f"{value_text(str(context), 300)} is not a folder.", "Name the folder of the files to copy."
        )
    try:
        with file.open("rb") as opened:
            content = opened.read(MOST_BYTES + 1)
        text = content.decode()
    except FileNotFoundError:
        raise SandboxError(
            ErrorCode.path_not_found,
            f"There is no Dockerfile {value_text(str(file), 300)}.",
            Hint("Name the file, or its folder.", cli="Name it with --file, or its folder as CONTEXT."),
        ) from None
    except OSError as error:
        raise SandboxError(
            ErrorCode.io_error, f"{value_text(str(file), 300)} cannot be read: {error.strerror}.", "Name a file that can be read."
        ) from error
    except UnicodeDecodeError:
        raise invalid(f"{value_text(str(file), 300)} is not text in UTF-8.", "Name a Dockerfile.") from None
    return parse_dockerfile(text, archive=archive, arguments=arguments)
