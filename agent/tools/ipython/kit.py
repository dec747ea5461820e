"""The kit itself: cells, a restart, and what the prompt says of the kernel."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from agent.core.actions import Action
from agent.core.envelopes import text_of
from agent.core.kits import Kit, KitContext
from sandbox.errors import ErrorCode, SandboxError
from sandbox.operations import Result
from sandbox.text.excerpt import LEFT_OUT, join_parts
from sandbox.text.plain_text import plain

from .channel import START_SECONDS, Channel, Line, died

TIMEOUT_SECONDS, MAX_TIMEOUT_SECONDS = 120.0, 3600.0
MAX_CODE_CHARS = 200_000
SLACK_SECONDS = (
    30.0  # beyond the cell's own time: it is interrupted, then its kernel is killed, then another one may start
)
_DATA_URI = re.compile(r"data:(image/[\w.+-]+);base64,[A-Za-z0-9+/=]{100,}")
_LONG_BASE64 = re.compile(r"(?<![A-Za-z0-9+/])(?:iVBORw0KGgo|/9j/|R0lGOD)[A-Za-z0-9+/\n]{200,}={0,2}")
_PIP = re.compile(r"\s*[%!]pip3? install\b[^\n]*\s*")
_PIP_SAYS = ("Successfully installed", "Requirement already satisfied", "ERROR", "WARNING")


class CellResult(Result):
    """What a cell printed and returned; ``ok`` is False if it raised. ``total_chars`` counts everything that it printed."""

    output: str = ""
    ok: bool = True
    interrupted: bool = False
    total_chars: int = 0
    truncated: bool = False

    def _words(self) -> str:
        """Return the output, then a note for each thing that the output does not show."""
        notes = []
        if self.truncated:
            notes.append(f"[{self.total_chars} characters of output, cut in the middle]")
        if not self.output.strip() and self.ok:
            notes.append("[the cell printed nothing]")
        elif not self.ok:
            notes.append("[the cell raised an error]")
        return "\n".join(part for part in (self.output.rstrip("\n"), *notes) if part)


class _CellAction(Action):
    def show(self, envelope: Mapping[str, Any]) -> str:
        return text_of(envelope, CellResult)


CELL = {
    "type": "object",
    "properties": {
        "code": {"type": "string", "minLength": 1, "maxLength": MAX_CODE_CHARS, "description": "Python code of the cell."},
        "timeout_seconds": {
            "type": "number", "exclusiveMinimum": 0, "maximum": MAX_TIMEOUT_SECONDS,
            "description": f"Interrupt the cell after this many seconds; {TIMEOUT_SECONDS:g} if left out.",
        },
    },
    "required": ["code"],
    "additionalProperties": False,
}  # fmt: skip


class IPythonKit(Kit):
    """``ipython`` runs a cell, ``ipython_restart`` starts a new kernel. The kernel runs in the sandbox, from the first cell on."""

    name = "ipython"

    def __init__(self, setting: KitContext) -> None:
        self._channel = Channel(setting.environment)
        self._cells = 0
        self._kind = ""
        self._actions = (
            _CellAction(
                "ipython",
                self.run,
                "Run Python code as a cell of an interactive kernel in the sandbox. Variables, imports and functions carry over to "
                "the next cell; the value of a last expression is shown. %pip install NAME installs packages, !COMMAND runs a "
                "command. A cell that raises an exception still ran: read its traceback.",
                CELL,
            ),
            Action("ipython_restart", self._restart, "Start a fresh Python kernel; all variables are lost."),
        )

    def actions(self) -> Sequence[Action]:
        return self._actions

    def describe(self) -> Mapping[str, str]:
        """Return whether a kernel is running, and how many cells it has run."""
        if self._channel.line is None or not self._kind:
            return {"ipython": "No kernel is running: the next cell starts a fresh one."}
        return {"ipython": f"{self._kind}, {self._cells} cell{'' if self._cells == 1 else 's'} run since it started."}

    def snapshot(self) -> Any:
        """Where the kernel is: it goes on in a sandbox that outlives this process."""
        line = self._channel.line
        if line is None:
            return None
        known = {"command": line.command, "nonce": line.nonce, "offset": line.offset, "asked": line.asked}
        return {**known, "cells": self._cells, "kind": self._kind}

    def restore(self, state: Any) -> None:
        """Restore the state. If the kernel is gone, the next cell reports it."""
        if state is None:
            self._channel.line = None
            return
        try:
            numbers = {key: int(state[key]) for key in ("offset", "asked", "cells")}
            line = Line(str(state["command"]), str(state["nonce"]), numbers["offset"], numbers["asked"])
            self._kind = str(state["kind"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"This is not the state of a kernel: {state!r:.200}") from error
        self._channel.line, self._cells = line, numbers["cells"]

    def cancel(self) -> None:
        """Interrupt the cell that runs, as Ctrl-C would; the kernel goes on."""
        self._channel.interrupt()

    def end(self) -> None:
        """End the kernel, if one runs: the next cell starts a fresh one."""
        self._channel.end()
        self._cells, self._kind = 0, ""

    def run(self, code: str, timeout_seconds: float = TIMEOUT_SECONDS) -> CellResult:
        """Return the output of a cell. Raises SandboxError ``timeout`` and ``kernel_died``, with the output so far."""
        starting = START_SECONDS if self._channel.line is None else SLACK_SECONDS
        told = self._channel.ask({"code": code, "seconds": timeout_seconds}, timeout_seconds + starting)
        self._note(told)
        result = _result(code, told)
        if "fault" in told:
            raise self._channel.lost(f"could not be driven ({told['fault'][:300]})")
        if "died" in told:
            self._cells = 0
            how = died(told["died"] + (" as the cell did not end in time" if told["interrupted"] else ""))
            how.result = result
            raise how
        self._cells += 1
        if told["interrupted"]:
            raise SandboxError(
                ErrorCode.timeout,
                f"The cell was interrupted after {timeout_seconds:g} seconds; the kernel has kept its variables.",
                "Do less in a cell, give it a larger timeout_seconds, or run it in the background with a command.",
                effects="partial",
                result=result,
            )
        return result

    def _restart(self) -> str:
        fresh = self._channel.line is None
        told = self._channel.ask({} if fresh else {"restart": True}, START_SECONDS)
        if "fault" in told:
            raise self._channel.lost(f"could not be driven ({told['fault'][:300]})")
        self._note(told)
        self._cells = 0
        return f"A fresh kernel is running ({self._kind}); all variables are lost."

    def _note(self, told: Mapping[str, Any]) -> None:
        name = "an IPython kernel" if told.get("kind") == "ipykernel" else "a plain Python kernel"
        self._kind = f"{name} with Python {told.get('python', '')[:20]}"


def _result(code: str, told: Mapping[str, Any]) -> CellResult:
    head, tail, total = told.get("head", ""), told.get("tail", ""), told["total"]
    hidden = max(total - len(head) - len(tail), 0)
    output = join_parts(head, LEFT_OUT.format(count=f"{hidden:,}"), tail) if hidden else head + tail
    output = _DATA_URI.sub(r"[\1: not shown]", output)
    output = plain(_LONG_BASE64.sub("[an image as base64: not shown]", output))
    if told["ok"] and _PIP.fullmatch(code):
        kept = [line for line in output.splitlines() if line.startswith(_PIP_SAYS)]
        output = "\n".join(kept) or output
    return CellResult(
        output=output, ok=told["ok"], interrupted=told["interrupted"], total_chars=total, truncated=hidden > 0
    )
