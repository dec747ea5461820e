"""Keep the archives that builds copy files from, by the hash of their content, in one folder for each owner."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from sandbox.errors import ErrorCode, SandboxError
from sandbox.text.wording import size, value_text

from .steps import invalid

_NAME = re.compile(r"[0-9a-f]{64}")
_ARRIVING = ".arriving-"
_ARRIVING_SECONDS = 3600.0


class ArchiveStore:
    """The archives of one owner in ``folder``, which is made. They are opaque here: only a guest reads them.

    A name is 64 hexadecimal digits. ``put`` either computes it from the bytes, or keeps the archive under one that its client
    chose (E2B's hash is over the files and not over the archive): ``digest`` is what the cache of layers uses, always of the bytes.
    Threads and processes may share a folder. One archive may have ``most_bytes``.
    """

    def __init__(self, folder: Path, *, most_bytes: int) -> None:
        self._folder, self._most_bytes = folder, most_bytes
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise _failed(folder, error) from error

    def put(self, pieces: Iterable[bytes], *, name: str | None = None) -> str:
        """Keep an archive and return its name. Raises SandboxError ``file_too_large`` or ``invalid_arguments``.

        What ``pieces`` raises is raised.
        """
        if name is not None:
            _check(name)
        digest, total = hashlib.sha256(), 0
        try:
            descriptor, arriving = tempfile.mkstemp(prefix=_ARRIVING, dir=self._folder)
        except OSError as error:
            raise _failed(self._folder, error) from error
        path = Path(arriving)
        try:
            with os.fdopen(descriptor, "wb") as file:
                for piece in pieces:
                    total += len(piece)
                    if total > self._most_bytes:
                        raise SandboxError(
                            ErrorCode.file_too_large,
                            f"The archive has more than {size(self._most_bytes)}.",
                            "Leave out what the image does not need, for example with .dockerignore.",
                        )
                    digest.update(piece)
                    file.write(piece)
            name = name or digest.hexdigest()
            path.rename(self._folder / name)
            return name
        except OSError as error:
            raise _failed(path, error) from error
        finally:
            path.unlink(missing_ok=True)

    def take(self, path: Path, name: str) -> int | None:
        """Keep a file of the same file system, which is moved; return the bytes of the one before it, None if there was none."""
        kept = self._folder / _check(name)
        before = None
        try:
            with contextlib.suppress(FileNotFoundError):
                before = kept.lstat().st_size
            path.rename(kept)
        except OSError as error:
            raise _failed(kept, error) from error
        return before

    def has(self, name: str) -> bool:
        """Return whether the archive is there."""
        return (self._folder / _check(name)).is_file()

    def path(self, name: str) -> Path:
        """Return its file and note that it is used. Raises SandboxError ``path_not_found``."""
        path = self._folder / _check(name)
        try:
            os.utime(path)
        except FileNotFoundError:
            raise _missing(name) from None
        except OSError as error:
            raise _failed(path, error) from error
        return path

    def digest(self, name: str) -> str:
        """Return the SHA-256 of its bytes as they are now. Raises SandboxError ``path_not_found``."""
        try:
            with (self._folder / _check(name)).open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            raise _missing(name) from None
        except OSError as error:
            raise _failed(self._folder / name, error) from error

    def sizes(self) -> list[int]:
        """Return the bytes of each archive, also of those that are arriving."""
        return [status.st_size for _, status in self._files()]

    def remove(self, name: str) -> None:
        """Remove an archive; a missing one is fine."""
        (self._folder / _check(name)).unlink(missing_ok=True)

    def prune(self, unused_seconds: float) -> int:
        """Remove archives that no build has used for that long, and what a killed ``put`` left. Return the bytes freed."""
        freed = 0
        for path, status in self._files():
            age = time.time() - status.st_mtime
            if age >= (_ARRIVING_SECONDS if path.name.startswith(_ARRIVING) else unused_seconds):
                path.unlink(missing_ok=True)
                freed += status.st_size
        return freed

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        found = []
        for path in self._folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                found.append((path, path.lstat()))
        return found


def _check(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise invalid(f"{value_text(name)} is not the name of an archive.", "Give 64 hexadecimal digits.")
    return name


def _missing(name: str) -> SandboxError:
    return SandboxError(
        ErrorCode.path_not_found, f"The archive {name} is not there.", "Send the files of the step, then build again."
    )


def _failed(path: Path, error: OSError) -> SandboxError:
    return SandboxError(
        ErrorCode.io_error, f"{path.name} cannot be kept: {error.strerror}.", "Look at the disk of the folder for archives."
    )
