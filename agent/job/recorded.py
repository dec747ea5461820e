"""A job whose run is recorded. Its sandbox outlives this process until the run has ended, so that it can be resumed."""

from __future__ import annotations

import contextlib
import errno
import json
import shutil
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from agent.core.agent import Agent
from agent.core.loop.layers import Layer
from agent.core.run import AgentRun
from agent.core.status import RunStatus
from agent.errors import AgentErrorCode
from agent.hub import Hub
from agent.layers.inbox import Mailbox, waiting
from agent.record import events as ev
from agent.record import lineage
from agent.record.resume import ENDS, GOES_ON, check_resumable, record, resume, told_of
from agent.record.store import EventLog, RunRecord, RunWriter, record_of
from agent.repo.beneath import read_file
from agent.repo.ignoring import Rules
from agent.repo.laid import checked
from agent.repo.scratch import scratch_folder
from agent.repo.snapshot import Snapshot, states_under
from agent.views.screen import Screen
from agent.views.terminal_input import listening
from sandbox.cli.status_line import progress
from sandbox.environment.base import Environment
from sandbox.errors import ErrorCode, SandboxError
from sandbox.interrupts import ignore_interrupts, interrupt_on_termination
from sandbox.text.wording import duration

from .job import (
    Job,
    Outcome,
    agent_of,
    collect_outcome,
    copy_repository,
    initialize_repository,
    sandbox_name,
    start,
    until_interrupted,
)
from .mailbox import mailbox_of
from .options import AgentOptions

LAID = "laid.json"
MOST_LAID_BYTES = 8 << 20


def carry_out_recorded(options: AgentOptions, log: EventLog, screen: Screen, layers: tuple[Layer, ...] = ()) -> Outcome:
    """Do the job as ``job.carry_out`` does, and record it in ``log``.

    If the run was paused, lost its sandbox or got no answer from its model, the sandbox stays so that the run can be
    resumed. After every other end nothing stays, unless the options ask for it. Raises SandboxError as ``carry_out``
    does, and for an unusable log.
    """
    with interrupt_on_termination(), scratch_folder() as scratch, log.begin() as writer:
        job = replace(options.job(None if options.local else sandbox_name(writer.run)), layers=layers)
        began = ev.RunBegan(task=job.task, agent=job.spec.name, options=options.to_data())
        writer.append(began)
        try:
            snapshot = copy_repository(job, scratch, _place(log, writer, options, scratch), screen)
            return _in_sandbox(options, job, writer, screen, snapshot, scratch, None)
        except BaseException as error:
            if not _has_end(log, writer.run):
                _note_failure(writer, error)
                writer.forget()
            raise


def resume_recorded(
    options: AgentOptions,
    run: str,
    log: EventLog,
    screen: Screen,
    *,
    fresh: bool,
    say: str,
    layers: tuple[Layer, ...] = (),
) -> Outcome:
    """Continue a recorded run in its sandbox, or in a ``fresh`` one. ``say`` is a message for the model.

    Raises SandboxError: ``run_in_use``, ``run_not_resumable``, and as ``carry_out_recorded`` does.
    """
    with interrupt_on_termination(), scratch_folder() as scratch, log.begin(run) as writer:
        known = record_of(log, run)
        check_resumable(known, options.budget())
        replies = _replies(log, known, options.found()[0])
        before = log.folder(run) / "before"
        if fresh:
            _refuse_second_sandbox(known, options)
            shutil.rmtree(before, ignore_errors=True)
            job = options.job(None if options.local else sandbox_name(run), replies=replies)
            snapshot = copy_repository(job, scratch, _place(log, writer, options, scratch), screen)
        else:
            job = options.job(sandbox_name(run), attached=True, replies=replies)
            snapshot = _found_again(options, before, known)
        job = replace(job, layers=layers)
        return _in_sandbox(options, job, writer, screen, snapshot, scratch, known, fresh=fresh, say=say)


