"""The diff of the files that each call of a recorded run made, also for commands, whose answers do not have it."""

from __future__ import annotations

import logging

from agent.core.environment_wrapper import LayeredEnvironment
from agent.core.loop.layers import Flow, Layer
from agent.core.loop.turns import Call, entered
from agent.core.status import StopRun
from sandbox.environment.base import ActionLike, Environment
from sandbox.environment.call_errors import answered

from . import events as ev
from .interrupted_calls import REPEATABLE
from .recorder import Recorder, current_call, current_recorder

log = logging.getLogger(__name__)

# Characters of one diff that are kept; of a longer one its first files.
MOST_CHARS = 1 << 20
MOST_LEFT_OUT = 20


class FileChanges(Layer):
    """Compares the workspace of ``environment`` after each call that may have changed it, and writes the diff into the record. It
    changes no answer, and notes what cannot be compared.

    What a command changes later, in the background, is in the diff of the next call.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._base: str | None = None

    def around_do(self, call: Call) -> Flow:
        """Compare before and after the call."""
        if call.action is None or not _may_change(call.action):
            return (yield call)
        before = self._checkpoint()
        envelope = yield call
        with entered(call.within):
            recorder, index = current_recorder(), current_call()
        if recorder is not None:
            try:
                self._record(before, recorder, index)
            except StopRun:
                log.info("a diff could not be recorded; the run ends with its step", exc_info=True)
        return envelope

    def _checkpoint(self) -> str:
        """Return the checkpoint to compare with; "" if none can be made."""
        if self._base is None:
            kept = answered(self._environment.checkpoint)
            self._base = kept.result.id if kept.ok else None
        return self._base or ""

    def _record(self, before: str, recorder: Recorder, index: int) -> None:
        patch, left_out = self._diff(before)
        if not patch and not left_out:
            return
        recorder.add(ev.FilesChanged(step=recorder.step, index=index, patch=patch, left_out=left_out))
        if before and self._compared:
            self._base = None
            self._checkpoint()
            answered(self._environment.delete_checkpoint, before)

    def _diff(self, before: str) -> tuple[str, tuple[str, ...]]:
        """Return the diff since the checkpoint ``before``, and notes on what it leaves out."""
        self._compared = False
        if not before:
            return "", ("the state of the files could not be saved, so they were not compared",)
        made = answered(self._environment.export_patch, since=before)
        if not made.ok:
            return "", (f"the files could not be compared: {made.error}",)
        self._compared = True
        left_out = [f"{path}: {why}" for path, why in list(made.result.left_out.items())[:MOST_LEFT_OUT]]
        patch, missing = _cut(made.result.patch.decode("utf-8", "replace"))
        return patch, (*left_out, *missing)


class ChangesEnvironment(LayeredEnvironment):
    """``inner`` with ``FileChanges`` around it. Pass that as a layer instead."""

    def __init__(self, inner: Environment) -> None:
        super().__init__(inner, FileChanges(inner))


def _may_change(action: ActionLike) -> bool:
    """Return whether the action may change the workspace. One without an operation (a tool of a kit) may do anything."""
    operation = getattr(action, "operation", None)
    return operation not in REPEATABLE if operation is not None else not getattr(action, "terminal", False)


def _cut(patch: str) -> tuple[str, tuple[str, ...]]:
    """Return as many whole files of the diff as fit, and a note on the rest."""
    if len(patch) <= MOST_CHARS:
        return patch, ()
    end = patch.rfind("\ndiff --git ", 0, MOST_CHARS) + 1
    return patch[:end], (
        f"{patch.count(chr(10) + 'diff --git ', end - 1)} more files: the diff has {len(patch)} characters",
    )
