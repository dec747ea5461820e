"""A run: its steps, its progress, and its outcome with status, reason, memory and usage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from agent.memory import Memory
from agent.model.brain import ModelError, ScriptEndedError
from sandbox.envelope import jsonable
from sandbox.frozen import dataclass
from sandbox.text.invisible import visible

from .budget import Meter, Usage
from .status import End, RunStatus


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """One tool call of a reply and its answer; ``tool`` is None if no action could be read, ``envelope`` until it is answered."""

    tool: str | None = None
    args: Any = None
    envelope: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One turn of the loop, as far as it has got.

    ``tool``, ``args`` and ``envelope`` are those of the first call; in ``on_action`` and ``on_result`` of hooks they are those of
    call number ``index`` of the reply, which counts from 0. ``calls`` has all of them. ``thought`` is the text beside the calls, or
    the whole text if no action could be read. ``seconds`` is how long the step has taken.
    """

    number: int
    prompt: Any = None
    response: Any = None
    tool: str | None = None
    args: Any = None
    envelope: dict[str, Any] | None = None
    seconds: float = 0.0
    thought: str = ""
    index: int = 0
    calls: tuple[CallOutcome, ...] = ()

    def __repr__(self) -> str:
        return step_text("Step", self.number, self.tool, self.envelope, self.seconds)


def step_text(kind: str, number: int, tool: str | None, envelope: Mapping[str, Any] | None, seconds: float) -> str:
    """Return one line for the ``repr`` of a step, however long the texts of its tool call are."""
    name = "no action" if tool is None else visible(tool[:64], one_line=True)
    code = None if envelope is None else "ok" if envelope.get("tool_executed") is True else envelope.get("code") or "failed"
    return f"{kind}({number}, {name}, {'not answered' if code is None else str(code)[:64]}, {seconds:.1f} s)"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRun:
    """The result of ``Agent.execute``. ``result`` is the answer of the terminal action, ``error`` an exception that a part
    raised.
    """

    status: RunStatus
    reason: str
    memory: Memory
    steps: tuple[Step, ...] = ()
    result: Any = None
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    error: Exception | None = None

    @property
    def ok(self) -> bool:
        """True if a terminal action was carried out."""
        return self.status is RunStatus.finished

    @property
    def waits(self) -> bool:
        """Whether it ended for a reason that may pass: it was paused, its environment cannot be reached, or its model did not
        answer.
        """
        if self.status is RunStatus.model_failed:
            return isinstance(self.error, ModelError) and not isinstance(self.error, ScriptEndedError)
        return self.status in (RunStatus.paused, RunStatus.environment_lost)

    @property
    def iterations(self) -> int:
        """The number of steps that were begun."""
        return len(self.steps)

    def __repr__(self) -> str:
        steps = f"{len(self.steps)} step{'' if len(self.steps) == 1 else 's'}"
        cost = f", {self.usage.cost_text}" if self.usage.calls else ""
        return f"AgentRun({self.status.value}, {steps}, {self.seconds:.1f} s{cost})"

    def to_dict(self) -> dict[str, Any]:
        """The run as JSON-ready data, without prompts."""
        u = self.usage
        return {
            "status": self.status.value,
            "reason": self.reason,
            "result": jsonable(self.result),
            "iterations": self.iterations,
            "seconds": round(self.seconds, 3),
            "usage": {
                "calls": u.calls,
                "failed_calls": u.failed_calls,
                "input_tokens": u.input_tokens,
                "output_tokens": u.output_tokens,
                "estimated_tokens": u.estimated_tokens,
                "cached_tokens": u.cached_tokens,
                "cache_write_tokens": u.cache_write_tokens,
                "reasoning_tokens": u.reasoning_tokens,
                "cost_usd": None if u.unpriced_calls else round(u.cost_usd, 6),
            },
            "steps": [
                {"number": s.number, "tool": s.tool, "args": jsonable(s.args), "envelope": jsonable(s.envelope)}
                for s in self.steps
            ],
        }


@dataclass(slots=True)
class Progress:
    """A run under way, as the loop and its driver see it."""

    memory: Memory
    meter: Meter
    steps: list[Step] = field(default_factory=list)
    _seconds_before: float = 0.0

    @property
    def step(self) -> Step:
        """The step under way."""
        return self.steps[-1]

    def begin(self, number: int) -> None:
        """Begin a step."""
        self._seconds_before += self.steps[-1].seconds if self.steps else 0.0
        self.steps.append(Step(number))

    def change(self, **fields: Any) -> None:
        """Set fields of the step under way, and how long it has taken."""
        self.steps[-1] = replace(self.steps[-1], seconds=self.meter.seconds - self._seconds_before, **fields)

    def end(self, end: End) -> AgentRun:
        """Return the outcome of the run, which ends here."""
        return AgentRun(
            status=end.status,
            reason=end.reason,
            memory=self.memory,
            steps=tuple(self.steps),
            result=end.result,
            usage=self.meter.usage,
            seconds=self.meter.seconds,
            error=end.error,
        )
