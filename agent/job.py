"""A job: an agent at work on a copy of a repository in a sandbox, from the copy in to the diff and, if wanted, back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agent.model.brain import Brain
from agent.repo.applying import apply
from agent.repo.changes import Change, changes, diff_text
from agent.repo.inside import GIT, repository_in
from agent.repo.snapshot import SMALLER, Snapshot, take
from sandbox.cli.status_line import progress, terminal
from sandbox.environment.base import Environment
from sandbox.environment.call_errors import answered
from sandbox.errors import ErrorCode, SandboxError
from sandbox.interrupts import ignore_interrupts, interrupt_on_termination
from sandbox.network.connections import Connection
from sandbox.pipe.watching import onlooker
from sandbox.text.invisible import visible

from . import lineage
from .budget import Budget
from .hub import AgentSpec, Hub, Setting, build
from .inbox import Inbox
from .kits import problems_in
from .language import AgentLanguage
from .loop import Agent
from .proof import Proof, prove
from .recorded_changes import ChangesEnvironment
from .run import AgentRun
from .scratch import scratch_folder
from .show import LiveView, Screen, files
from .skills import Words, teach
from .status import RunStatus
from .steering import Ending
from .terminal_approvals import ask_on, ask_user_on, laid_over
from .typed import listening

MOST_PROBLEMS, MOST_CHARS = 10, 400


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to be done, and by which agent of ``hub``. ``open_environment`` makes the sandbox around a folder that is copied
    into it: ``repo``, or an empty one where that is None. ``language`` is the agent's own unless it is given.

    ``apply`` writes the changes back to ``repo``, only after a run that finished. ``proofs`` are commands that must
    then exit with 0 in the sandbox. With ``agents_md`` the agent is told what AGENTS.md and the skills of the repository say.
    ``approve`` (never, risky, always) is what is asked about on the terminal before it is carried out, by delegated agents too.
    The run ends as ``finished`` only where ``ending`` holds; ``inbox`` is what the user says meanwhile; ``mcp_urls`` are addresses
    of MCP servers that the user has named.
    With ``record_changes`` a record of the run holds what each action has made of the files. ``workspace_bytes`` is the room of the
    sandbox's workspace; a repository that takes more is refused before it is copied. With ``history`` its commits are copied, too.
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


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of it. ``diff`` is None when the sandbox could not be read any more; ``refused`` is why nothing was
    applied, or could not be looked at; ``connections`` are the last 1,000 of the sandbox. ``recorded`` is the id of the run in the
    log, ``unrecorded`` says that its end is not in there; ``kept`` that its sandbox is still there, until nobody has used it for
    ``kept_seconds``; ``asked_to_keep`` that the user wanted that.
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
        """Whether the run can go on, or be brought to its end again, in its sandbox."""
        return self.kept and (self.unrecorded or self.run.waits)

    @property
    def sandbox(self) -> str | None:
        """The name of the sandbox that is still there; None if none is."""
        return sandbox_name(self.recorded) if self.kept else None

    @property
    def exit_code(self) -> int:
        """0 finished (and recorded, proven and applied, if asked), 1 not, 2 when the model's key is missing, 130 interrupted."""
        if self.interrupted:
            return 130
        if isinstance(self.run.error, SandboxError) and self.run.error.code.value == "model_credentials_missing":
            return 2
        proven = all(proof.passed for proof in self.proofs)
        return 0 if self.run.ok and self.refused is None and proven and not self.unrecorded else 1

    def to_dict(self) -> dict[str, Any]:
        """The outcome as JSON-ready data."""
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
    """The name of the sandbox of a recorded run."""
    return f"run-{run}"


def carry_out(job: Job, screen: Screen) -> Outcome:
    """Do the job. The sandbox is closed whatever happens, also on Ctrl-C, SIGTERM and SIGHUP, and a second Ctrl-C cannot
    stop that.

    Raises SandboxError for what is wrong before the run begins (no repository, no engine, no image).
    """
    with interrupt_on_termination(), scratch_folder() as scratch:
        snapshot = taken(job, scratch, scratch / "before", screen)
        environment = job.open_environment(snapshot.copy)
        try:
            with progress():
                start(job, environment, snapshot)
            lay_repository(job, environment, snapshot, screen)
            run = _run(job, environment, screen)
            if run.status is RunStatus.cancelled:
                outcome = Outcome(run=run, interrupted=True)
            else:
                outcome = brought_back(job, run, environment, snapshot, scratch / "after")
        finally:
            with ignore_interrupts():
                environment.close()
        return replace(outcome, connections=environment.connections)  # those too that its end has cut


