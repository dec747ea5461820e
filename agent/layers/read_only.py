"""An environment in which an agent can look and run commands, and the files of the workspace stay as they are.

It also holds for tools that call the environment themselves. What it keeps of the files belongs to one run: the layer ``ReadOnly``
has it made anew for each.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from agent.core.budget import current_meter
from agent.core.envelopes import LOST
from agent.core.environment_wrapper import WrappedEnvironment
from agent.core.loop.layers import Layer
from agent.core.run import AgentRun
from agent.errors import AgentErrorCode
from sandbox import operations as op
from sandbox.envelope import Envelope, Failure, Success
from sandbox.environment.base import ActionLike, Environment
from sandbox.environment.call_errors import answered, check_request
from sandbox.errors import SandboxError
from sandbox.operations import OPERATIONS, Request
from sandbox.operations.state import ChangedPath
from sandbox.pipe.watching import Watch

from .temporary_files import TemporaryFiles, undone

log = logging.getLogger(__name__)

READING = frozenset({
    "read", "list", "search", "run", "logs", "screen", "wait_for", "processes", "browse", "usage", "end_session",
    "stat", "open_session", "sessions",
})  # fmt: skip
# What programs write beside what they read: looking at a repository, or running its tests, is no change of it.
CACHES = frozenset({"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"})
REFRESHED = frozenset({".git/index"})
# All of them: a change that is not listed could not be told from one in a cache.
MOST_COMPARED = 1_000_000
_NAMED = 20


class ReadOnlyEnvironment(WrappedEnvironment):
    """``inner``, with the workspace restored after each command; operations that write are refused.

    After each command the workspace is compared with what it was before the first (a checkpoint, kept on the host until the run
    ends). What was created, modified or deleted is undone, and the answer is the failure ``read_only`` that names it and has the
    command's result. Commands run in the foreground, and what one leaves running is killed. Caches of Python's tools, git's index,
    the home folder and the folder for temporary files may change while the run goes on; at its end they are what they were
    before the first command, and so are the sessions: nothing of it is there for the next agent to execute. It does not bound
    what a command does in a database, or on the network. Where something else runs in the sandbox nothing can be undone, which
    the failure says. Where the state of files cannot be kept at all, commands are refused, and so are those after a run's end.
    """

    def __init__(self, inner: Environment) -> None:
        super().__init__(inner)
        self.run_layer: Layer = ReadOnly(self)  # among the layers of each run of an agent in this environment
        self._guard = _Guard(inner)

    def begin_run(self) -> _Guard | None:
        """Use a new guard from here on, and return it; None in a run below that of the present guard, which holds for it, too."""
        meter = current_meter()
        if self._guard.is_used and meter is not None and meter.above is not None:
            return None
        self._guard = _Guard(self.inner, is_used=True)
        return self._guard

    def execute_action(self, action: ActionLike, args: Any) -> dict[str, Any]:
        operation = getattr(action, "operation", None)
        if operation not in OPERATIONS or not isinstance(args, Mapping | None):
            return self.inner.execute_action(action, args)
        guard = self._guard
        refusal = guard.refusal(operation, args or {})
        if refusal is not None:
            return refusal.to_dict()
        answer = self.inner.execute_action(action, args)
        if operation != "run" or answer.get("code") in LOST:
            return answer
        result = answer.get("result") or {}
        undone = guard.undo(result.get("id"), result.get("left_running"))
        if undone is None:
            return answer
        notices = [n for n in answer.get("notices", []) if n.get("code") != "files_changed"]  # the error names them
        return {**undone.to_dict(), "result": result, "notices": notices}

    def execute(self, operation: str, args: Mapping[str, Any], *, watch: Watch | None = None) -> Envelope[Any]:
        return self._checked(operation, args, lambda: self.inner.execute(operation, args, watch=watch))

    def perform(self, request: Request, watch: Watch | None = None) -> Envelope[Any]:
        check_request(request, watch)
        args = request.model_dump(exclude_unset=True)
        return self._checked(request.operation, args, lambda: super(ReadOnlyEnvironment, self).perform(request, watch))

    def upload(
        self, data_or_path: bytes | str | os.PathLike[str], path: str, **options: Any  # noqa: ARG002
    ) -> Envelope[op.UploadResult]:
        """Refused."""
        return _refused("upload")

    def rollback(self, id: str, *, kill: bool = False) -> Envelope[op.RollbackResult]:  # noqa: A002, ARG002
        """Refused: it would replace the files of the workspace."""
        return _refused("rollback")

    def delete_checkpoint(self, id: str) -> Envelope[op.DeletedCheckpointResult]:  # noqa: A002, ARG002
        """Refused: a checkpoint may be all that is left of some files."""
        return _refused("delete_checkpoint")

    def _checked(self, operation: str, args: Mapping[str, Any], carry_out: Callable[[], Envelope[Any]]) -> Envelope[Any]:
        guard = self._guard
        refusal = guard.refusal(operation, args)
        if refusal is not None:
            return refusal
        answer = carry_out()
        if operation != "run" or (isinstance(answer, Failure) and answer.code.value in LOST):
            return answer
        result = answer.result
        undone = guard.undo(getattr(result, "id", None), getattr(result, "left_running", 0))
        if undone is None:
            return answer
        notices = tuple(n for n in answer.notices if n.code != "files_changed")  # the error names them
        return Failure(undone.code, undone.error, undone.hint, effects=undone.effects, result=result, notices=notices)


def guarded(environment: Environment) -> Environment:
    """Return ``environment`` as an agent that only reads has it; below another such agent its guard holds already."""
    around = environment
    while isinstance(around, WrappedEnvironment):
        if isinstance(around, ReadOnlyEnvironment):
            return environment
        around = around.inner
    return ReadOnlyEnvironment(environment)


class ReadOnly(Layer):
    """The layer of agents in ``environment``: each run has a guard of its own, which undoes what is left at its end, after all
    hooks and before anybody goes on in the sandbox.
    """

    def __init__(self, environment: ReadOnlyEnvironment) -> None:
        self._environment = environment

    def for_run(self, agent: Any) -> Layer:  # noqa: ARG002
        """Return the layer that ends the guard of the next run."""
        guard = self._environment.begin_run()
        return Layer() if guard is None else _GuardedRun(guard)


class _GuardedRun(Layer):
    def __init__(self, guard: _Guard) -> None:
        self._guard = guard

    def after_run(self, run: AgentRun) -> None:  # noqa: ARG002
        self._guard.forget()


class _Guard:
    """What is kept of the files during one run: the workspace as it was before its first command, and the temporary files."""

    def __init__(self, inner: Environment, *, is_used: bool = False) -> None:
        self.is_used = is_used  # by a run that goes on
        self._inner = inner
        self._base: str | None = None
        self._temporary: TemporaryFiles | None = None
        self._is_over = False

    def refusal(self, operation: str, args: Mapping[str, Any]) -> Failure[Any] | None:
        """Why it is not carried out at all; before the first command the workspace is kept."""
        if operation in OPERATIONS and operation not in READING:
            return _refused(operation)
        if operation != "run":
            return None
        # Not by equality: 0 seconds of waiting leave a command running as well.
        given = {name: args.get(name) for name in ("background", "wait_seconds", "pty")}
        going_on = next((name for name, value in given.items() if value is not None and value is not False), None)
        if going_on is not None:
            return Failure[Any](
                AgentErrorCode.read_only,
                f"This agent only reads, and its commands cannot run in the background ({going_on}).",
                "Run the command in the foreground, with timeout_seconds if it may take long.",
                next_tool="run",
            )
        if self._is_over:
            return _unkept("the run is over.")
        return self._not_kept() if self._base is None else None

    def _not_kept(self) -> Failure[Any] | None:
        """Keep the files as they are; why that could not be done."""
        kept = answered(self._inner.checkpoint)
        if not kept.ok:
            return _unkept(f"the state of the files could not be saved ({kept.error})")
        base = kept.unwrap().id
        try:
            self._temporary = TemporaryFiles(self._inner)
        except (SandboxError, OSError) as error:
            answered(self._inner.delete_checkpoint, base)
            return _unkept(f"the state of the temporary files could not be saved ({error})")
        self._base = base
        return None

    def undo(self, command: Any, left_running: Any) -> Failure[Any] | None:
        """The failure that says what the last command changed, after that was undone; None if it changed nothing."""
        if left_running and isinstance(command, str):
            self._inner.execute("kill", {"id": command})
        base = self._base or ""
        compared = answered(self._inner.changes, base, leftovers=True, max_changes=MOST_COMPARED)
        if not isinstance(compared, Success):
            return Failure[Any](
                AgentErrorCode.read_only,
                f"It is not known whether the command changed files: {compared.error}",
                "Use read, list and search from now on.",
                effects="unknown",
            )
        changed = [change for change in compared.result.changes if _counts(change)]
        if not changed:
            return None
        back = answered(self._inner.rollback, base)
        named = ", ".join(change.to_text() for change in changed[:_NAMED])
        more = f" and {len(changed) - _NAMED} more" if len(changed) > _NAMED else ""
        return Failure[Any](
            AgentErrorCode.read_only,
            f"The command changed files, which this agent may only read: {named}{more}.",
            "The changes were undone. Look without changing anything; if a command must write, let it write below /tmp."
            if back.ok
            else f"The changes could NOT be undone: {back.error} Say so in your answer.",
            effects="none" if back.ok else "partial",
        )

    def forget(self) -> None:
        """At the end of the run, undo what its commands may have left, then release what is kept on the host.

        What cannot be undone is reported in the program's log; if something else runs, changed caches are deleted.
        """
        self._is_over, self.is_used = True, False
        temporary, self._temporary = self._temporary, None
        base, self._base = self._base, None
        if base is None or temporary is None:
            return
        back = answered(self._inner.rollback, base)
        if back.ok:
            undone(temporary)
        elif back.code.value not in LOST:
            log.warning("changes left by a read-only agent could not be undone: %s", back.error)
            self._without_caches(base)
        temporary.end()
        answered(self._inner.delete_checkpoint, base)

    def _without_caches(self, base: str) -> None:
        """Delete what changed in caches, which tools make anew: the next import would run code in them."""
        compared = answered(self._inner.changes, base, leftovers=True, max_changes=MOST_COMPARED)
        for change in compared.result.changes if isinstance(compared, Success) else ():
            if change.change != "deleted" and change.kind != "folder" and CACHES & set(change.path.split("/")):
                self._inner.execute("delete", {"path": change.path})


def _refused(operation: str) -> Failure[Any]:
    return Failure[Any](
        AgentErrorCode.read_only,
        f"This agent only reads: {operation} is refused.",
        f"Use one of: {', '.join(sorted(READING))}.",
    )


def _unkept(why: str) -> Failure[Any]:
    words = f"No command was run: {why}"
    return Failure[Any](AgentErrorCode.read_only, words, "Use read, list and search.", next_tool="read")


def _counts(change: ChangedPath) -> bool:
    """Whether a change counts. That only a folder's time changed does not: what was made or removed in it is listed itself."""
    parts = change.path.split("/")
    folder_only = change.kind == "folder" and change.change == "modified" and change.was is None and change.old_mode is None
    return not (CACHES & set(parts) or change.path in REFRESHED or folder_only)
