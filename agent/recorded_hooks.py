"""Where a recorder stands among the hooks of a run: before all others, and behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .envelopes import LOST
from .hooks import Hooks, Step
from .memory import Memory
from .run import AgentRun

if TYPE_CHECKING:
    from .recording import Recorder


class First(Hooks):
    """Sees each step before any other hook does."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def on_step_start(self, step: Step, memory: Memory) -> None:
        """See the base class."""
        self.recorder.begin(step.number, memory)

    def on_action(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        """See the base class."""
        self.recorder.decide(step)

    def on_result(self, step: Step, memory: Memory) -> None:
        """See the base class."""
        self.recorder.result(step, memory)


class Last(Hooks):
    """Sees what the other hooks have added to the memory, and the end."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def on_step_start(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        """See the base class."""
        self.recorder.catch_up(memory)

    def on_result(self, step: Step, memory: Memory) -> None:
        """See the base class."""
        if (step.envelope or {}).get("code") not in LOST:
            self.recorder.catch_up(memory)

    def on_terminate(self, run: AgentRun) -> None:
        """See the base class."""
        self.recorder.end(run)
