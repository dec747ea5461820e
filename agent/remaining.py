"""What an agent is told, in each prompt, of what is left for it."""

from __future__ import annotations

from sandbox.environment.base import Environment

from .budget import Meter, current_meter
from .hooks import Hooks, Step
from .memory import Memory
from .wrapped import WrappedEnvironment


class RemainingEnvironment(WrappedEnvironment):
    """``inner``, whose description also says which step this is of how many, and what is left of each limit that is set.

    ``counting`` is the hook that tells it the steps.
    """

    def __init__(self, inner: Environment) -> None:
        super().__init__(inner)
        self.counting = _Counting()

    def describe(self) -> dict[str, str]:
        """What ``inner`` says; within a run, and what is left of it."""
        meter, said = current_meter(), dict(self.inner.describe())
        if meter is not None and self.counting.number:
            said["budget"] = _said(meter, self.counting.number, self.counting.behind)
        return said


class _Counting(Hooks):
    def __init__(self) -> None:
        self.number = self.behind = 0

    def on_resume(self, behind: int) -> None:
        """The steps of a run that goes on are counted on."""
        self.behind = behind

    def on_step_start(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        self.number = step.number


def _said(meter: Meter, number: int, behind: int) -> str:
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
    return f"This is step {behind + number} of {behind + budget.max_iterations}, after which the run ends.{left}"