def _in_sandbox(
    options: AgentOptions,
    job: Job,
    writer: RunWriter,
    screen: Screen,
    snapshot: Snapshot,
    scratch: Path,
    known: RunRecord | None,
    *,
    fresh: bool = False,
    say: str = "",
) -> Outcome:
    attached = known is not None and not fresh
    environment = (
        _attached(job, options, snapshot, known)
        if known is not None and attached
        else job.open_environment(snapshot.copy)
    )
    keeps = attached  # until it is known how the run ended, what others made is not ours to remove
    over = False  # whether nobody can continue the run any more
    try:
        with progress():
            start(job, environment, snapshot)
        if not attached:
            snapshot = initialize_repository(job, environment, snapshot, screen)
            _note_laid(options, snapshot)
        agent = agent_of(job, environment, screen)
        agent.hooks.append(Mailbox(mailbox_of(writer.log, writer.run), lambda line: screen.line(line, "yellow")))
        with listening(job.inbox, screen):
            run = _run(agent, options, job, writer, known, same=not fresh, say=say)
        ended = _has_end(writer.log, writer.run)
        if run.status is RunStatus.cancelled and (not ended or _is_paused(writer)):
            run = replace(run, status=RunStatus.paused, reason="The run was interrupted.")
        keeps = not options.local  # until what it has done is in our hands
        outcome = _outcome(job, run, environment, snapshot, scratch / "after")
        waits = run.waits or not ended or outcome.diff is None
        keeps = keeps and (waits or options.keeps)
        over = not waits and run.status in ENDS
        outcome = replace(outcome, recorded=writer.run, kept=keeps, unrecorded=not ended)
        outcome = replace(outcome, kept_seconds=options.kept_seconds, asked_to_keep=options.keeps)
    finally:
        with ignore_interrupts():
            if keeps:
                environment.close()
            else:
                environment.remove()
            if over or not keeps:
                _tidy(writer)
    return replace(outcome, connections=environment.connections)  # those too that its end has cut


def _outcome(job: Job, run: AgentRun, environment: Environment, snapshot: Snapshot, after: Path) -> Outcome:
    """Return the outcome of the run, even if the host has no room to collect it: the run itself must not be lost for
    that.
    """
    if run.status in GOES_ON:
        return Outcome(run=run, interrupted=run.status is RunStatus.paused)
    try:
        return collect_outcome(job, run, environment, snapshot, after)
    except KeyboardInterrupt:
        return Outcome(run=run, interrupted=True)
    except SandboxError as error:
        return Outcome(run=run, refused=error)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        refused = SandboxError(
            ErrorCode.host_disk_full if full else ErrorCode.io_error,
            f"The changes of the run could not be read: {error.strerror or error}.",
            "Free some space in the folder for temporary files, or name another with TMPDIR.",
        )
        return Outcome(run=run, refused=refused)


def _run(
    agent: Agent, options: AgentOptions, job: Job, writer: RunWriter, known: RunRecord | None, *, same: bool, say: str
) -> AgentRun:
    with lineage.within(job.spec.name, writer.run):
        if known is None:
            recorder = record(agent, writer)
            return until_interrupted(agent, lambda: told_of(recorder, agent.execute(job.task)))
        return until_interrupted(agent, lambda: resume(agent, writer, same=same, say=say, options=options.to_data()))


def _replies(log: EventLog, known: RunRecord, hub: Hub) -> int:
    """Return how many replies of a script the run and its delegated runs used, without those that have their own
    brain.
    """
    own_brain = known.agent in hub.names() and hub.load(known.agent).brain is not None
    used = 0 if own_brain else sum(step.decided is not None for step in known.steps)
    return used + sum(_replies(log, record_of(log, child), hub) for child in known.children)


def _attached(job: Job, options: AgentOptions, snapshot: Snapshot, known: RunRecord) -> Environment:
    try:
        return job.open_environment(snapshot.copy)
    except SandboxError as error:
        if error.code not in (ErrorCode.sandbox_not_found, ErrorCode.sandbox_unavailable):
            raise
        raise _sandbox_gone(known, options) from error


