"""Hooks: the plainest layer, to watch and steer a run. All methods do nothing unless overridden."""

from __future__ import annotations

import json
from typing import Any

from agent.core.run import AgentRun, Step, step_text
from agent.memory import Memory
from sandbox.envelope import jsonable

from .layers import Layer

__all__ = ["Hooks", "PrintingHooks", "Step", "step_text"]


class Hooks(Layer):
    """Override what is of interest. A hook may add to the memory, or raise StopRun to end the run."""

    def on_resume(self, behind: int) -> None:
        """Called before the first step of a run that continues from its log: ``behind`` steps had ended, and ``step.number`` begins
        at 1.
        """

    def on_step_start(self, step: Step, memory: Memory) -> None:
        """Called before the prompt is made; ``step`` has its number."""

    def on_action(self, step: Step, memory: Memory) -> None:
        """Called after the reply was read, before anything is carried out, once for each call of the reply. ``step.tool`` is None
        if no action could be read.
        """

    def on_result(self, step: Step, memory: Memory) -> None:
        """Called after the answers were added to the memory, once for each call of the reply."""

    def on_terminate(self, run: AgentRun) -> None:
        """Called after the last step, however the run ended."""

    def before_step(self, step: Step, memory: Memory) -> None:
        self.on_step_start(step, memory)

    def after_decision(self, step: Step, memory: Memory) -> None:
        self.on_action(step, memory)

    def after_answer(self, step: Step, memory: Memory) -> None:
        self.on_result(step, memory)

    def after_run(self, run: AgentRun) -> None:
        self.on_terminate(run)


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


def _short(value: Any) -> str:
    text = json.dumps(jsonable(value), ensure_ascii=False)
    return text if len(text) <= 2000 else f"{text[:2000]}…"
