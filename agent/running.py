"""A run under way: its steps, its limits, and the one place where every way out of the loop becomes an AgentRun."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from .budget import Meter
from .hooks import Hooks, Step
from .memory import Memory
from .run import AgentRun
from .status import RunStatus, StopRun

log = logging.getLogger(__name__)


class Running:
    """Context of one run. Leaving it records the outcome with ``keep``, tells the hooks and swallows StopRun.

    What the brain raised ends the run as ``model_failed`` and is kept in the outcome. Ctrl-C and faults of hooks and
    languages are recorded and go on to the caller.
    """

    outcome: AgentRun

    def __init__(self, memory: Memory, hooks: Sequence[Hooks], meter: Meter, keep: Callable[[AgentRun], None]) -> None:
        self.memory = memory
        self.meter = meter
        self._hooks = hooks
        self._keep = keep
        self._steps: list[Step] = []
        self._invalid = 0

    def __enter__(self) -> Self:
        return self

    def begin(self, number: int, *, cancelled: bool) -> None:
        """Start a step. Raises StopRun when the run was cancelled, a limit is reached or nothing valid came for too
        long.
        """
        if cancelled:
            raise StopRun("The run was cancelled.", RunStatus.cancelled)
        if self._invalid >= self.meter.budget.max_invalid_replies:
            reason = f"{self._invalid} replies in a row held no action that could be carried out."
            raise StopRun(reason, RunStatus.no_valid_action)
        self.meter.check()
        self._steps.append(Step(number))
        for hook in self._hooks:
            hook.on_step_start(self._steps[-1], self.memory)

    def ask(self, brain: Callable[[], Any], prompt: Any) -> Any:
        """The brain's reply. Raises StopRun ``model_failed`` from what the brain raised."""
        try:
            response = brain()
        except StopRun:
            raise
        except Exception as error:
            log.info("the brain failed", exc_info=True)
            raise StopRun(str(error) or type(error).__name__, RunStatus.model_failed) from error
        self._change(prompt=prompt, response=response)
        return response

    def decided(self, tool: Any, args: Any, thought: str) -> None:
        """The reply was read; ``tool`` is None if it could not be. ``thought`` is what it says beside the action."""
        self._change(tool=tool if tool is None else str(tool), args=args, thought=thought)
        for hook in self._hooks:
            hook.on_action(self._steps[-1], self.memory)

    def answered(self, envelope: dict[str, Any], *, valid: bool) -> None:
        """The envelope is in the memory; ``valid`` is False where nothing was handed to the environment."""
        self._invalid = 0 if valid else self._invalid + 1
        self._change(envelope=envelope)
        for hook in self._hooks:
            hook.on_result(self._steps[-1], self.memory)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        stop = error if isinstance(error, StopRun) else _stop_for(error)
        cause = stop.__cause__ if isinstance(error, StopRun) else error
        self.outcome = AgentRun(
            status=stop.status,
            reason=stop.reason,
            memory=self.memory,
            steps=tuple(self._steps),
            result=stop.result,
            usage=self.meter.usage,
            seconds=self.meter.seconds,
            error=cause if isinstance(cause, Exception) else None,
        )
        self._keep(self.outcome)
        for hook in self._hooks:
            hook.on_terminate(self.outcome)
        return isinstance(error, StopRun)

    def _change(self, **fields: Any) -> None:
        before = sum(s.seconds for s in self._steps[:-1])
        self._steps[-1] = replace(self._steps[-1], seconds=self.meter.seconds - before, **fields)


def _stop_for(error: BaseException | None) -> StopRun:
    if isinstance(error, KeyboardInterrupt):
        return StopRun("The run was interrupted.", RunStatus.cancelled)
    return StopRun(f"{type(error).__name__}: {error}", RunStatus.failed)