def _sandbox_gone(known: RunRecord, options: AgentOptions) -> SandboxError:
    time = duration(options.kept_seconds)
    if known.status in (None, *GOES_ON):
        why = f"it ended, or was not used for {time}"
    else:
        why = f"the run ended ({known.status}), and it was removed then, or after {time} without use"
    return SandboxError(
        AgentErrorCode.run_not_resumable,
        f"The sandbox of the run {known.run} is gone: {why}.",
        "Go on in a new sandbox, with the repository as it is now and without what the run had changed: "
        f"gamebox runs resume {known.run} --fresh.",
    )


def _refuse_second_sandbox(known: RunRecord, options: AgentOptions) -> None:
    if options.local:
        return
    if sandbox_of_run(known.run) is not None:
        raise SandboxError(
            AgentErrorCode.run_not_resumable,
            f"The sandbox of the run {known.run} is still there.",
            f"Leave out --fresh, or end that one first: gamebox rm {sandbox_name(known.run)}.",
        )


def sandbox_of_run(run: str) -> object | None:
    """Return the engine's sandbox of a run; None if there is none. Raises SandboxError as the engine does."""
    from sandbox.docker.engine.client import connect
    from sandbox.docker.kept.inventory import sandboxes

    return next((each for each in sandboxes(connect()) if each.kept and each.name == sandbox_name(run)), None)


def remove_sandbox_of_run(run: str) -> bool:
    """Remove the sandbox of a run, and return whether there was one. Raises SandboxError if it is in use, or as the
    engine does.
    """
    from sandbox.docker.kept.inventory import Listed, remove

    found = sandbox_of_run(run)
    if isinstance(found, Listed):
        remove(found)
    return found is not None


def _place(log: EventLog, writer: RunWriter, options: AgentOptions, scratch: Path) -> Path:
    """Return where to copy the repository: beside the log if another process may need it."""
    return (scratch if options.local else log.folder(writer.run)) / "before"


def _found_again(options: AgentOptions, before: Path, known: RunRecord) -> Snapshot:
    """Return the copy that was made at the beginning. Raises SandboxError ``run_not_resumable`` if it is gone."""
    if not before.is_dir():
        raise _sandbox_gone(known, options)
    repo = options.repo
    files = states_under(before)
    return Snapshot(
        repo or before,
        before,
        Rules(repo if repo is not None and repo.is_dir() else before),
        files,
        laid=_noted_laid(before, files),
    )


def _note_laid(options: AgentOptions, snapshot: Snapshot) -> None:
    """Keep beside the copy what is not part of the changes, for a process that resumes the run."""
    if snapshot.laid and not options.local:
        snapshot.copy.with_name(LAID).write_text(json.dumps(snapshot.laid), encoding="utf-8")


def _noted_laid(before: Path, files: Collection[str]) -> tuple[str, ...]:
    try:
        found = json.loads(read_file(before.with_name(LAID), MOST_LAID_BYTES))
    except (OSError, ValueError):
        return ()
    return checked(found, files) if isinstance(found, list) else ()


def _tidy(writer: RunWriter) -> None:
    """Remove the files of a run, except messages to one that may continue."""
    with contextlib.suppress(SandboxError):
        if waiting(mailbox_of(writer.log, writer.run)) and record_of(writer.log, writer.run).status in GOES_ON:
            return
    writer.forget()


def _has_end(log: EventLog, run: str) -> bool:
    try:
        return record_of(log, run).status is not None
    except SandboxError:
        return False


def _is_paused(writer: RunWriter) -> bool:
    with contextlib.suppress(SandboxError):
        return record_of(writer.log, writer.run).status == RunStatus.paused
    return True


def _note_failure(writer: RunWriter, error: BaseException) -> None:
    status = RunStatus.cancelled if isinstance(error, KeyboardInterrupt) else RunStatus.failed
    reason = error.message if isinstance(error, SandboxError) else f"{type(error).__name__}: {error}"
    with contextlib.suppress(SandboxError):  # the first error is the one to tell
        writer.append(ev.RunEnded(status=status.value, reason=reason))
