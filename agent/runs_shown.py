"""The command ``gamebox runs show``: a run as a person reads it, on a terminal of any width or in a pipe."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent.trajectory.wording import answer_of, readable_diff
from sandbox.cli.run import print_json
from sandbox.envelope import jsonable
from sandbox.text.invisible import visible, visible_output
from sandbox.text.wrapping import wrap

from . import events as ev
from .answers import with_mark
from .budget import Usage
from .events import Event
from .runs_story import Moment, Story, story_of
from .show import Screen, call_text
from .store import StepRecord, existing

# Lines of a thought, of a call and of an answer that are shown; --json and the page have all.
THOUGHT_LINES, CALL_LINES, ANSWER_LINES = 12, 12, 24
LINE_CHARS = 1000


def show_run(run: str, log: Path | None, *, as_json: bool) -> int:
    """The command ``gamebox runs show``."""
    with existing(log, read_only=True) as events:
        story = story_of(events, run)
    if as_json:
        print_json(jsonable(story.to_dict()))
    else:
        Teller(Screen(sys.stdout), shutil.get_terminal_size((80, 24)).columns).run(story)
    return 0


class Teller:
    """Tells of runs on ``screen`` in lines of ``width`` columns; ``margin`` stands before each, for a part of another run."""

    def __init__(self, screen: Screen, width: int, margin: str = "") -> None:
        self.screen, self.width, self.margin = screen, width, margin

    def run(self, story: Story) -> None:
        """All of a run."""
        record = story.record
        self._line(f"{record.run}  {story.status}  {_cut(record.task, THOUGHT_LINES)}", style="bold")
        model = record.options.get("model")
        facts = [record.agent and f"agent {record.agent}", model and f"model {model}", f"began {_time(record.began)}"]
        self._line(", ".join(fact for fact in facts if fact), style="dim")
        self._moments(story.moments.get(0, []))
        for step in record.steps:
            self.step(step, story)
        for part in story.parts.get(None, ()):
            self._part(part)
        for fault in story.unread:
            self._line(f"a part of it cannot be read: {fault}", style="red")
        self._line("")
        self._line(f"{story.status}{f': {record.reason}' if record.reason else ''}", style="bold")
        steps = f"{len(record.steps)} step{'' if len(record.steps) == 1 else 's'}"
        resumed = f", resumed {record.resumed} time{'' if record.resumed == 1 else 's'}" if record.resumed else ""
        self._line(f"{steps}, {spent(record.usage, record.seconds)}{resumed}")

    def step(self, step: StepRecord, story: Story) -> None:
        """A step: what it used, thought, call, approval, the parts that it began, the answer; then what came before the next."""
        self._line("")
        self._line(spent(step.usage, step.seconds) if step.ended else "", f"[{step.number}] ", "bold")
        thought = _cut(step.thought, THOUGHT_LINES)
        if thought:
            self._line(thought, "  ")
        if step.tool is not None:
            name = visible(step.tool, one_line=True)
            self._line(_cut(call_text(step.tool, step.args, step.call), CALL_LINES), f"  → {name} ", "cyan")
        elif step.decided is not None:
            self._line("no action could be read", "  → ", "yellow")
        moments = story.moments.get(step.number, [])
        approvals = [
            moment for moment in moments if isinstance(moment.event, ev.ApprovalRequested | ev.ApprovalAnswered)
        ]
        self._moments(approvals)
        if step.requested is not None and step.answered is None:
            self._line("it waits for an approval", "    ", "yellow")
        for part in story.parts.get(step.number, ()):
            self._part(part)
        self._answer(step)
        if step.changed is not None:
            told = [readable_diff(step.changed.patch.rstrip("\n")), *step.changed.left_out]
            self._line(_cut("\n".join(part for part in told if part), ANSWER_LINES), "    ± ", "dim")
        self._moments([moment for moment in moments if moment not in approvals])

    def _answer(self, step: StepRecord) -> None:
        if step.envelope is None:
            begun = "it was begun, and not answered" if step.started is not None else "it was not carried out"
            self._line(begun, "    ", "yellow")
            return
        failed = step.envelope.get("tool_executed") is not True
        answer = visible_output(with_mark(answer_of(step.tool, step.envelope, step.shown), step.envelope))
        self._line(_cut(answer, ANSWER_LINES), "    ", "red" if failed else "dim")

    def _part(self, part: Story) -> None:
        Teller(self.screen, self.width, f"{self.margin}    │ ").run(part)

    def _moments(self, moments: list[Moment]) -> None:
        for moment in moments:
            self._line(_cut(_told(moment.event), THOUGHT_LINES), "    ", "yellow")

    def _line(self, text: str, first: str = "", style: str = "") -> None:
        rest = self.margin + " " * min(len(first), 8)
        self.screen.line(wrap(visible(text), self.width, self.margin + first, rest), style)


def spent(usage: Usage, seconds: float) -> str:
    """What was used, in a line."""
    if not usage.calls:
        return f"{seconds:.1f} s"
    failed = f" ({usage.failed_calls} failed)" if usage.failed_calls else ""
    calls = f"{usage.calls} model call{'' if usage.calls == 1 else 's'}{failed}"
    return f"{seconds:.1f} s, {calls}, {usage.input_tokens} + {usage.output_tokens} tokens, {cost(usage)}"


def cost(usage: Usage | Mapping[str, Any]) -> str:
    """What calls cost; "unknown" where one had no price."""
    known = usage if isinstance(usage, Usage) else Usage(**usage)
    return "unknown" if known.unpriced_calls else f"${known.cost_usd:.4f}"


def _told(event: Event) -> str:
    match event:
        case ev.UserSpoke():
            return f"the user said: {event.text}"
        case ev.MessageAdded():
            content, role = event.message.get("content"), event.message.get("role")
            text = content if isinstance(content, str) else json.dumps(jsonable(content), ensure_ascii=False)
            return f"it was told: {text}" if role == "user" else f"in its memory as {role}: {text}"
        case ev.RunResumed():
            return _resumed(event)
        case ev.ApprovalRequested():
            return f"approval asked for: risk {event.risk or 'not known'}{''.join(f', {why}' for why in event.reasons)}"
        case ev.ApprovalAnswered():
            return _approval(event)
        case ev.RunEnded():
            return f"the run stopped here ({event.status}): {event.reason}"
        case _:
            return "the memory was condensed: the agent sees less than all of what is above"


def _resumed(event: ev.RunResumed) -> str:
    where = "resumed in a new sandbox" if event.fresh else "resumed"
    said = [str(note.get("content")) for note in event.notes if note.get("source") == "user"]
    return "; ".join([where, *(f"the user said: {text}" for text in said)])


def _approval(event: ev.ApprovalAnswered) -> str:
    if event.verdict == "reject":
        return f"rejected: {event.reason or 'no reason was given'}"
    how = f", for the session up to risk {event.risk}" if event.for_session else ""
    if event.verdict == "edit":
        return f"approved with other arguments{how}: {json.dumps(jsonable(event.args), ensure_ascii=False)}"
    return f"approved{how}{f': {event.reason}' if event.reason else ''}"


def _time(text: str) -> str:
    return text[:19].replace("T", " ")


def _cut(text: str, most: int) -> str:
    lines = [
        line if len(line) <= LINE_CHARS else f"{line[:LINE_CHARS]}… {len(line) - LINE_CHARS} characters more"
        for line in text.split("\n")
    ]
    if len(lines) <= most:
        return "\n".join(lines)
    half = most // 2
    return "\n".join([*lines[:half], f"… {len(lines) - 2 * half} lines …", *lines[-half:]])
