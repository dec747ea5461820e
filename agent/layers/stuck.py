"""Warn an agent that goes in circles, and stop it if it goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from agent.core.loop.hooks import Hooks, Step
from agent.core.loop.layers import Layer
from agent.core.status import RunStatus, StopRun
from agent.memory import Memory
from sandbox.frozen import dataclass

from .sameness import print_of_action, print_of_answer

# Marks our own words among the messages of the user's role; any other such message is taken for the user's.
MARK = "nudge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """How many repetitions in a row cause an alarm; 0 switches a pattern off.

    ``same_answer``: the same action with the same answer. ``same_error``: the same action that fails the same way.
    ``monologue``: replies without an action, or with one of ``talking``; if none contained an action, there is only a nudge, since
    the loop has its own limit for these. ``alternating``: steps of a cycle of two or three different actions that always
    get the same answers. An alarm within ``patience`` steps after a nudge ends the run; a later one is another nudge, up to
    ``nudges`` in all. Raises ValueError for a negative value, or 1.
    """

    same_answer: int = 4
    same_error: int = 3
    monologue: int = 4
    alternating: int = 6
    patience: int = 12
    nudges: int = 3
    talking: tuple[str, ...] = ("think", "message")

    def __post_init__(self) -> None:
        object.__setattr__(self, "talking", tuple(self.talking))
        for name in ("same_answer", "same_error", "monologue", "alternating"):
            value = getattr(self, name)
            if value < 0 or value == 1:
                raise ValueError(f"{name} must be 0 (off) or at least 2, got {value!r}.")
        if self.patience < 1 or self.nudges < 0:
            raise ValueError("patience must be at least 1 and nudges not negative.")


@dataclass(frozen=True, slots=True)
class Trace:
    """The parts of a step that are compared."""

    tool: str | None
    action: str
    answer: str
    failed: bool
    talk: bool
    words: str = ""

    @property
    def whole(self) -> tuple[str, str]:
        """Action and answer."""
        return self.action, self.answer


@dataclass(frozen=True, slots=True)
class Alarm:
    """A pattern that was found, the words for it, and whether it may end the run."""

    pattern: str
    words: str
    ends: bool = True


class StuckDetector(Hooks):
    """A hook that watches the steps of a run. The first alarm is a message to the agent; a second one soon after ends the run
    as ``stuck``.

    Steps are compared without times, ids and addresses, so that a test that fails twice counts as the same failure, and polling
    with changing output is not a repetition. A message of the user resets the count. ``masked`` hides the environment's secrets
    in messages.
    """

    def __init__(self, thresholds: Thresholds | None = None, masked: Callable[[str], str] = str) -> None:
        self.thresholds, self._masked = thresholds or Thresholds(), masked
        self._traces: list[Trace] = []
        self._seen = 0
        self._nudges: list[int] = []

    def on_step_start(self, step: Step, memory: Memory) -> None:
        """Reset the count when a run begins or the user has sent a message."""
        items: list[Any] = memory.items if isinstance(getattr(memory, "items", None), list) else []  # one of another kind
        if len(items) < self._seen:
            self._seen = 0
        new = [m for m in items[self._seen :] if isinstance(m, Mapping)]
        spoken = any(m.get("role") == "user" and MARK not in m for m in new)
        if spoken or step.number == 1:
            self._traces, self._nudges = [], []
        self._seen = len(items)

    def on_result(self, step: Step, memory: Memory) -> None:
        """Look at the latest steps. Raises StopRun ``stuck``."""
        t, trace = self.thresholds, trace_of(step, self.thresholds, self._masked)
        if step.index and trace.talk:
            return  # replies are counted, not the calls of one
        self._traces = [*self._traces, trace][-_longest(t) :]
        alarm = next(alarms(self._traces, t), None)
        if alarm is None:
            return
        told = len(self._nudges)
        soon = bool(told) and step.number - self._nudges[-1] <= t.patience
        if alarm.ends and (soon or told >= t.nudges):
            after = " after a warning" if told else ""
            raise StopRun(f"The agent went in circles{after}: {alarm.words}", RunStatus.stuck)
        self._nudges.append(step.number)
        self._traces = []
        memory.add_memory({"role": "user", "content": nudge(alarm), MARK: alarm.pattern})


class StuckNotices(Layer):
    """A layer that adds a notice to each prompt while the agent goes in circles. It ends no run and adds nothing to the memory."""

    def __init__(self, thresholds: Thresholds | None = None, masked: Callable[[str], str] = str) -> None:
        self.thresholds, self._masked = thresholds or Thresholds(), masked
        self._traces: list[Trace] = []

    def before_step(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        if step.number == 1:
            self._traces = []

    def after_answer(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        trace = trace_of(step, self.thresholds, self._masked)
        if not (step.index and trace.talk):  # replies are counted, not the calls of one
            self._traces = [*self._traces, trace][-_longest(self.thresholds) :]

    def sections(self) -> Mapping[str, str]:
        alarm = next(alarms(self._traces, self.thresholds), None)
        return {} if alarm is None else {"repetition": nudge(alarm, ends=False)}


def nudge(alarm: Alarm, *, ends: bool = True) -> str:
    """Return the message for the agent; ``ends`` says that the run ends if it goes on."""
    warning = ", and the run ends if you go on" if ends else ""
    return (
        f"[You are going in circles: {alarm.words} Doing it again will not help{warning}. Look at the answers, and do "
        "something else: another tool, other arguments, a smaller step. If you wait for something, wait for it in one call. If you "
        "cannot go on, finish and say what is in the way.]"
    )


def trace_of(step: Step, thresholds: Thresholds, masked: Callable[[str], str] = str) -> Trace:
    """Return the parts of ``step`` that are compared."""
    envelope = step.envelope or {}
    args = masked(json.dumps(step.args, ensure_ascii=False, sort_keys=True, default=repr))
    return Trace(
        tool=step.tool,
        action=print_of_action(step.tool, step.args),
        answer=print_of_answer(envelope),
        failed=envelope.get("tool_executed") is not True,
        talk=step.tool is None or step.tool in thresholds.talking,
        words=f"{step.tool} {args[:120]}{'…' if len(args) > 120 else ''}",
    )


def alarms(traces: Sequence[Trace], t: Thresholds) -> Iterator[Alarm]:
    """Return the patterns that the latest steps show, the simplest first."""
    if t.same_error and _same(tail := traces[-t.same_error :], t.same_error) and tail[-1].failed and tail[-1].tool:
        yield Alarm("same_error", f"{tail[-1].words} failed {t.same_error} times in a row in the same way.")
    if t.same_answer and _same(tail := traces[-t.same_answer :], t.same_answer) and tail[-1].tool:
        yield Alarm("same_answer", f"{tail[-1].words} got the same answer {t.same_answer} times in a row.")
    if t.monologue and len(tail := traces[-t.monologue :]) == t.monologue and all(trace.talk for trace in tail):
        words = f"{t.monologue} replies in a row did nothing but talk."
        yield Alarm("monologue", words, ends=any(trace.tool for trace in tail))
    yield from _cycles(traces, t)


def _same(tail: Sequence[Trace], count: int) -> bool:
    return len(tail) == count and len({trace.whole for trace in tail}) == 1


def _cycles(traces: Sequence[Trace], t: Thresholds) -> Iterator[Alarm]:
    """Two or three different steps that follow each other over and over."""
    if not t.alternating:
        return
    for length in (2, 3):
        count = max(t.alternating, 2 * length)
        tail = [trace.whole for trace in traces[-count:]]
        turns = len(tail) == count and all(tail[i] == tail[i - length] for i in range(length, count))
        if turns and len(set(tail)) == length:
            names = ", ".join(trace.words for trace in traces[-length:])
            yield Alarm("alternating", f"the last {count} steps were {names} in turn, always with the same answers.")


def _longest(t: Thresholds) -> int:
    return max(t.same_answer, t.same_error, t.monologue, t.alternating, 6)
