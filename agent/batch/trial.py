"""A trial of one task: a sandbox, the agent in it, and the verdict on what it left."""

from __future__ import annotations

import json
import logging
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import Any

from agent.core.agent import Agent
from agent.core.budget import Budget
from agent.core.kits import problems_in
from agent.core.run import AgentRun
from agent.core.status import RunStatus
from agent.model.brain import Brain
from agent.record import lineage
from agent.record.resume import begin
from agent.record.store import EventLog
from agent.repo.changes import changes, diff_text
from agent.repo.inside import GIT, repository_in
from agent.repo.laid import find_laid, names_to_leave
from agent.repo.scratch import scratch_folder
from agent.repo.snapshot import Snapshot, take
from agent.views.terminal_approvals import require_approvals
from agent.views.trajectory.run_file import of_run as record_of_run
from agent.views.trajectory.run_file import to_dict
from sandbox.environment.base import Environment
from sandbox.environment.call_errors import answered
from sandbox.errors import SandboxError
from sandbox.frozen import dataclass

from .results import Result, State, TaskFolder, of_run
from .tasks import BatchTask
from .verifying import Verdict, end_commands, verdict_of

log = logging.getLogger(__name__)

# The agent's run failed by no fault of its own.
_INFRA = frozenset({RunStatus.model_failed, RunStatus.environment_lost, RunStatus.failed})
# How long a run that was told to end may take before its commands are ended; after six times that its sandbox is closed.
GRACE_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What trials are made of.

    ``open_environment`` creates a task's sandbox with a folder in it; ``make_agent`` creates its agent, with its own
    brain, in that sandbox. All of them may raise SandboxError. ``identities`` say what results are results of, by task
    id. Runs are recorded in ``log`` unless it is None. ``approve`` is never or risky: nobody can be asked, so risky
    actions are refused.
    """

    open_environment: Callable[[BatchTask, Path], Environment]
    make_agent: Callable[[BatchTask, Environment, Brain, Budget], Agent]
    make_brain: Callable[[BatchTask], Brain]
    budget: Budget = field(default_factory=Budget)
    agent: str = ""
    model: str = ""
    identities: Mapping[str, dict[str, str]] = field(default_factory=dict)
    log: EventLog | None = None
    approve: str = "never"
    workspace_bytes: Callable[[BatchTask], int | None] = lambda _: None
    history: bool = False


class Trial:
    """A running task. ``abort`` may be called from any thread; it ends the task soon, without a result."""

    def __init__(self, task: BatchTask, parts: Parts, folder: TaskFolder) -> None:
        self.task, self.parts, self.folder = task, parts, folder
        self.aborted = threading.Event()
        self._agent: Agent | None = None
        self._opened: list[Environment] = []
        self._lines: list[str] = []
        self._recorded = ""
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Return the seconds since it began."""
        return time.monotonic() - self._started

    def abort(self) -> None:
        """End the task: its agent and its sandboxes."""
        self.aborted.set()
        self._stop()

    def run(self) -> Result:
        """Run the task, fill its folder, and return the result. Raises nothing but what is not an Exception."""
        fields: dict[str, Any] = {}
        try:
            verdict = self._attempt(fields)
        except Exception as error:
            log.info("the task %s failed", self.task.id, exc_info=True)
            words = str(error) if isinstance(error, SandboxError) else f"{type(error).__name__}: {error}"
            verdict = Verdict(State.infra_error, error=words)
        if verdict.output:
            self.folder.write("verifier.txt", verdict.output)
        self._say(f"{verdict.state.value} {json.dumps(verdict.rewards)} {verdict.error}".rstrip())
        self.folder.write("log.txt", "\n".join([*self._lines, ""]))
        return self.result(verdict, fields)

    def result(self, verdict: Verdict, fields: Mapping[str, Any] = {}) -> Result:
        """Return the result that a verdict makes, with what the agent's run adds."""
        return Result(
            id=self.task.id,
            state=verdict.state,
            rewards=verdict.rewards,
            error=verdict.error,
            seconds=round(self.seconds, 3),
            run=self._recorded,
            touched=verdict.touched,
            identity=self.parts.identities.get(self.task.id, {}),
            **fields,
        )

    def _attempt(self, fields: dict[str, Any]) -> Verdict:
        with scratch_folder() as scratch:
            snapshot = self._snapshot(scratch / "before")
            with self._sandbox(snapshot, scratch, "agent") as sandbox:
                snapshot = self._lay_repository(sandbox, snapshot)
                run = self._run(sandbox)
                fields.update(of_run(run))
                trajectory = record_of_run(
                    run, task=self.task.task, agent=self.parts.agent, model=self.parts.model, ident=self.task.id
                )
                self.folder.write("trajectory.json", json.dumps(to_dict(trajectory), indent=1) + "\n")
                if run.status in _INFRA or self.aborted.is_set():
                    return Verdict(State.infra_error, error=run.reason)
                if snapshot is not None:
                    self._keep_diff(sandbox, snapshot, scratch / "after")
                return verdict_of(self.task, sandbox, partial(self._sandbox, snapshot, scratch, "verifier"))

    def _lay_repository(self, sandbox: Environment, snapshot: Snapshot | None) -> Snapshot | None:
        if snapshot is None:
            return None
        snapshot = find_laid(sandbox, snapshot)
        history, room = self.parts.history or self.task.history, self.parts.workspace_bytes(self.task)
        problem = repository_in(sandbox, snapshot.size_bytes, room, history=history, without=snapshot.laid)
        if problem:
            self._say(problem)
        return snapshot

    def _snapshot(self, copy: Path) -> Snapshot | None:
        if self.task.repo is None:
            return None
        history = self.parts.history or self.task.history
        snapshot = take(self.task.repo.absolute(), copy, self.parts.workspace_bytes(self.task), history=history)
        for problem in snapshot.problems:
            self._say(problem)
        return snapshot

    @contextmanager
    def _sandbox(self, snapshot: Snapshot | None, scratch: Path, name: str) -> Iterator[Environment]:
        """Start a sandbox as the task wants it, and close it after the block."""
        folder = scratch / f"{name}-empty"
        folder.mkdir()
        environment = self.parts.open_environment(self.task, folder if snapshot is None else snapshot.copy)
        self._opened.append(environment)
        try:
            environment.start()
            if self.aborted.is_set():
                raise KeyboardInterrupt
            yield environment
        finally:
            environment.close()

    def _run(self, sandbox: Environment) -> AgentRun:
        place = shlex.quote(self.task.folder or ".")
        exports = "".join(f"export {shlex.quote(f'{name}={value}')}; " for name, value in self.task.env.items())
        sandbox.run(
            f"{exports}mkdir -p -- {place} && cd -- {place}"
        ).unwrap()  # the session of the agent's commands begins so
        budget = self.parts.budget
        if self.task.seconds is not None:
            budget = replace(budget, max_seconds=min(self.task.seconds, budget.max_seconds or self.task.seconds))
        self._agent = self.parts.make_agent(self.task, sandbox, self.parts.make_brain(self.task), budget)
        self._say(f"{len(self._agent.actions.get_actions())} actions, at most {budget.max_iterations} steps")
        for problem in problems_in(self._agent.environment):
            self._say(problem)
        with (
            self._recording(self._agent),
            _after(budget.max_seconds, self._agent.cancel),
            _after(budget.max_seconds, partial(end_commands, sandbox), GRACE_SECONDS),
            _after(budget.max_seconds, self._close_all, 6 * GRACE_SECONDS),
        ):
            try:
                run = self._agent.execute(self.task.task)
            finally:
                for kit in getattr(self._agent.environment, "kits", ()):
                    kit.close()
        late = budget.max_seconds is not None and run.seconds >= budget.max_seconds
        if late and run.status in (RunStatus.cancelled, RunStatus.environment_lost):
            run = replace(
                run,
                status=RunStatus.max_seconds,
                reason=f"{run.seconds:.1f} of {budget.max_seconds:g} seconds were used.",
            )
        self._say(f"{run.status.value}: {run.reason} {run.iterations} steps")
        return run

    @contextmanager
    def _recording(self, agent: Agent) -> Iterator[None]:
        """Record the agent's run within the block, if runs are recorded, and refuse what would need an approval."""
        log, options = self.parts.log, {"batch_task": self.task.id}
        if log is None:
            require_approvals(agent, self.parts.approve, None)
            with lineage.within(self.parts.agent):
                yield
            return
        with log.begin() as writer, lineage.within(self.parts.agent, writer.run):
            self._recorded = writer.run
            begin(agent, writer, self.task.task, name=self.parts.agent, options=options)
            require_approvals(agent, self.parts.approve, None)
            yield
            writer.forget()  # the run cannot be resumed: the task is done again

    def _keep_diff(self, sandbox: Environment, snapshot: Snapshot, after: Path) -> None:
        answer = answered(sandbox.download, ".", after, without=(GIT, *names_to_leave(snapshot)))
        if not answer.ok:
            self._say(f"no diff: {answer.error}")
            return
        self.folder.write("changes.diff", diff_text(snapshot, after, changes(snapshot, after, answer.result.skipped)))

    def _stop(self) -> None:
        if self._agent is not None:
            self._agent.cancel()
        self._close_all()

    def _close_all(self) -> None:
        for environment in list(self._opened):
            environment.close()

    def _say(self, text: str) -> None:
        self._lines.append(f"{self.seconds:8.1f} s  {text}")


@contextmanager
def _after(seconds: float | None, call: Callable[[], None], more: float = 0.0) -> Iterator[None]:
    """Call ``call`` once ``seconds`` and ``more`` are over, unless the block has ended by then."""
    timer = None if seconds is None else threading.Timer(seconds + more, call)
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()
