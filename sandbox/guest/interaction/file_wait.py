"""Whether a file is there, and whether a text is in it: asked again and again, in a worker, as the sandbox's user."""

from __future__ import annotations

import os

from ..files.roots import readable_roots_of
from ..loop.context import Place
from ..protocol.faults import Fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CHUNK = 256 * 1024
# A file up to this size is looked at as a whole whenever it has changed; of a larger one that grew, what was added.
WHOLE_BYTES = 1 << 20
LOOK_BYTES = 64 << 20  # in one look; the next goes on from there
_MISSING = ("path_not_found", "not_a_directory")


class FileProbe:
    """Looks for ``path``, a file, folder or socket; where ``text`` is given, for a regular file that contains it."""

    def __init__(self, place: Place, path: str, text: str | None) -> None:
        self._roots = readable_roots_of(place)
        self._path = path
        self._text = None if text is None else text.encode("utf-8", "surrogateescape")
        self._seen: tuple[int, ...] = ()
        self._offset = 0

    def look(self) -> dict[str, Any] | None:
        """What is to be told of it; None where it is not so yet. Raises Fault where it will never be."""
        if self._roots.is_missing(self._path):
            self._seen = ()
            return None
        try:
            if self._text is None:
                os.close(self._roots.open(self._path, os.O_PATH))
                return {"path": self._roots.display(self._path)}
            fd, status = self._roots.open_regular(self._path)
        except Fault as fault:
            if fault.code in _MISSING:
                self._seen = ()
                return None
            raise
        try:
            found = self._contains(fd, status, self._text)
        except OSError as error:
            raise self._roots.fault_for(error, self._path) from None
        finally:
            os.close(fd)
        return {"path": self._roots.display(self._path)} if found else None

    def _contains(self, fd: int, status: os.stat_result, text: bytes) -> bool:
        state = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if state != self._seen:
            grew = state[:2] == self._seen[:2] and status.st_size > max(self._seen[2], WHOLE_BYTES)
            self._offset = self._offset if grew else 0
            self._seen = state
        until = self._offset + LOOK_BYTES
        while self._offset < until:
            start = max(0, self._offset - len(text) + 1)  # it may stand on the border
            chunk = os.pread(fd, CHUNK + len(text), start)
            if text in chunk:
                return True
            if start + len(chunk) <= self._offset:
                break
            self._offset = start + len(chunk)
        return False
