"""Writing a file in one step: a temporary file in the same folder is renamed to it once it is complete."""

from __future__ import annotations

import errno
import os
import stat
import threading
from types import TracebackType

from ..loop.context import Place
from ..protocol.faults import Fault
from .roots import SAFE, encode_path, roots_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

# Held while a file is checked and replaced, so that one of two simultaneous edits fails with path_changed.
_commit = threading.Lock()


class Replacement:
    """The new content of ``path``; without ``commit`` it is discarded.

    A link at ``path`` is followed inside the roots of ``place``. An existing file keeps its mode unless ``mode`` is given. A file
    that the user may not write is refused, as it would be when written in place. ``previous`` is the status of the existing file,
    ``displayed`` the path as the agent would write it.
    """

    def __init__(self, place: Place, path: str, mode: int | None = None) -> None:
        self._roots, self._path, self._write_out = roots_of(place), path, place.write_out
        roots = self._roots
        self.displayed = roots.display(path)
        if encode_path(path).endswith(b"/"):  # checked before a folder is made for an impossible name
            raise Fault("is_a_directory", path=self.displayed)
        self.previous: os.stat_result | None = None
        try:
            self._dir, self._name, made = roots.make_parent(path)
        except Fault as fault:
            if fault.code == "path_outside_roots":
                fault.fields["path"] = self.displayed
            if fault.code == "path_not_found":  # before "..": any other missing folder is made
                raise roots.fault_for(OSError(errno.ENOENT, ""), path) from None
            raise
        self.effects = "partial" if made else "none"
        self._temporary, self._committed = b".gamebox-" + os.urandom(8).hex().encode(), False
        try:
            self.previous = self._find()
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._file = os.open(self._temporary, flags, 0o666, dir_fd=self._dir)
        except OSError as error:
            os.close(self._dir)
            raise self._fault(error) from None
        except Fault:
            os.close(self._dir)
            raise
        self._mode = mode if mode is not None else stat.S_IMODE(self.previous.st_mode) if self.previous else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)
        try:
            if not self._committed:
                os.unlink(self._temporary, dir_fd=self._dir)
        except FileNotFoundError:  # a command deleted it
            pass
        finally:
            os.close(self._dir)

    def write(self, chunk: bytes) -> None:
        """Append to the new content. Raises Fault, ``no_space`` for example."""
        view = memoryview(chunk)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError as error:
            raise self._fault(error) from None

    def set_attributes(self, attributes: Mapping[str, str]) -> None:
        """Give the new file extended attributes. Raises Fault where the file system does not take them."""
        try:
            for name, value in attributes.items():
                os.setxattr(self._file, name.encode(), value.encode("utf-8", "surrogateescape"))
        except OSError as error:
            raise self._fault(error) from None

    def commit(self, unchanged_since: os.stat_result | None = None) -> None:
        """Put the new content in place. Raises Fault ``path_changed`` if the file is not ``unchanged_since``."""
        try:
            status = os.fstat(self._file)
            if self._mode is not None and self._mode != stat.S_IMODE(status.st_mode):
                os.fchmod(self._file, self._mode)
            self._write_out.settle(self._file, status, self.displayed)
            with _commit:
                if unchanged_since is not None and not same_file(unchanged_since, self._current_status()):
                    raise Fault("path_changed", path=self.displayed)
                os.rename(self._temporary, self._name, src_dir_fd=self._dir, dst_dir_fd=self._dir)
            self._committed = True
        except OSError as error:
            raise self._fault(error) from None

    def _fault(self, error: OSError) -> Fault:
        """Return the fault for ``error``, with what was at the path before."""
        fault = self._roots.fault_for(error, self._path, self.effects)
        fault.fields |= {"existed": self.previous is not None, "folder_made": self.effects == "partial"}
        return fault

    def _find(self) -> os.stat_result | None:
        """Go where a link at the path leads. Returns what ``_current_status`` does, and raises the same."""
        try:
            return self._current_status()
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
        folder, self._name = self._roots.follow(self._path)
        os.close(self._dir)
        self._dir = folder
        return self._current_status()

    def _current_status(self) -> os.stat_result | None:
        """Return the status of the path's file, or None if there is none. Raises Fault or OSError if it may not be replaced."""
        try:
            fd = os.open(self._name, os.O_WRONLY | os.O_NOFOLLOW | SAFE, dir_fd=self._dir)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return None
            if error.errno != errno.ETXTBSY:  # a running program can be replaced, not written
                if error.errno == errno.ENXIO:
                    raise Fault("not_a_regular_file", path=self.displayed, kind="socket or fifo") from None
                raise
            fd = os.open(self._name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._dir)
        try:
            status = os.fstat(fd)
        finally:
            os.close(fd)
        if not stat.S_ISREG(status.st_mode):
            raise self._roots.irregular_fault(self._path, status)
        return status


def same_file(one: os.stat_result, other: os.stat_result | None) -> bool:
    """Return whether both describe the same file with the same content, as far as its size and times show."""
    return other is not None and _identity(one) == _identity(other)


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
