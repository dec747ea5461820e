"""Hooks: where a run can be watched and steered. All do nothing unless overridden."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sandbox.envelope import jsonable
from sandbox.text.invisible import visible

from .memory import Memory

if TYPE_CHECKING:
    from .run import AgentRun


@dataclass(frozen=True, slots=True)
class Step:
    """One turn of the loop as far as it has got; ``args`` are those of the invocation, ``envelope`` its answer. ``thought`` is what
    the reply says beside its action; all of it where no action could be read.
    """

    number: int
    prompt: Any = None
    response: Any = None
    tool: str | None = None
    args: Any = None
    envelope: dict[str, Any] | None = None
    seconds: float = 0.0
    thought: str = ""

    def __repr__(self) -> str:
        return step_text("Step", self.number, self.tool, self.envelope, self.seconds)


class Hooks:
    """Methods that the loop calls: override those you need. A hook may add to the memory, or raise StopRun to end the run."""

    def on_resume(self, behind: int) -> None:
        """Called before the first step of a run that is resumed from its log: ``behind`` steps had ended, and ``step.number``
        begins at 1.
        """

    def on_step_start(self, step: Step, memory: Memory) -> None:
        """Called before the prompt is made; ``step`` has its number."""

    def on_action(self, step: Step, memory: Memory) -> None:
        """Called after the reply was parsed, before anything is carried out; ``step.tool`` is None if no action could be read."""

    def on_result(self, step: Step, memory: Memory) -> None:
        """Called after the answer was added to the memory."""

    def on_terminate(self, run: AgentRun) -> None:
        """Called after the last step, however the run ended."""


class PrintingHooks(Hooks):
    """What ``verbose=True`` installs: decision and result of each step, on standard output."""

    def on_step_start(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        """Print the number of the step."""
        print(f"── step {step.number}")  # noqa: T201

    def on_action(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        """Print the decision."""
        decision = step.response if isinstance(step.response, str) else f"{step.tool} {_short(step.args)}"
        print(f"Decision ← {decision}")  # noqa: T201

    def on_result(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        """Print the envelope."""
        print(f"Result ← {_short(step.envelope)}")  # noqa: T201

    def on_terminate(self, run: AgentRun) -> None:
        """Print how the run ended."""
        print(f"Ended: {run.status.value} ({run.reason})")  # noqa: T201


def step_text(kind: str, number: int, tool: str | None, envelope: Mapping[str, Any] | None, seconds: float) -> str:
    """One line for the ``repr`` of a step, whatever its tool is called and however long its texts are."""
    name = "no action" if tool is None else visible(tool[:64], one_line=True)
    code = None if envelope is None else "ok" if envelope.get("tool_executed") is True else envelope.get("code") or "failed"
    return f"{kind}({number}, {name}, {'not answered' if code is None else str(code)[:64]}, {seconds:.1f} s)"


def _short(value: Any) -> str:
    text = json.dumps(jsonable(value), ensure_ascii=False)
    return text if len(text) <= 2000 else f"{text[:2000]}…"
