"""Keep the archives that builds copy files from, by the hash of their content, in one folder for each owner."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


class ArchiveStore:
    """Archives of one owner in ``folder``, which is made. They are opaque here: only a guest reads them.

    A name is 64 hexadecimal digits. ``put`` either computes it from the bytes, or keeps the archive under one that its client
    chose (E2B's hash is over the files and not over the archive): ``digest`` is what the cache of layers uses, always of the bytes.
    """

    def __init__(self, folder: Path, *, most_bytes: int) -> None:
        raise NotImplementedError

    def put(self, pieces: Iterable[bytes], *, name: str | None = None) -> str:
        """Keep an archive and return its name. Raises SandboxError ``file_too_large`` or ``invalid_arguments``, and keeps nothing."""
        raise NotImplementedError

    def has(self, name: str) -> bool:
        """Return whether the archive is there."""
        raise NotImplementedError

    def path(self, name: str) -> Path:
        """Return its file. Raises SandboxError ``path_not_found``."""
        raise NotImplementedError

    def digest(self, name: str) -> str:
        """Return the SHA-256 of its bytes, which was computed when it was put. Raises SandboxError ``path_not_found``."""
        raise NotImplementedError

    def bytes_used(self) -> int:
        """Return the bytes of all archives."""
        raise NotImplementedError

    def remove(self, name: str) -> None:
        """Remove an archive; a missing one is fine."""
        raise NotImplementedError

    def prune(self, unused_seconds: float) -> int:
        """Remove archives that no build has used for that long, and what a killed ``put`` left. Return the bytes freed."""
        raise NotImplementedError
