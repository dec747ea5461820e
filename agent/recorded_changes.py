"""What each action of a recorded run has made of the files, as a diff in the log: of commands, too, whose answers do not tell."""

from __future__ import annotations

import logging
from typing import Any

from sandbox.environment.base import ActionLike, Environment
from sandbox.environment.call_errors import answered

from . import events as ev
from .recorded import REPEATABLE, current_recorder
from .status import StopRun
from .wrapped import WrappedEnvironment

log = logging.getLogger(__name__)

# Characters of one diff that are kept; of a longer one its first files.
MOST_CHARS = 1 << 20
MOST_LEFT_OUT = 20


class ChangesEnvironment(WrappedEnvironment):
    """``inner``, whose workspace is compared after each action that may have changed it. Lies within the record, and changes no
    answer: what cannot be compared is noted instead.

    What a command that goes on changes later is told with the next action.
    """

    def __init__(self, inner: Environment) -> None:
        super().__init__(inner)
        self._base: str | None = None

    def execute_action(self, action: ActionLike, args: Any) -> dict[str, Any]:
        """See the base class."""
        if not _may_change(action):
            return self.inner.execute_action(action, args)
        before = self._kept()
        envelope = self.inner.execute_action(action, args)
        recorder = current_recorder()
        if recorder is not None:
            try:
                self._tell(recorder.step, before, recorder.add)
            except StopRun:
                log.info("a diff could not be recorded; the run ends with its step", exc_info=True)
        return envelope

    def _kept(self) -> str:
        """The checkpoint to compare with; "" where none can be made."""
        if self._base is None:
            kept = answered(self.inner.checkpoint)
            self._base = kept.result.id if kept.ok else None
        return self._base or ""

    def _tell(self, step: int, before: str, add: Any) -> None:
        if not before:
            add(ev.FilesChanged(step=step, patch="", left_out=("the files could not be kept, and so not compared",)))
            return
        made = answered(self.inner.export_patch, since=before)
        if not made.ok:
            add(ev.FilesChanged(step=step, patch="", left_out=(f"the files could not be compared: {made.error}",)))
        elif made.result.patch or made.result.left_out:
            left_out = [f"{path}: {why}" for path, why in list(made.result.left_out.items())[:MOST_LEFT_OUT]]
            patch, missing = _cut(made.result.patch.decode("utf-8", "replace"))
            add(ev.FilesChanged(step=step, patch=patch, left_out=(*left_out, *missing)))
        else:
            return
        self._base = None
        self._kept()
        answered(self.inner.delete_checkpoint, before)


def _may_change(action: ActionLike) -> bool:
    """Whether the workspace may be another after it. What is bound to no operation (a tool of a kit) may do anything."""
    operation = getattr(action, "operation", None)
    return operation not in REPEATABLE if operation is not None else not getattr(action, "terminal", False)


def _cut(patch: str) -> tuple[str, tuple[str, ...]]:
    """A diff that is not too long, whole files of it, and what is said of the rest."""
    if len(patch) <= MOST_CHARS:
        return patch, ()
    end = patch.rfind("\ndiff --git ", 0, MOST_CHARS) + 1
    return patch[:end], (
        f"{patch.count(chr(10) + 'diff --git ', end - 1)} files more: the diff has {len(patch)} characters",
    )
