"""Reading files by lines or by bytes, in bounded memory and time whatever the file is."""

from __future__ import annotations

import codecs
import os

from ..loop.context import Call
from ..protocol.faults import Fault
from .roots import readable_roots_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CHUNK = 1 << 18
SNIFFED = 8192  # a NUL in this many bytes makes a file binary, as for git and ripgrep
COUNTED = 64 << 20  # bytes read to count the remaining lines of a file
SKIPPED = 1 << 30  # bytes read to find the first requested line


def read(call: Call) -> tuple[dict[str, Any], bytes]:
    """Handle ``read``. Returns the result, and the content exactly as it is in the file. Raises Fault."""
    args = call.args
    path: str = args["path"]
    check_range(args)
    roots = readable_roots_of(call.place)
    fd, status = roots.open_regular(path)
    try:
        about = {"path": roots.display(path), "size_bytes": status.st_size}
        return read_open(fd, about, args, int(call.place.limits["read_bytes"]))
    except OSError as error:
        raise roots.fault_for(error, path) from None
    finally:
        os.close(fd)


def check_range(args: dict[str, Any]) -> None:
    """Raise Fault ``invalid_arguments`` if lines and bytes are mixed, or a range ends before it starts."""
    first, last = args.get("start_line"), args.get("end_line")
    if _by_bytes(args) and (first is not None or last is not None or args.get("numbered")):
        raise Fault(
            "invalid_arguments",
            problem="lines (start_line, end_line, numbered) and bytes (offset, max_bytes) exclude each other",
        )
    if first is not None and last is not None and last < first:
        raise Fault("invalid_arguments", problem=f"end_line {last} is before start_line {first}")


def _by_bytes(args: dict[str, Any]) -> bool:
    return args.get("offset") is not None or args.get("max_bytes") is not None


def read_open(fd: int, about: dict[str, Any], args: dict[str, Any], limit: int) -> tuple[dict[str, Any], bytes]:
    """Return the range of an open file that ``args`` asks for, at most ``limit`` bytes. ``about`` has its path and size.

    Raises Fault and OSError.
    """
    if _by_bytes(args):
        return _read_bytes(fd, about, args.get("offset") or 0, min(args.get("max_bytes") or limit, limit))
    if b"\0" in os.pread(fd, SNIFFED, 0):
        return {**about, "binary": True}, b""
    numbered = bool(args.get("numbered"))
    return _read_lines(fd, about, args.get("start_line") or 1, args.get("end_line"), limit, numbered)


def _read_bytes(fd: int, about: dict[str, Any], offset: int, count: int) -> tuple[dict[str, Any], bytes]:
    size = about["size_bytes"]
    if offset > size:
        raise Fault("range_outside_file", path=about["path"], offset=offset, size_bytes=size)
    data = _pread(fd, min(count, size - offset), offset)
    if offset + len(data) < size:
        data = _whole_characters(data)
    end = offset + len(data)
    result = {
        **about,
        "offset": offset,
        "next_offset": end,
        "truncated": end < size,
        "encoding_errors": not _is_utf8(data),
    }
    return result, data


def _read_lines(
    fd: int, about: dict[str, Any], first: int, last: int | None, limit: int, numbered: bool
) -> tuple[dict[str, Any], bytes]:
    size = about["size_bytes"]
    start, before = _find_line(fd, first, size)
    if start is None:
        known: dict[str, Any] = {} if before is None else {"total_lines": before}
        raise Fault("range_outside_file", path=about["path"], start_line=first, size_bytes=size, **known)
    data = _pread(fd, min(limit, size - start), start)
    whole = start + len(data) >= size
    raw, content = _take_lines(data, first, None if last is None else last - first + 1, limit, numbered, whole)
    ends = raw.count(b"\n")
    count = ends + (not raw.endswith(b"\n") and bool(raw) and start + len(raw) >= size)
    wanted_all = last is not None and count >= last - first + 1
    truncated = not wanted_all and start + len(raw) < size
    end_line = first + count - 1 if count else None
    result = {
        **about,
        "start_line": first if raw else None,
        "end_line": end_line,
        "truncated": truncated,
        "total_lines": _count_lines(fd, start + len(raw), size, first - 1 + ends, raw[-1:]),
        "encoding_errors": not _is_utf8(raw),
    }
    if truncated:
        result |= {"offset": start, "next_offset": start + len(raw)}
    return result, content


