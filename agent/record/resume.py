"""Record an agent's run, and resume one from its log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from agent.core.agent import Agent
from agent.core.budget import Budget
from agent.core.environment_wrapper import WrappedEnvironment
from agent.core.kits import EquippedEnvironment, Kit
from agent.core.loop.layers import Layer, with_state
from agent.core.run import AgentRun, Step
from agent.core.status import RunStatus, StopRun
from agent.errors import AgentErrorCode
from agent.memory import Memory
from agent.record.store.log import EventLog, RunWriter
from agent.record.store.run_record import RunRecord, record_of, spoken
from agent.record.store.verify import verify
from sandbox.environment.base import Environment
from sandbox.errors import ErrorCode, SandboxError

from . import events as ev
from .recorder import Recorder, arranged, current_recorder

# After these a run goes on in its sandbox, in the middle of the step that it was in.
GOES_ON = (RunStatus.paused, RunStatus.environment_lost)
# After these nobody continues a run.
ENDS = (RunStatus.finished, RunStatus.rejected)
LOG_FAULTS = (AgentErrorCode.log_unusable, ErrorCode.host_disk_full)
FRESH = (
    "The run was cut off and its sandbox is gone. It continues in a new sandbox with the repository as it is now: nothing that was "
    "changed, started or installed before is there. Look at the files before you rely on what was done."
)


def execute_recorded(
    agent: Agent,
    task: str,
    log: EventLog,
    *,
    name: str = "",
    options: Mapping[str, Any] | None = None,
    run: str | None = None,
) -> AgentRun:
    """Call ``agent.execute(task)`` and record it in ``log``; ``options`` are stored for resuming it. Afterwards the agent is as
    it was before: its next run is not recorded unless you ask for it again.

    Raises SandboxError if the run cannot be begun in the log.
    """
    with log.begin(run, _parent()) as writer:
        recorder = begin(agent, writer, task, name=name, options=options or {})
        try:
            return told_of(recorder, agent.execute(task))
        finally:
            recorder.detach()


def told_of(recorder: Recorder, run: AgentRun) -> AgentRun:
    """Return ``run``; if its end could not be recorded, with the log's fault as its error."""
    return run if recorder.unrecorded is None or run.error is not None else replace(run, error=recorder.unrecorded)


def next_part() -> str | None:
    """Return the id of the run that ``execute_as_part`` would begin or resume next, or None if nothing is recorded."""
    above = current_recorder()
    return None if above is None else above.next_part()


def execute_as_part(agent: Agent, task: str, *, name: str = "", run: str | None = None) -> AgentRun:
    """Call ``agent.execute(task)`` as a part of the run whose action the caller carries out, and record it if that run is
    recorded.

    A part that was begun before that run was cut off is resumed; if it had ended, its recorded result is returned. ``run`` is
    the value of ``next_part``. A part that is paused, or cannot be recorded, ends the run above in the middle of this action.
    """
    above = current_recorder()
    if above is None:
        return agent.execute(task)
    try:
        with above.writer.log.begin(run or above.next_part(), above.run) as writer:
            done, unrecorded = _part(agent, task, name, writer, above)
    except SandboxError as error:
        if error.code in LOG_FAULTS:
            above.fail(error)
        raise
    if unrecorded is not None:
        above.fail(unrecorded)
    elif done.status is RunStatus.paused:
        above.stop(StopRun(f"{name or 'A part'} is paused: {done.reason}", RunStatus.paused, done.result))
    return done


def _part(
    agent: Agent, task: str, name: str, writer: RunWriter, above: Recorder
) -> tuple[AgentRun, SandboxError | None]:
    if writer.log.head(writer.run) is None:
        recorder = begin(agent, writer, task, name=name, above=above)
        try:
            return agent.execute(task), recorder.unrecorded
        finally:
            recorder.detach()
    known = record_of(writer.log, writer.run)
    _check_is_part(known, writer.log, above)
    if known.status in (None, *GOES_ON) and known.ended_steps >= agent.budget.max_iterations:
        steps = known.ended_steps  # it was cut off when it had only to be told that
        ended = ev.RunEnded(
            status=RunStatus.max_iterations.value, reason=f"{steps} steps were taken.", usage=asdict(known.usage),
            seconds=known.seconds,
        )  # fmt: skip
        writer.append(ended)
        known = record_of(writer.log, writer.run)
    if known.status not in (None, *GOES_ON):
        return _as_it_ended(agent, known), None
    above.takes_up(writer.run)
    recorder, run = _resumed(agent, writer, same=True, options={}, say=above.said, above=above)
    return replace(run, steps=_steps_of(record_of(writer.log, writer.run))), recorder.unrecorded


def _check_is_part(known: RunRecord, log: EventLog, above: Recorder) -> None:
    """Refuse a record that somebody else put where a part of the run above would be: anybody can work out the ids of parts.

    Raises SandboxError ``log_unusable``.
    """
    if known.parent == above.run and (verify(log, known.run).signed or not log.is_signed(above.run)):
        return
    raise SandboxError(
        AgentErrorCode.log_unusable,
        f"The log has a run {known.run} where a part of the run {above.run} belongs, but Gamebox did not record it as that part.",
        f"Do not continue this run: start its task again. See what was changed: gamebox runs verify {known.run}.",
    )


def _as_it_ended(agent: Agent, record: RunRecord) -> AgentRun:
    return AgentRun(
        status=RunStatus(record.status or ""), reason=record.reason, memory=remembered(agent, record), steps=_steps_of(record),
        result=record.result, usage=record.usage, seconds=record.seconds,
    )  # fmt: skip


def _steps_of(record: RunRecord) -> tuple[Step, ...]:
    return tuple(
        Step(step.number, None, step.reply, step.tool, step.args, step.envelope, step.seconds, step.thought)
        for step in record.steps
    )


