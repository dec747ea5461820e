"""The editor's files: read whole through the environment's operations, with a digest that shows changes."""

from __future__ import annotations

import hashlib

from sandbox.environment.base import Environment
from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass

from .lines import Lines

MAX_BYTES = 2 << 20
_SNIFFED = 8192


@dataclass(frozen=True, slots=True)
class Loaded:
    """A file as it is now. ``exact`` is False if it is not all UTF-8: it can then be shown, but not written back."""

    path: str
    text: str
    exact: bool = True

    @property
    def lines(self) -> Lines:
        """Its lines."""
        return Lines.of(self.text)

    @property
    def digest(self) -> str:
        """Different for different texts."""
        return hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).hexdigest()


def load(environment: Environment, path: str) -> Loaded:
    """Read a file. Raises SandboxError: the failures of ``read``, ``not_text``, ``file_too_large``."""
    parts: list[str] = []
    exact, offset, shown = True, 0, path
    while True:
        part = environment.read(path, offset=offset).unwrap()
        if part.size_bytes > MAX_BYTES:
            raise SandboxError(
                ErrorCode.file_too_large,
                f"{part.path} has {part.size_bytes} bytes; the editor opens files of up to {MAX_BYTES} bytes.",
                "Look for the place with a search, and change it with a command.",
            )
        exact, shown = exact and not part.encoding_errors, part.path
        parts.append(part.content)
        if not part.truncated or part.next_offset is None or part.next_offset <= offset:
            break
        offset = part.next_offset
    text = "".join(parts)
    if "\0" in text[:_SNIFFED]:
        raise SandboxError(
            ErrorCode.not_text, f"{shown} is binary.", "Look at it with a command such as file, xxd or strings."
        )
    return Loaded(shown, text, exact)


def is_there(environment: Environment, path: str) -> bool:
    """Return whether the file exists. Raises SandboxError for a path that cannot be a file."""
    answer = environment.read(path, offset=0, max_bytes=1)
    if not answer.ok and answer.code is ErrorCode.path_not_found:
        return False
    answer.unwrap()
    return True
