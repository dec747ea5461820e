"""The workspace as it was copied in: the bytes of the upload, copied on their way into an unnamed file of the host."""

from __future__ import annotations

import contextlib
import io
import logging
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, BinaryIO, cast

from sandbox.transfers.tars import GuardedFile, UnsafeTarError, each_member, open_tar

log = logging.getLogger(__name__)

MOST_FILES = 200_000


class InitialWorkspace:
    """Holds at most ``limit`` bytes. If there are more, or the host has no room for them, it holds nothing; ``lost`` says why."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._file: IO[bytes] = io.BytesIO()
        self._places: dict[str, tuple[int, int]] | None = None
        self._size = 0
        self.lost = ""
        try:
            self._file = tempfile.TemporaryFile(prefix="gamebox-start-")  # noqa: SIM115 - closed by close
        except OSError as error:
            self.give_up(f"the host could not keep it: {error.strerror}")

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
            self.give_up(f"it has more than {self._limit} bytes")
            return
        try:
            self._file.write(piece)
        except OSError as error:
            self.give_up(f"the host could not keep it: {error.strerror}")

    def give_up(self, why: str) -> None:
        """Forget the copy; ``why`` says for what reason, as in "it has too many files"."""
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
                self.give_up("it was no archive that can be read")
                return None
        place = self._places.get(path.decode("utf-8", "surrogateescape"))
        if place is None:
            return None
        at, size = place
        if size > most:
            return size
        self._file.seek(at)
        return self._file.read(size)

    def _indexed(self) -> dict[str, tuple[int, int]]:
        self._file.flush()
        self._file.seek(0)
        found: dict[str, tuple[int, int]] = {}
        with open_tar(GuardedFile(cast("BinaryIO", self._file)), encoding="utf-8", errors="surrogateescape") as archive:
            for member in each_member(archive):
                if member.isreg() and not member.issparse():
                    found[member.name] = member.offset_data, member.size
                if len(found) > MOST_FILES:
                    raise UnsafeTarError("it has too many files")
        return found

    def close(self) -> None:
        """Forget the copy."""
        with contextlib.suppress(OSError):  # buffered bytes may find no room
            self._file.close()
