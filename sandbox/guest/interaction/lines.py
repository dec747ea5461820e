"""Waiting for a line in the output of a command, past or to come. Lives in the reactor's thread."""

from __future__ import annotations

import re

from ..commands.command import Command
from .following import first_byte

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..commands.processes import Processes
    from ..protocol.faults import Fault
    from .matcher import Matcher, Matchers

    Found = Callable[[dict[str, Any]], None]

READ_BYTES = 64 * 1024
# A line that has no end yet is kept up to this size, and looked at as it is once nothing more came for so long: a prompt.
LINE_BYTES = 64 * 1024
QUIET_SECONDS = 0.1
_PLAIN = re.compile(r"[^\\.^$*+?{}\[\]|()]*")
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-Z\\^_`-~])")


class LineWait:
    """Calls ``found`` with the first line that matches, or ``missed`` when the output has ended without one.

    Lines are looked at without escape codes. A pattern that is plain text is looked for here, any other in a process.
    """

    def __init__(self, processes: Processes, command: Command, args: dict[str, Any], matchers: Callable[[], Matchers],
                 found: Found, failed: Callable[[Fault], None], missed: Callable[[], None]) -> None:  # fmt: skip
        self._processes = processes
        self._command = command
        self._text: str | None = args["log"] if args["literal"] or _PLAIN.fullmatch(args["log"]) else None
        self._needle = None if self._text is None else self._text.encode("utf-8", "replace")
        self._found, self._missed = found, missed
        self._offset = first_byte(command.output, args, READ_BYTES)
        self._begun = b""
        self._busy = self._closed = False
        self._tried = -1  # where the output ended when a line without its end was looked at
        self._matcher: Matcher | None = None
        if self._text is None:
            self._matcher = matchers().open(args["log"], failed)
        self._quiet = processes.reactor.after(0.0, self._more)
        self._unlisten = command.listen(self._more)

    def close(self) -> None:
        """Stop looking."""
        self._closed = True
        self._unlisten()
        self._quiet.cancel()
        if self._matcher is not None:
            self._matcher.close()

    def _more(self) -> None:
        """Look at what there is; the next part is looked at when this one is done with."""
        if self._busy or self._closed:
            return
        self._quiet.cancel()
        output = self._command.output
        # Before the place to start at: nothing to look at yet.
        start, data = output.read(self._offset, READ_BYTES) if output.total > self._offset else (self._offset, b"")
        if start > self._offset:  # lost to the bounds of what is kept
            self._begun = b""
        self._offset = start + len(data)
        if data:
            block = self._begun + data
            cut = block.rfind(b"\n") + 1
            self._begun = block[cut:][-LINE_BYTES:]
            end = self._offset - (len(block) - cut)
            if cut and (self._needle is None or self._needle in block or b"\x1b" in block):
                self._look(block[: cut - 1].split(b"\n"), end)
            else:
                self._quiet = self._processes.reactor.after(0.0, self._more)  # in turns with everything else
        elif self._command.over:
            self._last()
        elif self._begun and self._tried != output.total:
            self._quiet = self._processes.reactor.after(QUIET_SECONDS, self._prompt)

    def _prompt(self) -> None:
        if not self._busy and self._command.output.total == self._offset:
            self._tried = self._offset
            self._look([self._begun], self._offset, whole=False)

    def _last(self) -> None:
        if self._begun and self._tried != self._offset:
            self._tried = self._offset
            self._look([self._begun], self._offset, whole=False)
        else:
            self._missed()

    def _look(self, lines: list[bytes], end: int, whole: bool = True) -> None:
        """Look at lines, the last of which ends before the byte ``end`` of the output, then go on."""
        texts = [_shown(line) for line in lines]

        def judge(index: int | None, groups: list[str | None]) -> None:
            self._busy = False
            if self._closed:
                return
            if index is None or not 0 <= index < len(lines):
                self._quiet = self._processes.reactor.after(0.0, self._more)
                return
            after = sum(len(line) + 1 for line in lines[index + 1 :])
            past = end - after
            start = past - len(lines[index]) - (1 if whole else 0)
            self._found(
                {"line": texts[index][:LINE_BYTES], "groups": groups, "offset": max(0, start), "next_offset": past}
            )

        self._busy = True
        if self._matcher is None:
            text = self._text or ""
            judge(next((index for index, line in enumerate(texts) if text in line), None), [])
        else:
            self._matcher.ask(texts, judge)


def _shown(line: bytes) -> str:
    text = line.rstrip(b"\r").decode("utf-8", "replace")
    return _ESCAPES.sub("", text) if "\x1b" in text else text
