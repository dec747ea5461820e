"""The live view of a run: each step as it happens, on standard error, with colours on a terminal and plain lines
elsewhere. On a terminal the last lines of a command's output are seen while it runs (see ``status_line``).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, TextIO

from sandbox.cli.status_line import terminal, terminal_columns
from sandbox.envelope import jsonable
from sandbox.text.invisible import visible, visible_output
from sandbox.text.wrapping import wrap

from .hooks import Hooks, Step
from .memory import Memory
from .registry import ActionRegistry
from .run import AgentRun

if TYPE_CHECKING:
    from rich.console import Console

RESULT_LINES = 12
LINE_CHARS = 200
OTHER_CHARS = 60
class Screen:
    """Lines with a style on a stream, in which nothing is hidden (see ``visible``); rich is imported only for a terminal."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = sys.stderr if stream is None else stream
        self._console: Console | None = None
        if self.stream.isatty():
            from rich.console import Console

            self._console = Console(file=self.stream, highlight=False, soft_wrap=True)

    @property
    def console(self) -> Console | None:
        """rich's, on a terminal; else None."""
        return self._console

    def line(self, text: str, style: str = "") -> None:
        """Show one or several lines."""
        terminal().clear()
        if self._console is None:
            self.stream.write(f"{visible(text)}\n")
            self.stream.flush()
            return
        from rich.text import Text

        width = terminal_columns(self.stream)
        lines = "\n".join(_indented(line, width) for line in visible(text).split("\n"))
        self._console.print(Text(lines, style=style))

    def diff(self, text: str) -> None:
        """Show a diff: coloured on a terminal, byte for byte elsewhere, so that it can be applied."""
        if self._console is None:
            self.stream.write(text)
            self.stream.flush()
            return
        from rich.text import Text

        terminal().clear()
        styles = {"+": "green", "-": "red", "@": "cyan", "d": "bold"}
        for line in text.removesuffix("\n").split("\n"):
            self._console.print(Text(visible(line), style=styles.get(line[:1], "")))


def _indented(line: str, width: int) -> str:
    """The line in as many as it needs, all but the first indented further than it is."""
    words = line.lstrip(" ")
    before = line[: len(line) - len(words)]
    return wrap(words, width, before, f"{before}  ")


class LiveView(Hooks):
    """Shows what the agent thinks, does and gets back; each step with ``name``, if there is one."""

    def __init__(self, screen: Screen, registry: ActionRegistry, name: str = "") -> None:
        self.screen = screen
        self.registry = registry
        self.name = name
        self._behind = 0

    def on_resume(self, behind: int) -> None:
        """Count on from there."""
        self._behind = behind

    def on_step_start(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        """Say that the model is asked."""
        terminal().show(f"thinking · step {self._behind + step.number} · Ctrl-C pauses")

    def on_terminate(self, run: AgentRun) -> None:  # noqa: ARG002
        """Take the status line away."""
        terminal().hide()

    def on_action(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        """Show the thought and the call."""
        terminal().hide()
        mark = f"{self.name} {self._behind + step.number}".strip()
        self.screen.line(f"\n[{mark}] {shortened(step.thought, 6)}".rstrip(), "bold")
        if step.tool is not None:
            action = self.registry.get_action(step.tool)
            shown = main_argument(step.args, None if action is None else action.parameters)
            name = visible(step.tool, one_line=True)
            self.screen.line(f"  → {name} {shown}".rstrip(), "cyan")
            terminal().show(f"{name} · step {self._behind + step.number} · Ctrl-C pauses", with_output=True)

    def on_result(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        """Show the answer, cut to a few lines."""
        terminal().hide()
        envelope = step.envelope or {}
        action = self.registry.get_action(step.tool)
        from .answers import with_mark
        from .envelopes import text_of

        text = action.show(envelope) if action is not None else text_of(envelope)
        failed = envelope.get("tool_executed") is not True
        if action is not None and action.terminal and not failed:
            return  # the result of the run is told at its end
        shown = "\n".join(f"    {line}" for line in shortened(visible_output(with_mark(text, envelope)), RESULT_LINES).split("\n"))
        self.screen.line(shown, "red" if failed else "dim")


def main_argument(args: Any, parameters: Mapping[str, Any] | None = None) -> str:
    """What says most about a call, in a few lines: the argument that the action declares first, of those that must be given if
    any must; then the others by their names, in short. ``parameters`` is the action's schema; without one all go by their names,
    unless there is but one.
    """
    if not isinstance(args, Mapping) or not args:
        return "" if args is None or isinstance(args, Mapping) else shortened(_value(args), 3)
    names = _in_order(args, parameters or {})
    bare = parameters is not None or len(names) == 1
    main = shortened(_value(args[names[0]]), 3).replace("\n", "\n      ") if bare else ""
    others = " ".join(f"{name}={_short(args[name])}" for name in (names[1:] if bare else names))
    return f"{main} {others if len(others) <= LINE_CHARS else f'{others[:LINE_CHARS]}…'}".strip()


def call_text(tool: str, args: Any, call: str | None) -> str:
    """The same as the log has it; of one from before it was kept, by the operation that is called like the tool."""
    return call if isinstance(call, str) else main_argument(args, declared(tool))


def declared(tool: str) -> Mapping[str, Any] | None:
    """The schema of an operation's arguments; None for an action that is none."""
    from sandbox.operations import OPERATIONS, schema_of

    return schema_of(OPERATIONS[tool]) if tool in OPERATIONS else None


def _in_order(args: Mapping[str, Any], parameters: Mapping[str, Any]) -> list[str]:
    """The names of the arguments as they are declared, needed ones first; then those that are not declared."""
    declared = parameters.get("properties")
    needed = parameters.get("required")
    known = list(declared) if isinstance(declared, Mapping) else []
    first = [name for name in known if isinstance(needed, list | tuple) and name in needed]
    return [name for name in dict.fromkeys([*first, *known, *map(str, args)]) if name in args]


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(jsonable(value), ensure_ascii=False)


def _short(value: Any) -> str:
    text = json.dumps(jsonable(value), ensure_ascii=False)
    return text if len(text) <= OTHER_CHARS else f"{text[:OTHER_CHARS]}…"


def files(some: Collection[object]) -> str:
    """How many files: "1 file", "2 files"."""
    return f"{len(some)} file{'' if len(some) == 1 else 's'}"


def summary_line(run: AgentRun) -> str:
    """How the run ended and what it used, in one line."""
    u = run.usage
    tokens = f"{u.input_tokens} + {u.output_tokens} tokens"
    failed = f" ({u.failed_calls} failed)" if u.failed_calls else ""
    steps = f"{run.iterations} step{'' if run.iterations == 1 else 's'}"
    if not u.calls:
        return f"{run.status.value}: {run.reason} {steps}, {run.seconds:.1f} s, no model was called"
    calls = f"{u.calls} model call{'' if u.calls == 1 else 's'}{failed}"
    return f"{run.status.value}: {run.reason} {steps}, {run.seconds:.1f} s, {calls}, {tokens}, {u.cost_text}"


def shortened(text: str, lines: int) -> str:
    """``text`` with long lines cut, and the middle left out where it has more than ``lines``."""
    kept = [line if len(line) <= LINE_CHARS else f"{line[:LINE_CHARS]}…" for line in text.split("\n")]
    if len(kept) <= lines:
        return "\n".join(kept)
    half = lines // 2
    return "\n".join([*kept[:half], f"… {len(kept) - 2 * half} lines …", *kept[-half:]])
