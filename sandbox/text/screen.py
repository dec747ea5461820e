"""Draw terminal screens on the host from the bytes that a command wrote.

Those bytes are hostile: the number of bytes drawn and the time for it are bounded, and what the emulation cannot handle is
left out.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import pyte
from pyte.screens import Char, Cursor, StaticDefaultDict

from .control_sequences import SequenceFilter

Ask = Callable[[dict[str, Any]], tuple[dict[str, Any], bytes]]

MOST_ROWS, MOST_COLS = 100, 300
# A full screen takes a few KiB; only the end of a longer backlog is drawn.
MOST_BACKLOG_BYTES, DRAWN_OF_BACKLOG_BYTES = 256 * 1024, 64 * 1024
ASKED_BYTES = 64 * 1024
# The most expensive sequences (clear the screen, scroll it) take milliseconds each: the time is checked after this many bytes.
STEP_BYTES = 256
DRAW_SECONDS = 2.0  # of processor time: a busy machine must not make a screen lose text
MOST_SCREENS, MOST_SAVED_CURSORS, MOST_TITLE_CHARS = 64, 16, 200
# Private modes with which full-screen programs switch to the alternate screen and back.
_ALTERNATE_SCREEN = {47, 1047, 1049}
# The mode in which programs want application cursor keys (DECCKM); pyte stores private modes shifted.
_CURSOR_KEYS = 1 << 5
_Lines = StaticDefaultDict[int, Char]


class Terminal(pyte.Screen):
    """pyte's screen, with the alternate screen of full-screen programs, which pyte lacks, and with a fixed size."""

    def __init__(self, columns: int, lines: int) -> None:
        self._kept: tuple[dict[int, _Lines], Cursor] | None = None
        super().__init__(columns, lines)

    def set_mode(self, *modes: int, **kwargs: Any) -> None:
        """Set modes, see pyte."""
        if kwargs.get("private"):
            if _ALTERNATE_SCREEN & set(modes) and self._kept is None:
                self._kept = (copy.deepcopy(dict(self.buffer)), copy.copy(self.cursor))
                self.erase_in_display(2)
            modes = tuple(
                mode for mode in modes if mode != 3
            )  # 132 columns: the size of the real terminal stays the same
        super().set_mode(*modes, **kwargs)

    def reset_mode(self, *modes: int, **kwargs: Any) -> None:
        """Reset modes, see pyte."""
        if kwargs.get("private"):
            if _ALTERNATE_SCREEN & set(modes) and self._kept is not None:
                lines, self.cursor = self._kept
                self._kept = None
                self.buffer.clear()
                self.buffer.update(lines)
                self.ensure_hbounds()
                self.ensure_vbounds()
            modes = tuple(mode for mode in modes if mode != 3)
        super().reset_mode(*modes, **kwargs)


