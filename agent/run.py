"""What a run leaves: how it ended and why, its steps, its memory and what it used."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from agent.model.brain import ModelError, ScriptEndedError
from sandbox.envelope import jsonable

from .budget import Usage
from .hooks import Step
from .memory import Memory
from .status import RunStatus


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
                "cost_usd": None if u.unpriced_calls else round(u.cost_usd, 6),
            },
            "steps": [
                {"number": s.number, "tool": s.tool, "args": jsonable(s.args), "envelope": jsonable(s.envelope)}
                for s in self.steps
            ],
        }
