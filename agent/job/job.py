"""A job: an agent works on a copy of a repository in a sandbox. It ends with the diff, which can be written back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from agent.core.agent import Agent
from agent.core.budget import Budget
from agent.core.kits import problems_in
from agent.core.loop.layers import Layer
from agent.core.run import AgentRun
from agent.core.status import RunStatus
from agent.hub import AgentSpec, Hub, Setting, build
from agent.language import AgentLanguage
from agent.layers.inbox import Inbox
from agent.model.brain import Brain
from agent.record import lineage
from agent.record.file_changes import FileChanges
from agent.repo.applying import apply
from agent.repo.changes import Change, changes, diff_text
from agent.repo.inside import GIT, repository_in
from agent.repo.laid import find_laid, names_to_leave
from agent.repo.scratch import scratch_folder
from agent.repo.snapshot import SMALLER, Snapshot, take
from agent.views.live_view import LiveView
from agent.views.screen import Screen
from agent.views.terminal_approvals import ask_on, ask_user_on, require_approvals
from agent.views.terminal_input import listening
from agent.views.usage_text import count_files
from sandbox.cli.status_line import progress, terminal
from sandbox.environment.base import Environment
from sandbox.environment.call_errors import answered
from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass
from sandbox.interrupts import ignore_interrupts, interrupt_on_termination
from sandbox.network.connections import Connection
from sandbox.pipe.watching import onlooker
from sandbox.text.invisible import visible

from .ending import Ending
from .proof import Proof, prove
from .skills import Words, teach

MOST_PROBLEMS, MOST_CHARS = 10, 400


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to do, and which agent of ``hub`` does it.

    ``open_environment`` creates the sandbox with a copy of a folder: ``repo``, or an empty one if that is None.
    ``language`` replaces the agent's own. ``apply`` writes the changes back to ``repo``, only after a run that
    finished. ``proofs`` are commands that must then exit with 0 in the sandbox. ``agents_md`` gives the agent the
    repository's AGENTS.md and skills. ``approve`` (never, risky, always) says which actions the user is asked about,
    those of delegated agents included. The run ends as ``finished`` only if ``ending`` holds. ``inbox`` has the user's
    messages; ``mcp_urls`` are the addresses of MCP servers that the user named. ``layers`` are the outermost layers of
    every agent, delegated ones included.

    With ``record_changes`` the log has a diff of the files for each action. ``workspace_bytes`` is the size of the
    sandbox's workspace; a larger repository is refused before it is copied. ``history`` copies its commits, too.
    """

    task: str
    repo: Path | None
    brain: Brain | None
    open_environment: Callable[[Path], Environment]
    spec: AgentSpec
    hub: Hub
    inputs: Mapping[str, Any] = field(default_factory=dict)
    language: AgentLanguage | None = None
    budget: Budget = field(default_factory=Budget)
    apply: bool = False
    proofs: tuple[str, ...] = ()
    agents_md: bool = False
    approve: str = "never"
    ending: Ending = field(default_factory=Ending)
    inbox: Inbox = field(default_factory=Inbox)
    mcp_urls: tuple[str, ...] = ()
    record_changes: bool = False
    workspace_bytes: int | None = None
    history: bool = False
    layers: tuple[Layer, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a job.

    ``diff`` is None if the sandbox could no longer be read. ``refused`` says why nothing was written back or could be
    read. ``connections`` are the sandbox's last 1,000. ``recorded`` is the id of the run in the log, and
    ``unrecorded`` says that its end is missing there. ``kept`` says that its sandbox is still there, until nobody has
    used it for ``kept_seconds``; ``asked_to_keep``, that the user wanted that.
    """

    run: AgentRun
    diff: str | None = None
    changes: tuple[Change, ...] = ()
    skipped: tuple[str, ...] = ()
    applied: bool = False
    refused: SandboxError | None = None
    interrupted: bool = False
    proofs: tuple[Proof, ...] = ()
    connections: tuple[Connection, ...] = ()
    recorded: str = ""
    kept: bool = False
    kept_seconds: float = 0.0
    asked_to_keep: bool = False
    unrecorded: bool = False

    @property
    def resumable(self) -> bool:
        """Whether the run can continue, or be ended properly, in its sandbox."""
        return self.kept and (self.unrecorded or self.run.waits)

    @property
    def sandbox(self) -> str | None:
        """The name of the sandbox that is still there; None if there is none."""
        return sandbox_name(self.recorded) if self.kept else None

    @property
    def exit_code(self) -> int:
        """0 finished (and recorded, proven and written back, if wanted), 1 not, 2 no key for the model, 130
        interrupted.
        """
        if self.interrupted:
            return 130
        if isinstance(self.run.error, SandboxError) and self.run.error.code.value == "model_credentials_missing":
            return 2
        proven = all(proof.passed for proof in self.proofs)
        return 0 if self.run.ok and self.refused is None and proven and not self.unrecorded else 1

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as JSON-ready data."""
        recorded = {
            "run": self.recorded,
            "resumable": self.resumable,
            "unrecorded": self.unrecorded,
            "sandbox": self.sandbox,
        }
        refused = None if self.refused is None else {"code": self.refused.code.value, "error": self.refused.message}
        return {
            **self.run.to_dict(),
            "diff": self.diff,
            "changes": [{"path": c.path, "kind": c.kind} for c in self.changes],
            "skipped": list(self.skipped),
            "applied": self.applied,
            "apply_refused": refused,
            "connections": [connection.to_dict() for connection in self.connections],
            **(recorded if self.recorded else {}),
        }


def sandbox_name(run: str) -> str:
    """Return the name of a recorded run's sandbox."""
    return f"run-{run}"


def carry_out(job: Job, screen: Screen) -> Outcome:
    """Do the job.

    The sandbox is closed whatever happens, also after Ctrl-C, SIGTERM and SIGHUP, and a second Ctrl-C does not
    interrupt that. Raises SandboxError for a fault before the run begins: no repository, no engine, no image.
    """
    with interrupt_on_termination(), scratch_folder() as scratch:
        snapshot = copy_repository(job, scratch, scratch / "before", screen)
        environment = job.open_environment(snapshot.copy)
        try:
            with progress():
                start(job, environment, snapshot)
            snapshot = initialize_repository(job, environment, snapshot, screen)
            run = _run(job, environment, screen)
            if run.status is RunStatus.cancelled:
                outcome = Outcome(run=run, interrupted=True)
            else:
                outcome = collect_outcome(job, run, environment, snapshot, scratch / "after")
        finally:
            with ignore_interrupts():
                environment.close()
        return replace(outcome, connections=environment.connections)  # those too that its end has cut


def show_instructions(words: Words, screen: Screen) -> None:
    """Print which instructions of the repository the agent gets."""
    names = [i.path for i in words.instructions] + [f"the skill {skill.name}" for skill in words.skills]
    if names:
        screen.line(f"given to the agent from the repository: {', '.join(names)}", "dim")
    for problem in words.problems:
        screen.line(f"not given to the agent: {problem}", "yellow")


def copy_repository(job: Job, scratch: Path, before: Path, screen: Screen) -> Snapshot:
    """Copy the files for the sandbox to ``before``; without a repository there are none. Raises SandboxError."""
    repo = job.repo
    if repo is None:
        (scratch / "empty").mkdir()
        return take(scratch / "empty", before)
    terminal().show(f"reading {repo}")
    snapshot = take(repo.absolute(), before, job.workspace_bytes, history=job.history)
    terminal().hide()
    links = [visible(path, one_line=True) for path in snapshot.left_out]
    left_out = [f"left out: {link} is a link that leads out of the repository, or into .git" for link in links]
    problems = [*left_out, *snapshot.problems]
    for problem in problems[:MOST_PROBLEMS]:
        screen.line(problem.replace("\n", "\\n")[:MOST_CHARS], "yellow")
    if len(problems) > MOST_PROBLEMS:
        screen.line(f"and {len(problems) - MOST_PROBLEMS} more left out", "yellow")
    screen.line(f"copied into the sandbox: {count_files(snapshot.files)} of {repo}", "dim")
    return snapshot


def start(job: Job, environment: Environment, snapshot: Snapshot) -> None:
    """Start the sandbox. Raises SandboxError; if the copy does not fit into it, one that names the repository."""
    try:
        environment.start()
    except SandboxError as error:
        if error.code is not ErrorCode.no_space or job.repo is None:
            raise
        message = error.message.replace(repr(str(snapshot.copy)), str(job.repo)).replace(
            "The workspace", "The repository", 1
        )
        raise SandboxError(ErrorCode.no_space, message, f"{SMALLER}.") from error


def initialize_repository(job: Job, environment: Environment, snapshot: Snapshot, screen: Screen) -> Snapshot:
    """Make the workspace of a new sandbox a git repository if there are files. Prints the reason if that fails.

    Returns the snapshot with what the image had in the workspace.
    """
    if job.repo is None:
        return snapshot
    snapshot = find_laid(environment, snapshot)
    if snapshot.laid:
        shown = ", ".join(visible(path, one_line=True)[:80] for path in snapshot.laid[:MOST_PROBLEMS])
        more = f" and {len(snapshot.laid) - MOST_PROBLEMS} more" if len(snapshot.laid) > MOST_PROBLEMS else ""
        screen.line(f"in the workspace from its image, and not part of the changes: {shown}{more}", "dim")
    problem = repository_in(
        environment, snapshot.size_bytes, job.workspace_bytes, history=job.history, without=snapshot.laid
    )
    if problem:
        screen.line(problem, "yellow")
    return snapshot


def _run(job: Job, environment: Environment, screen: Screen) -> AgentRun:
    agent = agent_of(job, environment, screen, can_pause=False)
    with lineage.within(job.spec.name), listening(job.inbox, screen):
        return until_interrupted(agent, lambda: agent.execute(job.task))


def agent_of(job: Job, environment: Environment, screen: Screen, *, can_pause: bool = True) -> Agent:
    """Return the agent for the job in ``environment``. It is shown on ``screen``, as are those it delegates to.

    ``can_pause`` says whether the run is recorded, so that Ctrl-C only pauses it.
    """

    def watched(agent: Agent, setting: Setting) -> None:
        name = setting.spec.name if setting.depth and setting.spec is not None else ""
        agent.hooks.insert(0, LiveView(screen, agent.actions, name, can_pause=can_pause))
        agent.layers = (*(() if setting.depth else (job.inbox,)), *job.layers, *agent.layers)
        for problem in problems_in(agent.environment):
            screen.line(problem, "yellow")
        if job.record_changes:
            agent.layers = (FileChanges(agent.environment), *agent.layers)
        if not setting.depth:
            job.ending.lay(agent, setting, job.task)
        require_approvals(agent, job.approve, ask_on(screen))

    agent = build(
        job.spec,
        Setting(
            environment=environment,
            hub=job.hub,
            brain=job.brain,
            budget=job.budget,
            inputs=job.inputs,
            language=job.language,
            on_built=watched,
            ask_user=ask_user_on(screen),
            mcp_urls=job.mcp_urls,
        ),
    )
    if job.agents_md and job.repo is not None and job.spec.needs_model:
        show_instructions(teach(agent), screen)
    return agent


def until_interrupted(agent: Agent, run: Callable[[], AgentRun]) -> AgentRun:
    """Return the run, also one that Ctrl-C ended. Raises KeyboardInterrupt if none had begun.

    On a terminal the status line shows the output of its commands.
    """
    before = agent.last_run
    status = terminal()
    try:
        with onlooker(status.add_output if status.live else None):
            return run()
    except KeyboardInterrupt:
        if agent.last_run is None or agent.last_run is before:
            raise
        return agent.last_run
    finally:
        for kit in getattr(agent.environment, "kits", ()):
            kit.close()


def collect_outcome(job: Job, run: AgentRun, environment: Environment, snapshot: Snapshot, after: Path) -> Outcome:
    """Return the outcome of ``run``: the diff against ``snapshot``, the proofs, and whether the changes were written
    back.
    """
    if run.status is RunStatus.environment_lost:
        return Outcome(run=run)
    answer = answered(environment.download, ".", after, without=(GIT, *names_to_leave(snapshot)))
    if not answer.ok:
        return Outcome(run=run, refused=_refused(answer))
    skipped = answer.result.skipped
    found = changes(snapshot, after, skipped)
    text = diff_text(snapshot, after, found)
    proofs = prove(environment, job.proofs)
    outcome = Outcome(run=run, diff=text, changes=tuple(found), skipped=tuple(skipped), proofs=proofs)
    if not (job.apply and run.ok):
        return outcome
    try:
        apply(snapshot, after, found)
    except SandboxError as error:
        return replace(outcome, refused=error)
    return replace(outcome, applied=True)


def _refused(answer: Any) -> SandboxError | None:
    try:
        answer.unwrap()
    except SandboxError as error:
        return error
    return None
