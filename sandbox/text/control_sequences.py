"""What a command writes to its terminal, with the control sequences cut as a real terminal cuts them.

pyte, which draws the screen, waits for the end of a title for ever, and takes the rest of a sequence that it does not know for
text. A real terminal drops what it does not know as a whole, and starts anew at every ESC (ECMA-48; Williams' parser of the
VT500, https://vt100.net/emu/dec_ansi_parser).
"""

from __future__ import annotations

import re

from pyte.charsets import VT100_MAP

# A sequence that is longer is dropped, however long it goes on.
MOST_BYTES = 1024
# A string is begun by ESC and one of these, or by one character of C1, which is two bytes of UTF-8.
_BEGIN = {b"[": "csi", b"]": "osc", b"P": "string", b"X": "string", b"^": "string", b"_": "string"}
_BEGIN_C1 = {b"\x9b": "csi", b"\x9d": "osc", **dict.fromkeys((b"\x90", b"\x98", b"\x9e", b"\x9f"), "string")}
_ESCAPE = re.compile(rb"\x1b([\x20-\x2f]*)([^\x20-\x2f])?|\xc2([\x90\x98\x9b\x9d-\x9f]|\Z)", re.DOTALL)
_CSI_END = re.compile(rb"[\x18\x1a\x1b\x40-\xff]")
_STRING_END = re.compile(rb"[\x07\x18\x1a]|\x1b\\?|\xc2(?:\x9c|\Z)")
_CANCEL = (b"\x18", b"\x1a")
_KNOWN_CSI = re.compile(rb"\??[0-9;:]*")
# How many parameters pyte takes of those it knows, where that is bounded; more are left out, as xterm does. It draws nothing for
# questions (c, n), which nobody answers here.
_TAKEN = {**dict.fromkeys(b"@ABCDEFGJKLMPXadeg", 1), **dict.fromkeys(b"Hfr", 2), **dict.fromkeys(b"hlm", MOST_BYTES)}
_PRIVATE = b"hlJK"
# What may be erased of the screen and of a line; another number erases nothing.
_ERASED = {b"J": b"0123", b"K": b"012"}
_TITLE = re.compile(rb"[012];")
# C0 within a sequence takes effect at once: bell, backspace, tab, the line ends.
_EFFECTIVE = bytes(range(7, 14))
# What programs draw boxes with where they may not write UTF-8: DEC's special graphics in place of ` to ~.
_BOXES, _LETTERS, _RESET = b"\x1b(0", b"\x1b(", b"\x1bc"
_LAST = re.compile(rb"(?:[\x20-\x7e]|[\xc2-\xf4][\x80-\xbf]+)\Z")
# The last character again so many times (REP): programs fill at most a line with it.
MOST_REPEATED = 300
_BOX = re.compile(rb"[\x60-\x7e]")


class Sequences:
    """Takes the bytes in pieces of any size."""

    def __init__(self) -> None:
        self._held = b""
        self._kind = ""
        self._body = bytearray()
        self._boxes = False
        self._last = b""

    def feed(self, data: bytes) -> bytes:
        """What is to be drawn: whole sequences that pyte knows, and text."""
        data, self._held = self._held + data, b""
        shown = bytearray()
        at = 0
        while at < len(data):
            if not self._kind:
                at = self._text(data, at, shown)
            elif self._kind == "csi":
                at = self._csi(data, at, shown)
            else:
                at = self._string(data, at, shown)
        return bytes(shown)

    def _text(self, data: bytes, at: int, shown: bytearray) -> int:
        found = _ESCAPE.search(data, at)
        if found is None:
            shown += self._drawn(data[at:])
            return len(data)
        shown += self._drawn(data[at : found.start()])
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
            shown += found.group()
            if found.group().startswith(_LETTERS) or found.group() == _RESET:
                self._boxes = found.group() == _BOXES
        return found.end()

    def _csi(self, data: bytes, at: int, shown: bytearray) -> int:
        found = _CSI_END.search(data, at)
        piece = data[at : found.start()] if found else data[at:]
        shown += bytes(byte for byte in piece if byte in _EFFECTIVE)
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
            shown += self._last * min(int(self._body), MOST_REPEATED)
        elif len(self._body) < MOST_BYTES and _KNOWN_CSI.fullmatch(self._body):
            shown += _taken(bytes(self._body.replace(b":", b";")), final)
        return found.end()

    def _string(self, data: bytes, at: int, shown: bytearray) -> int:
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
            shown += b"\x1b]" + self._body + b"\x07"
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


def _taken(body: bytes, final: bytes) -> bytes:
    """The sequence as far as pyte takes it: it raises over every other, and the text behind it would be lost."""
    private, numbers = body[:1] == b"?", body.lstrip(b"?").split(b";")
    most = _TAKEN.get(final[0], 0)
    if not most or (private and final not in _PRIVATE):
        return b""
    if final in _ERASED and (numbers[0].lstrip(b"0") or b"0") not in [b"%c" % one for one in _ERASED[final]]:
        return b""
    return b"\x1b[" + b"?" * private + b";".join(numbers[:most]) + final
