"""Read a tar that an attacker wrote with Python's tarfile, which reads headers of any length and may take hours for one of them."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

_MOST_HEADERS = 64 << 10
"""Bytes of all headers of one member. A header may say that a name has any number of bytes, and tarfile would read
them all at once."""
_DIGITS = re.compile(rb"[0-9]{65,}")
_MOST_STEPS_OF_HEADER, _MOST_STEPS, _STEPS_PER_BYTE = 1 << 25, 1 << 28, 16
"""In many versions of Python, tarfile looks for ``[0-9]+ hdrcharset=`` from each digit of a pax header anew: with 64 KiB of digits
for 4 seconds, in which no other thread has a turn. So the squares of all runs of more than 64 digits are added up, of which each
takes 1 ns. The target of a link may have 4,095 digits. All headers of a tar may take more steps the longer it is."""
_PAX_KINDS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
_LONG_KINDS = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_KIND_AT = 156
_CHUNK = 1 << 20
_MOST_PLACE = 1 << 62


class UnsafeTarError(tarfile.TarError):
    """The tar has what is refused before tarfile takes it; the text says what, as in "it has a header that is too long"."""


class GuardedFile(io.RawIOBase):
    """A file that ``open_tar`` opens, and whose members ``each_member`` yields. ``what`` is the tar in the words of errors.

    Raises UnsafeTarError for headers of one member that are longer than 64 KiB, the map of a sparse file included, and for those
    that take a time that grows with the square of their bytes.
    """

    _headers_left: int | None = _MOST_HEADERS  # tarfile reads the first member when it opens the file
    _header_kind = b""
    """The kind of the header whose content is read next: a pax header or a long name."""

    def __init__(self, source: BinaryIO, what: str = "it") -> None:
        self.what = what
        self._source = source
        self._steps = 0

    def expect_headers(self) -> None:
        """Count what is read as the headers of one member, until ``expect_content``."""
        self._headers_left, self._header_kind = _MOST_HEADERS, b""

    def expect_content(self) -> None:
        """Leave it to the caller how much is read."""
        self._headers_left = None

    def read(self, count: int = -1, /) -> bytes:
        left = self._headers_left
        if left is None:
            return self._take(count)
        if not 0 <= count <= left:
            raise UnsafeTarError(f"{self.what} has a header that is too long")
        found = self._take(count)
        self._headers_left = left - count
        self._check_header(found)
        return found

    def _take(self, count: int) -> bytes:
        return self._source.read(count)

    def _check_header(self, block: bytes) -> None:
        """Raise for a pax header that tarfile would need long for. ``block`` is what it reads now."""
        if self._header_kind in _PAX_KINDS:
            if not _is_sound(block):
                raise UnsafeTarError(f"{self.what} has a pax header that is invalid")
            steps = sum(len(run) ** 2 for run in _DIGITS.findall(block))
            self._steps += steps * 3 if b"GNU.sparse" in block else steps  # it is searched three times then
            if steps > _MOST_STEPS_OF_HEADER or self._steps > _MOST_STEPS + _STEPS_PER_BYTE * self.tell():
                raise UnsafeTarError(f"{self.what} has too many digits in its pax headers")
        kind = b"" if self._header_kind else block[_KIND_AT : _KIND_AT + 1]
        self._header_kind = kind if kind in (*_PAX_KINDS, *_LONG_KINDS) else b""

    def seek(self, offset: int, whence: int = 0, /) -> int:
        if whence != io.SEEK_SET or not 0 <= offset < _MOST_PLACE:
            raise UnsafeTarError(f"{self.what} is damaged")
        return self._source.seek(offset)

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
            raise UnsafeTarError(f"{self.what} is damaged")
        while self.count < offset and self._take(min(_CHUNK, offset - self.count)):
            pass
        return self.count

    def tell(self) -> int:
        return self.count


@contextmanager
def open_tar(source: GuardedFile, **options: Any) -> Iterator[tarfile.TarFile]:
    """Open the tar, and close it at the end; ``options`` are those of tarfile. Raises tarfile.TarError."""
    with _as_tar_error(source):
        tar = tarfile.open(fileobj=source, mode="r:", **options)  # noqa: SIM115 - closed below
    with tar:
        yield tar


def each_member(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members of a tar that ``open_tar`` opened. Raises tarfile.TarError.

    Those before are forgotten, which may be millions, and so are global headers: engines do not apply them to the members behind.
    """
    source = cast("GuardedFile", tar.fileobj)
    while True:
        with _as_tar_error(source):
            source.expect_headers()
            member = tar.next()
            source.expect_content()
        if member is None:
            return
        if member.size < 0 or tar.offset <= member.offset:  # the next one would be an earlier one, without end
            raise UnsafeTarError(f"{source.what} has a member of a negative size")
        tar.members = []  # type: ignore[attr-defined]
        tar.pax_headers = {}
        yield member


@contextmanager
def _as_tar_error(source: GuardedFile) -> Iterator[None]:
    """Raise as a TarError what tarfile raises for numbers and texts that it cannot read."""
    try:
        yield
    except (ValueError, OverflowError, LookupError, RecursionError) as error:
        raise UnsafeTarError(f"{source.what} is damaged ({type(error).__name__})") from error


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
