"""Record an agent's run, and resume one from its log, by wrapping the parts of the agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from agent.store.log import EventLog, RunWriter
from agent.store.reading import RunRecord, record_of, spoken
from agent.store.verify import verify
from sandbox.environment.base import Environment
from sandbox.errors import ErrorCode, SandboxError

from . import events as ev
from .approvals import ApprovingEnvironment
from .budget import Budget
from .errors import AgentErrorCode
from .hooks import Step
from .kits import EquippedEnvironment
from .loop import Agent
from .memory import Memory
from .recorded import RecordedBrain, RecordedEnvironment, current_recorder
from .recording import Recorder
from .run import AgentRun
from .status import RunStatus, StopRun
from .wrapped import WrappedEnvironment

# After these a run goes on in its sandbox, in the middle of the step that it was in.
GOES_ON = (RunStatus.paused, RunStatus.environment_lost)
# After these nobody continues a run.
ENDS = (RunStatus.finished, RunStatus.rejected)
LOG_FAULTS = (AgentErrorCode.log_unusable, ErrorCode.host_disk_full)
FRESH = (
    "The run was cut off and its sandbox is gone. It goes on in a new sandbox with the repository as it is now: nothing that was "
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
    """Record the next run of ``agent`` as a new run, or as a part of the run that ``above`` records. When that run has ended,
    the agent is as it was before. Raises SandboxError.
    """
    hidden = agent.environment.hidden
    writer.append(
        ev.RunBegan(
            task=hidden.mask.text(task), agent=name, options=hidden.data(dict(options)), budget=asdict(agent.budget),
            step=0 if above is None else above.step,
        )
    )  # fmt: skip
    return _laid_around(agent, writer, None, same=True, above=above)


def record(agent: Agent, writer: RunWriter) -> Recorder:
    """Do the same as ``begin`` for a run whose first event, RunBegan, is written already."""
    return _laid_around(agent, writer, None, same=True, above=None)


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
    recorder = _laid_around(agent, writer, known, same=same, above=above)
    recorder.said = say
    try:
        _restore_kits(agent.environment, known)
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


def _laid_around(
    agent: Agent, writer: RunWriter, known: RunRecord | None, *, same: bool, above: Recorder | None
) -> Recorder:
    equipped = next((e for e in _layers(agent.environment) if isinstance(e, EquippedEnvironment)), None)
    kits = equipped.kits if equipped is not None else ()
    recorder = Recorder(writer, agent.environment.hidden, kits=kits, resumed=known, above=above, actions=agent.actions)
    before = agent.environment
    layers = _layers(before)
    asking = next((each for each in layers if isinstance(each, ApprovingEnvironment)), None)
    outside: Any = None  # what lies around approvals comes within the record: they come around it
    inner = before
    if asking is not None and asking is not before:
        outside = layers[layers.index(asking) - 1]
        outside.inner = asking.inner
    elif asking is not None:
        inner = asking.inner
    recorded = RecordedEnvironment(inner, recorder, same=same)
    within_approvals = None if asking is None else asking.inner
    around = recorded if asking is None else asking.around(recorded, recorder)
    brain = RecordedBrain(agent.generate_response, recorder)
    agent.environment, agent.generate_response = around, brain
    agent.hooks = [recorder.first, *agent.hooks, recorder.last]
    stop_listening = _listen(around, recorder)

    def detach() -> None:
        """Keep the layers that others have added to the agent meanwhile."""
        agent.hooks = [hook for hook in agent.hooks if hook not in (recorder.first, recorder.last)]
        if agent.generate_response is brain:
            agent.generate_response = brain.brain
        for layer in _layers(agent.environment):
            if isinstance(layer, ApprovingEnvironment):
                layer.without_recorder(recorder)
        if asking is not None and within_approvals is not None:
            asking.inner = within_approvals
        if outside is not None:
            outside.inner = asking
        _replace(agent, around, before)
        stop_listening()
        recorder.detach = lambda: None

    recorder.detach = detach
    return recorder


def _replace(agent: Agent, old: Environment, new: Environment) -> None:
    """Put ``new`` where ``old`` is among what lies around the agent's environment."""
    if agent.environment is old:
        agent.environment = new
        return
    for layer in _layers(agent.environment):
        if isinstance(layer, WrappedEnvironment) and layer.inner is old:
            layer.inner = new
            return


def _layers(environment: Environment) -> list[Environment]:
    """The environment and those within it, the outermost first."""
    layers = [environment]
    while isinstance(layers[-1], WrappedEnvironment):
        layers.append(layers[-1].inner)
    return layers


def _listen(environment: Environment, recorder: Recorder) -> Callable[[], None]:
    """Hear of each connection, where the environment tells of them, beside the one who does already; returns what ends that."""
    inner: Any = _layers(environment)[-1]
    if not hasattr(inner, "on_connection"):
        return lambda: None
    before = inner.on_connection

    def told(connection: Any) -> None:
        recorder.connected(connection)
        if before is not None:
            before(connection)

    def stop() -> None:
        if inner.on_connection is told:
            inner.on_connection = before

    inner.on_connection = told
    return stop


def _restore_kits(environment: Environment, record: RunRecord) -> None:
    for layer in _layers(environment):
        if isinstance(layer, EquippedEnvironment):
            for kit in layer.kits:
                if kit.name in record.kits:
                    _restore(kit, record)


def _restore(kit: Any, record: RunRecord) -> None:
    try:
        kit.restore(record.kits[kit.name])
    except (ValueError, TypeError, KeyError) as error:
        raise SandboxError(
            AgentErrorCode.run_not_resumable,
            f"The state of {kit.name!r} in the run {record.run} cannot be restored: {error}",
            "Resume it with the version of gamebox that recorded it.",
        ) from error


def _parent() -> str | None:
    above = current_recorder()
    return None if above is None else above.run
