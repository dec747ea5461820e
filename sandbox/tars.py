"""Read a tar that an attacker wrote with Python's tarfile, which reads headers of any length and may take hours for one of them."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator
from typing import BinaryIO, cast

_MOST_READ = 1 << 20
_MOST_HEADERS = 64 << 10
"""Bytes of all headers of one member. A header may say that a name has any number of bytes, and tarfile would read
them all at once."""
_DIGITS = re.compile(rb"[0-9]{65,}")
_MOST_STEPS = 1 << 28
"""tarfile of many a Python looks for ``[0-9]+ hdrcharset=`` from each digit of a pax header anew: with 64 KiB of digits for 4
seconds, in which no other thread has a turn. So the squares of all runs of more than 64 digits are added up; the target of a link
may have 4,095."""
_PAX_KINDS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
_LONG_KINDS = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_KIND_AT = 156
_CHUNK = 1 << 20


class UnsafeTarError(tarfile.TarError):
    """The tar has what is refused before tarfile takes it; the text says what, as in "it has a header that is too long"."""


class GuardedFile(io.RawIOBase):
    """A file for ``tarfile.open(fileobj=..., mode="r:")``, whose members ``each_member`` yields.

    Raises UnsafeTarError for one read of more than 1 MiB, for headers of one member that are longer than 64 KiB, and for those
    that take a time that grows with the square of their bytes. ``what`` is the tar in that error.
    """

    _headers_left: int | None = _MOST_HEADERS  # tarfile reads the first member when it opens the file
    _header_kind = b""
    """The kind of the header whose content is read next: a pax header or a long name."""

    def __init__(self, source: BinaryIO, what: str = "it") -> None:
        self._source, self._what = source, what
        self._steps_left = _MOST_STEPS

    def expect_headers(self) -> None:
        """Count what is read as the headers of one member, until ``expect_content``."""
        self._headers_left, self._header_kind = _MOST_HEADERS, b""

    def expect_content(self) -> None:
        """Bound each read, and not what they read together."""
        self._headers_left = None

    def read(self, count: int = -1, /) -> bytes:
        left = self._headers_left
        if count < 0 or count > (_MOST_READ if left is None else left):
            raise UnsafeTarError(f"{self._what} has a header that is too long")
        found = self._take(count)
        if left is not None:
            self._headers_left = left - count
            self._check_header(found)
        return found

    def _take(self, count: int) -> bytes:
        return self._source.read(count)

    def _check_header(self, block: bytes) -> None:
        """Raise for a pax header that tarfile would need long for. ``block`` is what it reads now."""
        if self._header_kind in _PAX_KINDS:
            if not _is_sound(block):
                raise UnsafeTarError(f"{self._what} has a pax header that is invalid")
            self._steps_left -= sum(len(run) ** 2 for run in _DIGITS.findall(block))
            if self._steps_left < 0:
                raise UnsafeTarError(f"{self._what} has too many digits in its pax headers")
        kind = b"" if self._header_kind else block[_KIND_AT : _KIND_AT + 1]
        self._header_kind = kind if kind in (*_PAX_KINDS, *_LONG_KINDS) else b""

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._source.seek(offset, whence)

    def tell(self) -> int:
        return self._source.tell()

    def seekable(self) -> bool:
        return True


class ForwardFile(GuardedFile):
    """A guarded file that is read once, from its beginning: ``seek`` goes forward by reading. ``count`` is what was read."""

    def __init__(self, source: BinaryIO, what: str = "it") -> None:
        super().__init__(source, what)
        self.count = 0

    def _take(self, count: int) -> bytes:
        found = super()._take(count)
        self.count += len(found)
        return found

    def seek(self, offset: int, whence: int = 0, /) -> int:
        if whence != io.SEEK_SET or offset < self.count:
            raise UnsafeTarError(f"{self._what} is damaged")
        while self.count < offset and self._take(min(_CHUNK, offset - self.count)):
            pass
        return self.count

    def tell(self) -> int:
        return self.count


def each_member(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members of a tar of a GuardedFile; those before are forgotten, which may be millions, and so are global headers.

    Engines do not apply global headers to the members behind them.
    """
    source = cast("GuardedFile", tar.fileobj)
    while True:
        source.expect_headers()
        member = tar.next()
        source.expect_content()
        if member is None:
            return
        tar.members = []  # type: ignore[attr-defined]
        tar.pax_headers = {}
        yield member


def _is_sound(headers: bytes) -> bool:
    """Return whether a pax header has records of the lengths that they say, each ``LENGTH NAME=VALUE``."""
    at = 0
    while headers[at : at + 1] not in (b"", b"\0"):
        length, blank, _ = headers[at : at + 8].partition(b" ")
        if not blank or not length.isdigit():
            return False
        end = at + int(length)
        if headers[end - 1 : end] != b"\n" or headers.find(b"=", at, end) < 0 or end <= at:
            return False
        at = end
    return True