def tell_words(words: Words, screen: Screen) -> None:
    """What of the repository's words the agent is told."""
    told = [i.path for i in words.instructions] + [f"the skill {skill.name}" for skill in words.skills]
    if told:
        screen.line(f"given to the agent from the repository: {', '.join(told)}", "dim")
    for problem in words.problems:
        screen.line(f"not given to the agent: {problem}", "yellow")


def taken(job: Job, scratch: Path, before: Path, screen: Screen) -> Snapshot:
    """Copy the files that go into the sandbox to ``before``; none without a repository. Raises SandboxError."""
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
    screen.line(f"copied into the sandbox: {files(snapshot.files)} of {repo}", "dim")
    return snapshot


def start(job: Job, environment: Environment, snapshot: Snapshot) -> None:
    """Start the sandbox. Raises SandboxError; where the copy does not fit into it, one that names the repository."""
    try:
        environment.start()
    except SandboxError as error:
        if error.code is not ErrorCode.no_space or job.repo is None:
            raise
        message = error.message.replace(repr(str(snapshot.copy)), str(job.repo)).replace("The workspace", "The repository", 1)
        raise SandboxError(ErrorCode.no_space, message, f"{SMALLER}.") from error


def lay_repository(job: Job, environment: Environment, snapshot: Snapshot, screen: Screen) -> None:
    """Make the workspace of a new sandbox a git repository, if there are files to work on; say why where that cannot be."""
    if job.repo is not None:
        problem = repository_in(environment, snapshot.size_bytes, job.workspace_bytes, history=job.history)
        if problem:
            screen.line(problem, "yellow")


def _run(job: Job, environment: Environment, screen: Screen) -> AgentRun:
    agent = agent_of(job, environment, screen)
    with lineage.within(job.spec.name), listening(job.inbox, screen):
        return until_interrupted(agent, lambda: agent.execute(job.task))


def agent_of(job: Job, environment: Environment, screen: Screen) -> Agent:
    """The agent that does the job in ``environment``, shown on ``screen``, as are those it delegates to."""

    def watched(agent: Agent, setting: Setting) -> None:
        name = setting.spec.name if setting.depth and setting.spec is not None else ""
        agent.hooks.insert(0, LiveView(screen, agent.actions, name))
        for problem in problems_in(agent.environment):
            screen.line(problem, "yellow")
        if job.record_changes:
            agent.environment = ChangesEnvironment(agent.environment)
        if not setting.depth:
            job.ending.lay(agent, setting, job.task)
        laid_over(agent, job.approve, ask_on(screen))

    agent = build(
        job.spec,
        Setting(
            environment=environment, hub=job.hub, brain=job.brain, budget=job.budget, inputs=job.inputs, language=job.language,
            on_built=watched, ask_user=ask_user_on(screen), hooks=(job.inbox,), mcp_urls=job.mcp_urls,
        ),
    )  # fmt: skip
    if job.agents_md and job.repo is not None and job.spec.needs_model:
        tell_words(teach(agent), screen)
    return agent


def until_interrupted(agent: Agent, run: Callable[[], AgentRun]) -> AgentRun:
    """The run; one that Ctrl-C ended as far as it got. Raises KeyboardInterrupt where none was begun. On a terminal the status line
    is given the output of its commands.
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


def brought_back(job: Job, run: AgentRun, environment: Environment, snapshot: Snapshot, after: Path) -> Outcome:
    """What came of ``run``: the diff against ``snapshot``, the proofs, and the changes written back where that was asked for."""
    if run.status is RunStatus.environment_lost:
        return Outcome(run=run)
    answer = answered(environment.download, ".", after, without=(GIT,))
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
