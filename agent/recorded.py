"""The environment and the brain of a recorded run: what is handed over is noted before and after, and never done twice."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from agent.model.brain import Brain
from agent.store.reading import StepRecord
from sandbox.envelope import Failure
from sandbox.environment.base import ActionLike, Environment
from sandbox.errors import ErrorCode
from sandbox.operations import OPERATIONS, Change

from .errors import AgentErrorCode
from .recording import Recorder
from .status import RunStatus, StopRun
from .wrapped import WrappedEnvironment

# Operations that change nothing, or to the same again: carried out once more they do no harm.
REPEATABLE = frozenset(name for name, request in OPERATIONS.items() if request.repeatable)

_recorder: ContextVar[Recorder | None] = ContextVar("gamebox_recorder", default=None)


def current_recorder() -> Recorder | None:
    """The recorder of the run whose action the caller carries out; None outside of one. A run begun there is a part of that."""
    return _recorder.get()


class RecordedEnvironment(WrappedEnvironment):
    """``inner`` with a record of each action: started before, executed after.

    An action of a run that was cut off is not simply carried out again: what was answered is answered again; what was started
    is asked for again by its request id, where the sandbox still is the same (``same``), or repeated where that does no harm;
    of all else the answer is that nobody knows (``effects_unknown``).
    """

    def __init__(self, inner: Environment, recorder: Recorder, *, same: bool = True) -> None:
        super().__init__(inner)
        self.recorder, self.same = recorder, same

    def execute_action(self, action: ActionLike, args: Any) -> dict[str, Any]:
        """See the base class."""
        known, replayed = self.recorder.handed(), self.recorder.replayed
        if known and replayed is not None and replayed.executed is not None:
            return dict(replayed.executed.envelope)
        if replayed is not None and not self.same:
            return self._answered(_gone(action, replayed))
        if replayed is not None and replayed.started is not None:
            return self._again(action, args, replayed)
        return self._carry_out(action, args, self._request_id(action))

    def _request_id(self, action: ActionLike) -> str | None:
        kind = OPERATIONS.get(str(getattr(action, "operation", None)))
        return (
            f"{self.recorder.run}-{self.recorder.step}"[-64:] if kind is not None and issubclass(kind, Change) else None
        )

    def _again(self, action: ActionLike, args: Any, replayed: StepRecord) -> dict[str, Any]:
        request_id = None if replayed.started is None else replayed.started.request_id
        if request_id is None and not is_repeatable(action):
            return self._answered(_unknown(action))
        envelope = self._carry_out(action, args, request_id)
        if (
            request_id is not None
            and envelope.get("code") == ErrorCode.invalid_arguments
            and request_id in str(envelope)
        ):
            return self._answered(_unknown(action))  # it was asked in other words, a masked secret among them
        return envelope

    def _carry_out(self, action: ActionLike, args: Any, request_id: str | None) -> dict[str, Any]:
        try:
            self.recorder.started(action, args, request_id)
        except StopRun as stop:
            return _unrecorded(action, stop)
        started = time.monotonic()
        token = _recorder.set(self.recorder)
        try:
            asked = args if request_id is None else {**args, "request_id": request_id}
            envelope = self.inner.execute_action(action, asked)
        except KeyboardInterrupt:
            self.recorder.stop(StopRun("The run was interrupted.", RunStatus.paused))
            return _interrupted(action)
        finally:
            _recorder.reset(token)
        try:
            self.recorder.executed(envelope, time.monotonic() - started, action)
        except StopRun:
            return envelope  # the loop is told by the hook that comes next
        return envelope

    def _answered(self, failure: Failure[Any]) -> dict[str, Any]:
        envelope = failure.to_dict()
        try:
            self.recorder.executed(envelope, 0.0)
        except StopRun as stop:
            self.recorder.stop(stop)
        return envelope


class RecordedBrain:
    """A brain of a recorded run. The first reply of one that is resumed in the middle of a step is the one that is in the log;
    Ctrl-C pauses the run.
    """

    def __init__(self, brain: Brain, recorder: Recorder) -> None:
        self.brain, self.recorder = brain, recorder

    def __call__(self, prompt: Any, /) -> Any:
        replayed = self.recorder.replayed
        if replayed is not None:
            return replayed.reply
        try:
            return self.brain(prompt)
        except KeyboardInterrupt as error:
            raise StopRun("The run was interrupted.", RunStatus.paused) from error


def is_repeatable(action: ActionLike) -> bool:
    """Whether carrying it out once more does no harm: it changes nothing, or takes up what it had begun."""
    metadata: Mapping[str, Any] = getattr(action, "metadata", None) or {}
    return bool(metadata.get("idempotent") or metadata.get("takes_up")) or getattr(action, "operation", None) in REPEATABLE


def _unknown(action: ActionLike) -> Failure[Any]:
    return Failure[Any](
        AgentErrorCode.effects_unknown,
        f"The run was cut off while {action.name} was under way: whether it was carried out, or in part, is not known.",
        "Find out first whether it was done; call it again only if it was not.",
        effects="unknown",
    )


def _gone(action: ActionLike, replayed: StepRecord) -> Failure[Any]:
    began = replayed.started is not None
    return Failure[Any](
        AgentErrorCode.effects_unknown,
        f"The sandbox is gone in which {action.name} {'was under way' if began else 'was to be carried out'}; there is a new one.",
        "Look at the state of the new sandbox first: nothing of what was done in the old one is there.",
        effects="unknown" if began else "none",
    )


def _interrupted(action: ActionLike) -> dict[str, Any]:
    return Failure[Any](
        ErrorCode.cancelled,
        f"The run was interrupted while {action.name} was under way.",
        "Resuming the run shows what came of it.",
        effects="unknown",
    ).to_dict()


def _unrecorded(action: ActionLike, stop: StopRun) -> dict[str, Any]:
    return Failure[Any](
        AgentErrorCode.log_unusable,
        f"{action.name} was not carried out: {stop.reason}",
        "Free some space or repair the log, then resume the run.",
    ).to_dict()