def begin(
    agent: Agent, writer: RunWriter, task: str, *, name: str = "", options: Mapping[str, Any] = {}, above: Recorder | None = None
) -> Recorder:
    """Record the next run of ``agent`` as a new run, or as a part of the run that ``above`` records. Raises SandboxError."""
    hidden = agent.environment.hidden
    writer.append(
        ev.RunBegan(
            task=hidden.mask.text(task), agent=name, options=hidden.data(dict(options)), budget=asdict(agent.budget),
            step=0 if above is None else above.step,
        )
    )  # fmt: skip
    return _attached(agent, writer, None, same=True, above=above)


def record(agent: Agent, writer: RunWriter) -> Recorder:
    """Do the same as ``begin`` for a run whose first event, RunBegan, is written already."""
    return _attached(agent, writer, None, same=True, above=None)


def resume(
    agent: Agent, writer: RunWriter, *, same: bool = True, options: Mapping[str, Any] | None = None, say: str = "",
) -> AgentRun:  # fmt: skip
    """Continue the run that ``writer`` holds, in an ``agent`` that is built as it was at first. Returns when the run ends.

    ``same`` says that the agent's environment is the sandbox that it had; otherwise the model reads that it is a new one.
    ``say`` is a message of the user, which the part in progress gets, too. Kits, memory, steps and all counters are as they
    were. Raises SandboxError: ``run_not_resumable`` if the run has finished or no step is left, ``log_unusable``.
    """
    recorder, run = _resumed(agent, writer, same=same, options=options or {}, say=say, above=None)
    return told_of(recorder, run)


def _resumed(
    agent: Agent, writer: RunWriter, *, same: bool, options: Mapping[str, Any], say: str, above: Recorder | None
) -> tuple[Recorder, AgentRun]:
    before = record_of(writer.log, writer.run)
    left = check_resumable(before, agent.budget)
    task = [] if before.messages else [{"role": "user", "content": before.task}]  # it was cut off before its first step
    notes = [*task, *([] if same else [{"role": "user", "content": FRESH}]), *([spoken(say)] if say else [])]
    hidden = agent.environment.hidden.data
    own = before.own
    writer.append(
        ev.RunResumed(
            fresh=not same, notes=tuple(hidden(notes)), options=hidden(dict(options)), budget=asdict(agent.budget),
            usage=asdict(own.usage), seconds=own.seconds,
        )
    )  # fmt: skip
    known = record_of(writer.log, writer.run)
    recorder = _attached(agent, writer, known, same=same, above=above)
    recorder.said = say
    try:
        for hook in agent.hooks:
            hook.on_resume(recorder.behind)
        return recorder, agent.execute(known.task, remembered(agent, known), left, add_task=False)
    finally:
        recorder.detach()


def check_resumable(record: RunRecord, budget: Budget) -> int:
    """Return how many steps are left. Raises SandboxError ``run_not_resumable``."""
    if record.status in ENDS:
        raise SandboxError(
            AgentErrorCode.run_not_resumable,
            f"The run {record.run} ended: {record.status}, {record.reason}",
            "Give another task with gamebox agent.",
        )
    left = budget.max_iterations - record.ended_steps
    if left < 1:
        raise SandboxError(
            AgentErrorCode.run_not_resumable,
            f"The run {record.run} used all of its {budget.max_iterations} steps.",
            f"Give it more: --max-iterations {budget.max_iterations + 20}.",
        )
    return left


def remembered(agent: Agent, record: RunRecord) -> Memory:
    """Return the memory of the run as it was. If it has ``restore``, it gets its messages first, and then its state."""
    memory = agent.new_memory()
    restore = getattr(memory, "restore", None)
    if restore is not None:
        memory.items.extend(record.messages)
        restore(record.condensed)
        return memory
    for message in record.messages:
        memory.add_memory(message)
    return memory


def _attached(
    agent: Agent, writer: RunWriter, known: RunRecord | None, *, same: bool, above: Recorder | None
) -> Recorder:
    """Return a recorder, which is a layer of the next run of ``agent``."""
    kits = [kit for each in _layers(agent.environment) if isinstance(each, EquippedEnvironment) for kit in each.kits]
    recorder = Recorder(
        writer, agent.environment, kits=kits, resumed=known, above=above, actions=agent.actions, same=same
    )

    def arrange(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
        if known is not None:
            _restore_states({kit.name: kit for kit in kits} | {each.state_name: each for each in with_state(layers)}, known)
            for layer in layers:
                layer.on_resume(recorder.behind)
        return arranged(layers, recorder)

    agent.arrange_next_run(arrange)

    def detach() -> None:
        agent.arrange_next_run(None)
        recorder.close()

    recorder.detach = detach
    return recorder


def _layers(environment: Environment) -> list[Environment]:
    """Return the environment and those within it, the outermost first."""
    layers = [environment]
    while isinstance(layers[-1], WrappedEnvironment):
        layers.append(layers[-1].inner)
    return layers


def _restore_states(sources: Mapping[str, Kit | Layer], record: RunRecord) -> None:
    """Restore the states of kits and layers. Raises SandboxError ``run_not_resumable``."""
    for name, source in sources.items():
        if name not in record.kits:
            continue
        try:
            source.restore(record.kits[name])
        except (ValueError, TypeError, KeyError) as error:
            raise SandboxError(
                AgentErrorCode.run_not_resumable,
                f"The state of {name!r} in the run {record.run} cannot be restored: {error}",
                "Resume it with the version of gamebox that recorded it.",
            ) from error


def _parent() -> str | None:
    above = current_recorder()
    return None if above is None else above.run
