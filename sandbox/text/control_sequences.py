"""Parse what a command writes to its terminal into control sequences, as a real terminal does.

pyte, which draws the screen, waits for the end of a title for ever, and draws the rest of an unknown sequence as text. A real
terminal ignores an unknown sequence as a whole, and starts a new one at every ESC (ECMA-48; Williams' parser of the VT500,
https://vt100.net/emu/dec_ansi_parser).
"""

from __future__ import annotations

import re

from pyte.charsets import VT100_MAP

# A longer sequence is dropped, whatever its length.
MOST_BYTES = 1024
# A string begins with ESC and one of these, or with one C1 character, which is two bytes of UTF-8.
_BEGIN = {b"[": "csi", b"]": "osc", b"P": "string", b"X": "string", b"^": "string", b"_": "string"}
_BEGIN_C1 = {b"\x9b": "csi", b"\x9d": "osc", **dict.fromkeys((b"\x90", b"\x98", b"\x9e", b"\x9f"), "string")}
_ESCAPE = re.compile(rb"\x1b([\x20-\x2f]*)([^\x20-\x2f])?|\xc2([\x90\x98\x9b\x9d-\x9f]|\Z)", re.DOTALL)
_CSI_END = re.compile(rb"[\x18\x1a\x1b\x40-\xff]")
_STRING_END = re.compile(rb"[\x07\x18\x1a]|\x1b\\?|\xc2(?:\x9c|\Z)")
_CANCEL = (b"\x18", b"\x1a")
_KNOWN_CSI = re.compile(rb"\??[0-9;:]*")
# How many parameters pyte accepts for each sequence it knows, if that is bounded; more are dropped, as xterm does. It draws nothing
# for queries (c, n), which are not answered here.
_TAKEN = {**dict.fromkeys(b"@ABCDEFGJKLMPXadeg", 1), **dict.fromkeys(b"Hfr", 2), **dict.fromkeys(b"hlm", MOST_BYTES)}
_PRIVATE = b"hlJK"
# The parameters of erasing in the screen and in a line; another number erases nothing.
_ERASED = {b"J": b"0123", b"K": b"012"}
_TITLE = re.compile(rb"[012];")
# C0 within a sequence takes effect at once: bell, backspace, tab, the line ends.
_EFFECTIVE = bytes(range(7, 14))
# Programs that may not write UTF-8 draw boxes with DEC's special graphics in place of ` to ~.
_BOXES, _LETTERS, _RESET = b"\x1b(0", b"\x1b(", b"\x1bc"
_LAST = re.compile(rb"(?:[\x20-\x7e]|[\xc2-\xf4][\x80-\xbf]+)\Z")
# Upper bound for repeating the last character (REP): programs fill at most a line with it.
MOST_REPEATED = 300
_BOX = re.compile(rb"[\x60-\x7e]")


class SequenceFilter:
    """Filters the bytes for pyte. They may come in pieces of any size."""

    def __init__(self) -> None:
        self._held = b""
        self._kind = ""
        self._body = bytearray()
        self._boxes = False
        self._last = b""

    def feed(self, data: bytes) -> bytes:
        """Return what to draw: complete sequences that pyte knows, and text."""
        data, self._held = self._held + data, b""
        drawn = bytearray()
        at = 0
        while at < len(data):
            if not self._kind:
                at = self._text(data, at, drawn)
            elif self._kind == "csi":
                at = self._csi(data, at, drawn)
            else:
                at = self._string(data, at, drawn)
        return bytes(drawn)

    def _text(self, data: bytes, at: int, drawn: bytearray) -> int:
        found = _ESCAPE.search(data, at)
        if found is None:
            drawn += self._drawn(data[at:])
            return len(data)
        drawn += self._drawn(data[at : found.start()])
        between, final, c1 = found.groups()
        if (final is None and c1 is None) or c1 == b"":
            self._held = found.group()[:MOST_BYTES]
            return len(data)
        kind = _BEGIN_C1[c1] if c1 else "" if between else _BEGIN.get(final, "")
        if kind:
            self._kind, self._body = kind, bytearray()
        elif final == b"\x1b":
            return found.end() - 1
        elif final not in _CANCEL and between in (b"", b"#", b"(", b")"):
            drawn += found.group()
            if found.group().startswith(_LETTERS) or found.group() == _RESET:
                self._boxes = found.group() == _BOXES
        return found.end()

    def _csi(self, data: bytes, at: int, drawn: bytearray) -> int:
        found = _CSI_END.search(data, at)
        piece = data[at : found.start()] if found else data[at:]
        drawn += bytes(byte for byte in piece if byte in _EFFECTIVE)
        self._keep(bytes(byte for byte in piece if byte >= 0x20))
        if found is None:
            return len(data)
        self._kind = ""
        final = found.group()
        if final in _CANCEL:
            return found.end()
        if final == b"\x1b" or final >= b"\x7f":
            return found.start()
        if final == b"b" and self._body.isdigit() and len(self._body) <= 4:
            drawn += self._last * min(int(self._body), MOST_REPEATED)
        elif len(self._body) < MOST_BYTES and _KNOWN_CSI.fullmatch(self._body):
            drawn += _accepted(bytes(self._body.replace(b":", b";")), final)
        return found.end()

    def _string(self, data: bytes, at: int, drawn: bytearray) -> int:
        found = _STRING_END.search(data, at)
        self._keep(data[at : found.start()] if found else data[at:])
        if found is None:
            return len(data)
        end = found.group()
        if end in (b"\x1b", b"\xc2") and found.end() == len(data):
            self._held = end
            return len(data)
        if end == b"\x07" and self._kind != "osc":
            return found.end()
        kind, self._kind = self._kind, ""
        if end == b"\x1b":  # of another sequence, which cancels this one
            return found.start()
        if end not in _CANCEL and kind == "osc" and _TITLE.match(self._body):
            drawn += b"\x1b]" + self._body + b"\x07"
        return found.end()

    def _drawn(self, text: bytes) -> bytes:
        if self._boxes:
            text = _BOX.sub(lambda found: VT100_MAP[found.group()[0]].encode(), text)
        if text:
            last = _LAST.search(text, max(0, len(text) - 4))
            self._last = last.group() if last else b""
        return text

    def _keep(self, piece: bytes) -> None:
        self._body += piece[: MOST_BYTES - len(self._body)]


def _accepted(body: bytes, final: bytes) -> bytes:
    """Return the sequence as pyte accepts it. pyte raises for any other, and the text after it would be lost."""
    private, numbers = body[:1] == b"?", body.lstrip(b"?").split(b";")
    most = _TAKEN.get(final[0], 0)
    if not most or (private and final not in _PRIVATE):
        return b""
    if final in _ERASED and (numbers[0].lstrip(b"0") or b"0") not in [b"%c" % digit for digit in _ERASED[final]]:
        return b""
    return b"\x1b[" + b"?" * private + b";".join(numbers[:most]) + final
