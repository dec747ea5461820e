"""The workspace as it was copied in: the bytes of the upload, copied on their way into an unnamed file of the host."""

from __future__ import annotations

import contextlib
import io
import logging
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, BinaryIO, cast

from sandbox.tars import GuardedFile, each_member

log = logging.getLogger(__name__)


class InitialWorkspace:
    """Holds at most ``limit`` bytes. If there are more, or the host has no room for them, it holds nothing; ``lost`` says why."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._file: IO[bytes] = io.BytesIO()
        self._places: dict[str, tarfile.TarInfo] | None = None
        self._size = 0
        self.lost = ""
        try:
            self._file = tempfile.TemporaryFile(prefix="gamebox-start-")  # noqa: SIM115 - closed by close
        except OSError as error:
            self._give_up(f"the host could not keep it: {error.strerror}")

    def copy_passing(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the same pieces, keeping a copy of each."""
        for piece in pieces:
            self.keep(piece)
            yield piece

    def keep(self, piece: bytes) -> None:
        """Keep a copy of the next piece."""
        if self.lost:
            return
        self._size += len(piece)
        if self._size > self._limit:
            self._give_up(f"it has more than {self._limit} bytes")
            return
        try:
            self._file.write(piece)
        except OSError as error:
            self._give_up(f"the host could not keep it: {error.strerror}")

    def _give_up(self, why: str) -> None:
        self.lost = why
        log.info("the workspace as it was copied in is not kept: %s", why)
        self.close()

    def content(self, path: bytes, most: int) -> bytes | int | None:
        """Return the bytes of the file at ``path``, only their number if there are more than ``most``, None if there is no file."""
        if self.lost:
            return None
        if self._places is None:
            try:
                self._places = self._indexed()
            except tarfile.TarError:  # the upload was refused for it
                self._give_up("it was no archive that can be read")
                return None
        member = self._places.get(path.decode("utf-8", "surrogateescape"))
        if member is None:
            return None
        if member.size > most:
            return member.size
        self._file.seek(member.offset_data)
        return self._file.read(member.size)

    def _indexed(self) -> dict[str, tarfile.TarInfo]:
        self._file.flush()
        self._file.seek(0)
        source = GuardedFile(cast("BinaryIO", self._file))
        with tarfile.open(fileobj=source, mode="r:", encoding="utf-8", errors="surrogateescape") as archive:
            return {member.name: member for member in each_member(archive) if member.isreg()}

    def close(self) -> None:
        """Forget the copy."""
        with contextlib.suppress(OSError):  # buffered bytes may find no room
            self._file.close()
