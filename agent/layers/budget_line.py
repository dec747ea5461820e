"""The budget line: what is left of a run, in each prompt."""

from __future__ import annotations

from collections.abc import Mapping

from agent.core.budget import Meter, current_meter
from agent.core.loop.layers import Layer
from agent.core.run import AgentRun, Step
from agent.memory import Memory


class BudgetLine(Layer):
    """Adds a section to each prompt: which step this is of how many, and what is left of each limit that is set."""

    def __init__(self) -> None:
        self._number = self._behind = 0

    def on_resume(self, behind: int) -> None:
        """Continue the count of a run that is resumed."""
        self._behind = behind

    def before_step(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        self._number = step.number

    def sections(self) -> Mapping[str, str]:
        meter = current_meter()
        return {} if meter is None else {"budget": _budget_text(meter, self._number, self._behind)}

    def after_run(self, run: AgentRun) -> None:  # noqa: ARG002
        self._number = self._behind = 0


def _budget_text(meter: Meter, number: int, behind: int) -> str:
    budget, used = meter.budget, meter.usage
    parts = []
    seconds = meter.seconds_left()
    if seconds is not None:
        parts.append(f"{seconds:.0f} seconds")
    if budget.max_tokens is not None:
        parts.append(f"{max(budget.max_tokens - used.total_tokens, 0)} tokens")
    if budget.max_cost_usd is not None:
        parts.append(f"${max(budget.max_cost_usd - used.cost_usd, 0):.4f}")
    left = f" There are {', '.join(parts)} left." if parts else ""
    return f"This is step {behind + number} of {behind + budget.max_iterations}; the run ends after the last one.{left}"
