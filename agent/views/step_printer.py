"""Prints step views as lines on a screen: the one form that a person sees on a terminal, live and later."""

from __future__ import annotations

from itertools import groupby

from sandbox.frozen import dataclass
from sandbox.text.excerpt import few_lines
from sandbox.text.invisible import visible, visible_output
from sandbox.text.wrapping import wrap

from .screen import Screen, diff_style
from .step_view import CallView, StepView, has_diff


@dataclass(frozen=True, slots=True)
class Limits:
    """How many lines of each part are shown, and characters of a line; the page and ``--json`` have all."""

    thought: int
    call: int
    answer: int
    diff: int
    line_chars: int


LIVE = Limits(thought=6, call=6, answer=12, diff=24, line_chars=200)
LATER = Limits(thought=12, call=12, answer=24, diff=40, line_chars=1000)


class StepPrinter:
    """Prints on ``screen``. With ``width``, lines are wrapped to so many columns; ``margin`` stands before each of them."""

    def __init__(self, screen: Screen, limits: Limits, width: int | None = None, margin: str = "") -> None:
        self.screen, self.limits, self.width, self.margin = screen, limits, width, margin

    def heading(self, step: StepView) -> None:
        """Print the number of a step, what it used if that is known, and its thought."""
        self.line("")
        thought = few_lines(step.thought, self.limits.thought, self.limits.line_chars)
        if not step.spent:
            self.line(thought, f"[{step.mark}] ", "bold", rest="  ")
            return
        self.line(step.spent, f"[{step.mark}] ", "bold")
        if thought:
            self.line(thought, "  ")

    def call(self, call: CallView) -> None:
        """Print the tool and the summary of its arguments."""
        if call.tool is None:
            self.line("no action could be read", "  → ", "yellow")
            return
        name = visible(call.tool, one_line=True)
        self.line(few_lines(call.summary, self.limits.call, self.limits.line_chars), f"  → {name} ", "cyan")

    def answer(self, call: CallView) -> None:
        """Print the answer, and the diff of what the call changed."""
        if call.unanswered:
            self.note(call.unanswered)
        elif call.answer:
            text = few_lines(visible_output(call.answer), self.limits.answer, self.limits.line_chars)
            if has_diff(text):
                self._diff(text.split("\n"), "    ", "    ")
            else:
                self.line(text, "    ", "red" if call.failed else "dim")
        self.changes(call)

    def changes(self, call: CallView) -> None:
        """Print the diff of a call, each line in its colour, and what the diff lacks."""
        lines = few_lines(call.diff, self.limits.diff, self.limits.line_chars).split("\n") if call.diff else []
        self._diff([*lines, *call.missing], "    ± ", "      ")

    def _diff(self, lines: list[str], first: str, rest: str) -> None:
        for style, group in groupby(lines, lambda line: diff_style(line, "dim")):
            self.line("\n".join(group), first, style)
            first = rest

    def note(self, text: str, style: str = "yellow") -> None:
        """Print something that happened to a call, or between steps."""
        self.line(few_lines(text, self.limits.thought, self.limits.line_chars), "    ", style)

    def line(self, text: str, first: str = "", style: str = "", *, rest: str | None = None) -> None:
        """Print lines with ``first`` before the first one, and ``rest`` before the others, blanks unless given."""
        rest = " " * min(len(first), 8) if rest is None else rest
        if self.width is None:
            lines = visible(text).split("\n")
            shown = "\n".join(f"{first if n == 0 else rest}{line}".rstrip() for n, line in enumerate(lines))
        else:
            shown = wrap(visible(text), self.width, self.margin + first, self.margin + rest)
        self.screen.line(shown, style)