def _take_lines(
    data: bytes, first: int, count: int | None, limit: int, numbered: bool, whole: bool
) -> tuple[bytes, bytes]:
    """Return up to ``count`` whole lines of ``data`` that fit the limit, as they are in the file and as they are presented.

    If not even one whole line fits, returns the beginning of it.
    """
    if not numbered:
        end = len(data) if whole else data.rfind(b"\n") + 1
        if count is not None and data.count(b"\n", 0, end) >= count:
            end = _end_of_line(data, count)
        text = data[:end] if end else _whole_characters(data[: max(1, limit)])
        return text, text
    parts = data.split(b"\n")  # splitlines would also split at a bare \r
    taken, out_size, out = 0, 0, []
    for number, part in enumerate(parts[:count], first):
        last_part = number - first == len(parts) - 1
        if last_part and (not part or not whole):
            break
        line = part if last_part else part + b"\n"
        text = b"%6d\t%b" % (number, line)
        if out_size + len(text) > limit:
            break
        out.append(text)
        taken += len(line)
        out_size += len(text)
    if out or not data:
        return data[:taken], b"".join(out)
    prefix = b"%6d\t" % first
    piece = _whole_characters(parts[0][: max(1, limit - len(prefix))])
    return piece, prefix + piece


def _find_line(fd: int, line: int, size: int) -> tuple[int | None, int | None]:
    """Return the offset of a line, and None.

    Returns (None, number of lines) if the file has fewer lines, and (None, None) if the line is too far to be found.
    """
    at, missing = 0, line - 1
    ended = b"\n"
    while missing:
        if at >= SKIPPED:
            return None, None
        data = _pread(fd, min(CHUNK, size - at), at)
        if not data:
            return None, line - 1 - missing + (ended != b"\n")
        ended = data[-1:]
        found = data.count(b"\n")
        if found < missing:
            missing -= found
            at += len(data)
            continue
        at, missing = at + _end_of_line(data, missing), 0
    if at >= size and line > 1:
        return None, line - 1
    return at, None


def _end_of_line(data: bytes, line: int) -> int:
    """Return the offset after the line with this number, counted from 1; ``data`` must have as many."""
    place = -1
    for _ in range(line):
        place = data.index(b"\n", place + 1)
    return place + 1


def _count_lines(fd: int, at: int, size: int, lines: int, ended: bytes) -> int | None:
    """Return the number of all lines, given that ``lines`` end before ``at``; None if the rest is too long to read."""
    if size - at > COUNTED:
        return None
    while data := _pread(fd, min(CHUNK, size - at), at):
        lines += data.count(b"\n")
        ended = data[-1:]
        at += len(data)
    return lines + (ended not in (b"\n", b""))


def _pread(fd: int, count: int, offset: int) -> bytes:
    """Return ``count`` bytes, fewer only at the end of the file."""
    data = os.pread(fd, count, offset) if count > 0 else b""
    while len(data) < count and (more := os.pread(fd, count - len(data), offset + len(data))):
        data += more
    return data


def _whole_characters(data: bytes) -> bytes:
    """Return the data without an incomplete UTF-8 character at its end, so that the next range starts with all of it."""
    for cut in range(1, min(4, len(data))):
        byte = data[-cut]
        if byte & 0xC0 == 0xC0:
            wanted = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-cut] if wanted > cut else data
        if byte < 0x80:
            break
    return data


def _is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        codecs.utf_8_decode(data, "strict", True)
    except UnicodeDecodeError:
        return False
    return True
