"""Join the output of a command from the segments that the guest kept."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, NamedTuple

from sandbox.errors import SandboxUnavailableError

HEAD, TAIL = 0, 1


class CommandOutput(NamedTuple):
    """``output`` has both streams in the order of arrival, ``stdout`` and ``stderr`` one each. A mark in each says what was cut.

    ``encoding_errors`` says that invalid UTF-8 was replaced in them. ``stdout_bytes`` and ``stderr_bytes`` are the bytes that were
    kept, as they were printed and without the mark.
    """

    output: str
    stdout: str
    stderr: str
    encoding_errors: bool
    stdout_bytes: bytes
    stderr_bytes: bytes


_NOTHING = CommandOutput("", "", "", False, b"", b"")


def join_segments(segments: Any, blob: bytes, total: int, truncated: bool, where: str | None) -> CommandOutput:
    """Join ``blob``, which consists of ``segments`` [stream, length, part]. Raises SandboxUnavailableError for invalid ones.

    A character that is split between two segments of a stream stays whole; one that the cut split is dropped. Other invalid
    UTF-8 is replaced.
    """
    if segments == [] and not blob and not truncated:  # most commands print nothing
        return _NOTHING
    missing = total - len(blob)
    cut = truncated and missing > 0
    mark = f"\n[... {missing} bytes cut{'; all of it in ' + where if where else ''} ...]\n" if cut else ""
    pieces = _pieces(segments, blob, across_parts=not cut)
    streams = {stream for stream, _, _ in pieces}
    texts = {stream: _text_of([piece for piece in pieces if piece[0] == stream], mark) for stream in streams}
    # Output may be long: what only one stream printed is decoded once.
    output, replaced = texts[min(streams)] if len(streams) == 1 else _text_of(pieces, mark)
    (out, wrong_out), (err, wrong_err) = (texts.get(stream, ("", False)) for stream in (1, 2))
    out_bytes, err_bytes = (b"".join(data for s, data, _ in pieces if s == stream) for stream in (1, 2))
    return CommandOutput(output, out, err, replaced or wrong_out or wrong_err, out_bytes, err_bytes)


def _text_of(pieces: list[tuple[int, bytes, int]], mark: str) -> tuple[str, bool]:
    """Return the text of the pieces with the mark, if any, between those of the head and the tail; and if UTF-8 was replaced."""
    head = [(stream, data) for stream, data, part in pieces if part == HEAD]
    tail = [(stream, data) for stream, data, part in pieces if part == TAIL]
    if not mark:
        return _decode(head + tail)
    (first, wrong_first), (last, wrong_last) = _decode(head, cut_end=True), _decode(tail, cut_start=True)
    return first + mark + last, wrong_first or wrong_last


def decode_part(blob: bytes, *, starts: bool, ends: bool) -> tuple[str, bool]:
    """Return the text of a part of an output, and whether it has encoding errors.

    ``starts`` and ``ends`` say whether the part reaches the beginning and the end of the output: a character that is torn at
    another border is replaced, too, but is not an error.
    """
    whole = blob if starts else _without_torn_start(blob)
    whole = whole if ends else whole[: len(whole) - _torn_end(whole)]
    return blob.decode("utf-8", "replace"), _text(whole)[1]


def _pieces(segments: Any, blob: bytes, *, across_parts: bool) -> list[tuple[int, bytes, int]]:
    """Return (stream, bytes, part) of each segment; with ``across_parts``, those of one stream that follow each other are one."""
    lengths: list[tuple[int, int, int]] = []
    at = 0
    valid = isinstance(segments, list)
    for segment in segments if valid else ():
        ok = isinstance(segment, list) and len(segment) == 3 and all(type(x) is int for x in segment)
        if not ok or segment[0] not in (1, 2) or segment[2] not in (HEAD, TAIL) or not 0 < segment[1] <= len(blob) - at:
            valid = False
            break
        stream, length, part = segment
        if across_parts and lengths and lengths[-1][0] == stream:
            length, part = length + lengths.pop()[1], HEAD
        lengths.append((stream, length, part))
        at += segment[1]
    if not valid or at != len(blob):
        raise SandboxUnavailableError("protocol_violation", "The sandbox sent output that does not add up.")
    ends = accumulate(length for _, length, _ in lengths)
    return [(stream, blob[end - length : end], part) for (stream, length, part), end in zip(lengths, ends, strict=True)]


def _decode(pieces: list[tuple[int, bytes]], cut_start: bool = False, cut_end: bool = False) -> tuple[str, bool]:
    texts: list[tuple[str, bool]] = []
    begun: dict[int, bytes] = {}
    seen: set[int] = set()
    for stream, piece in pieces:
        data = begun.pop(stream, b"") + piece
        if cut_start and stream not in seen:
            data = _without_torn_start(data)
        seen.add(stream)
        whole = len(data) - _torn_end(data)
        begun[stream] = data[whole:]
        texts.append(_text(data[:whole]))
    if not cut_end:
        texts += [_text(rest) for rest in begun.values() if rest]
    return "".join(text for text, _ in texts), any(wrong for _, wrong in texts)


def _text(data: bytes) -> tuple[str, bool]:
    try:
        return data.decode(), False
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace"), True


def _without_torn_start(data: bytes) -> bytes:
    torn = 0
    while torn < min(4, len(data)) and data[torn] & 0xC0 == 0x80:
        torn += 1
    return data if torn > 3 else data[torn:]  # more than three are not the end of a character


def _torn_end(data: bytes) -> int:
    """Return how many bytes at the end belong to an incomplete character."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        needed = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return back if needed > back else 0
    return 0
