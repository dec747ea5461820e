"""Files in a folder that is its owner's alone: read without following links, written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from sandbox.errors import ErrorCode, SandboxError

FOLDER = "tls"
# Those of certificates and keys have a few hundred bytes; a bundle of all authorities has about 250 KiB.
MOST_BYTES = 8 << 20
_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC


class PrivateFiles:
    """Files by name in the folder ``tls`` of a service's data. All calls raise SandboxError for what cannot be trusted."""

    def __init__(self, data: Path, descriptor: int) -> None:
        self.path, self._descriptor = data / FOLDER, descriptor

    def read(self, name: str, *, secret: bool = False) -> bytes | None:
        """Return a file, None if there is none. Others may not be able to read one that is ``secret``."""
        with self._reported(name):
            try:
                descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | _OPEN, dir_fd=self._descriptor)
            except FileNotFoundError:
                return None
            with os.fdopen(descriptor, "rb") as file:
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode):
                    raise self._refusal(name, "is not a file")
                if found.st_uid != os.geteuid():
                    raise self._refusal(name, f"belongs to another user (uid {found.st_uid})")
                if secret and found.st_mode & 0o077:
                    raise self._refusal(name, "may be read by others, who may know the key by now")
                return file.read(MOST_BYTES)

    def write(self, name: str, data: bytes) -> None:
        """Write a file that only its owner may read. After a crash there is the old one or the new one, whole."""
        new = f".{name}.new"
        with self._reported(name):
            with contextlib.suppress(FileNotFoundError):  # left by a service that was killed
                os.unlink(new, dir_fd=self._descriptor)
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN, 0o600, dir_fd=self._descriptor)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(descriptor)
            os.rename(new, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
            os.fsync(self._descriptor)

    @contextlib.contextmanager
    def _reported(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._refusal(name, f"cannot be used: {error.strerror or error}") from error

    def _refusal(self, name: str, why: str) -> SandboxError:
        return _unusable(self.path / name, why, self.path)


@contextlib.contextmanager
def private_files(data: Path) -> Iterator[PrivateFiles]:
    """Yield the files of the folder ``tls`` in ``data``, which is made if it is missing. Raises SandboxError."""
    path = data / FOLDER
    outer = inner = -1
    try:
        try:
            outer = os.open(data, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            with contextlib.suppress(FileExistsError):
                os.mkdir(FOLDER, 0o700, dir_fd=outer)
            inner = os.open(FOLDER, os.O_RDONLY | os.O_DIRECTORY | _OPEN, dir_fd=outer)
        except OSError as error:
            raise _unusable(path, f"cannot be used: {error.strerror}", path) from error
        for descriptor, place in ((outer, data), (inner, path)):
            found = os.fstat(descriptor)
            if found.st_uid != os.geteuid():
                raise _unusable(place, f"belongs to another user (uid {found.st_uid})", path)
            if found.st_mode & 0o022:
                raise _unusable(place, "may be changed by others", path)
        yield PrivateFiles(data, inner)
    finally:
        for descriptor in (inner, outer):
            if descriptor >= 0:
                os.close(descriptor)


def _unusable(path: Path, why: str, folder: Path) -> SandboxError:
    hint = f"Move {folder} away: the service makes another one. Or give a folder of your own with --data."
    return SandboxError(ErrorCode.setup_failed, f"{path} {why}.", hint)