class Drawing:
    """The screen of one terminal, and how far its output has been drawn."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.offset = 0
        self.skipped = 0
        self._clear(24, 80)

    def _clear(self, rows: int, cols: int) -> None:
        self.screen = Terminal(cols, rows)
        self._stream = pyte.ByteStream(self.screen)
        self._sequences = SequenceFilter()

    def resize(self, rows: int, cols: int) -> None:
        """Take the size of the terminal."""
        rows, cols = max(1, min(rows, MOST_ROWS)), max(1, min(cols, MOST_COLS))
        if (rows, cols) != (self.screen.lines, self.screen.columns):
            self.screen.resize(rows, cols)

    def skip(self, count: int) -> None:
        """Leave out ``count`` bytes of output: what follows is drawn on an empty screen."""
        if count > 0:
            self.skipped += count
            self._clear(self.screen.lines, self.screen.columns)

    def feed(self, data: bytes, deadline: float) -> bool:
        """Draw ``data`` until ``deadline`` (of ``time.thread_time``). Returns False if the rest was left out."""
        for at in range(0, len(data), STEP_BYTES):
            if time.thread_time() > deadline:
                self.skip(len(data) - at)
                return False
            try:
                self._stream.feed(self._sequences.feed(data[at : at + STEP_BYTES]))
            except Exception:  # noqa: BLE001  pyte may raise anything for invalid input
                self.skipped += len(data[at : at + STEP_BYTES])
                self._stream = pyte.ByteStream(self.screen)
            del self.screen.savepoints[:-MOST_SAVED_CURSORS]
        return True

    def result_fields(self) -> dict[str, Any]:
        """Return the fields of a ScreenResult that are drawn."""
        screen = self.screen
        lines = [line.rstrip() for line in screen.display]
        return {
            "text": "\n".join(lines).rstrip("\n"),
            "rows": screen.lines,
            "cols": screen.columns,
            "skipped_bytes": self.skipped,
            "cursor_row": screen.cursor.y,
            "cursor_col": min(screen.cursor.x, screen.columns - 1),
            "cursor_hidden": bool(screen.cursor.hidden),
            "title": screen.title[:MOST_TITLE_CHARS],
        }


class Screens:
    """The screens of one sandbox by command id; the oldest are forgotten. May be used by many threads."""

    def __init__(self) -> None:
        self._drawings: dict[str, Drawing] = {}
        self._lock = threading.Lock()

    def draw(self, ident: str, ask: Ask) -> dict[str, Any]:
        """Return the reply to ``screen``: the last reply of ``ask``, with the screen in place of the output."""
        with self._lock:
            drawing = self._drawings.setdefault(ident, Drawing())
            while len(self._drawings) > MOST_SCREENS:
                del self._drawings[next(iter(self._drawings))]
        fields = _catch_up(drawing, ident, ask)
        known = fields.get("result")
        if not isinstance(known, dict):
            with self._lock:
                self._drawings.pop(ident, None)
            return fields
        state = {name: known.get(name) for name in ("id", "running", "exit_code", "signal", "waiting_for")}
        with drawing.lock:
            return {**fields, "result": {**state, **drawing.result_fields()}}

    def application_keys(self, ident: str, ask: Ask) -> bool:
        """Return whether the command has asked for application cursor keys, as full-screen programs do."""
        self.draw(ident, ask)
        drawing = self._drawings.get(ident)
        return drawing is not None and _CURSOR_KEYS in drawing.screen.mode

    def add_screen(self, fields: dict[str, Any], ask: Ask) -> dict[str, Any]:
        """Return the reply to ``send``, with the screen if the command has a terminal."""
        known = fields.get("result")
        if not isinstance(known, Mapping) or not known.get("terminal"):
            return fields
        drawn = self.draw(str(known.get("id")), ask).get("result")
        return {**fields, "result": {**known, "screen": drawn}}


def _catch_up(drawing: Drawing, ident: str, ask: Ask) -> dict[str, Any]:
    """Draw the new output and return the last reply. An invalid reply is returned at once, for the caller to refuse.

    No lock is held while the sandbox is asked; what another thread has drawn meanwhile is skipped.
    """
    deadline = time.thread_time() + DRAW_SECONDS
    while True:
        asked = drawing.offset
        fields, data = ask({"id": ident, "offset": asked, "max_bytes": ASKED_BYTES})
        known = fields.get("result")
        state = known if isinstance(known, dict) else {}
        numbers = [
            n for name in ("rows", "cols", "offset", "total_bytes") if type(n := state.get(name)) is int and n >= 0
        ]
        if len(numbers) < 4:
            return fields if fields.get("fault") else {"result": None}
        rows, cols, start, total = numbers
        with drawing.lock:
            if drawing.offset != asked:
                if drawing.offset >= total:
                    return fields
                continue
            drawing.resize(rows, cols)
            drawing.skip(start - drawing.offset)
            drawing.offset = start + len(data)
            in_time = drawing.feed(data, deadline)
            if not in_time or not data or drawing.offset >= total:
                return fields
            if total - drawing.offset > MOST_BACKLOG_BYTES:
                drawing.skip(total - DRAWN_OF_BACKLOG_BYTES - drawing.offset)
                drawing.offset = total - DRAWN_OF_BACKLOG_BYTES
