"""Recording an agent's run, and going on with one from its log: the parts of an agent are laid around those it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from sandbox.environment import Environment
from sandbox.errors import ErrorCode, SandboxError

from . import events as ev
from . import lineage
from .budget import Budget
from .kits import EquippedEnvironment
from .loop import Agent
from .memory import Memory
from .recorded import RecordedBrain, RecordedEnvironment, current_recorder
from .recording import Recorder
from .run import AgentRun
from .store.log import EventLog, RunWriter
from .store.reading import RunRecord, record_of, spoken
from .wrapped import WrappedEnvironment

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
    """``agent.execute(task)`` with a record in ``log``; ``options`` are kept for whoever resumes it.

    Raises SandboxError where the run cannot be begun in the log.
    """
    with log.begin(run, _parent()) as writer:
        begin(agent, writer, task, name=name, options=options or {})
        return agent.execute(task)


def execute_as_part(agent: Agent, task: str, *, name: str = "") -> AgentRun:
    """``agent.execute(task)`` as a part of the run whose action the caller carries out, recorded where that is."""
    above, this = current_recorder(), lineage.current()
    if above is None:
        return agent.execute(task)
    own = this is not None and this.parent_id is not None
    return execute_recorded(agent, task, above.writer.log, name=name, run=this.run_id if this is not None and own else None)


def begin(agent: Agent, writer: RunWriter, task: str, *, name: str = "", options: Mapping[str, Any] = {}) -> Recorder:
    """Have the next run of ``agent`` recorded as a new one. Raises SandboxError."""
    hidden = agent.environment.hidden
    writer.append(
        ev.RunBegan(
            task=hidden.mask.text(task), agent=name, options=hidden.data(dict(options)), budget=asdict(agent.budget)
        )
    )
    return record(agent, writer)


def record(agent: Agent, writer: RunWriter) -> Recorder:
    """The same where the run's first event, RunBegan, is written already."""
    return _laid_around(agent, writer, None, same=True)


def resume(
    agent: Agent, writer: RunWriter, *, same: bool = True, options: Mapping[str, Any] | None = None, say: str = "",
    prepare: Callable[[Agent], None] | None = None,
) -> AgentRun:  # fmt: skip
    """Go on with the run that ``writer`` holds, in ``agent``, made as it was made at first; ends with the run's end.

    ``same`` says that the agent's environment is the sandbox that it had; else the model is told that it is a new one. ``say``
    is what the user has to say. ``prepare`` may lay more around the agent, approvals say. Kits, memory, steps and all
    counters are as they were. Raises SandboxError: ``run_not_resumable`` where it finished or no step is left, ``log_unusable``.
    """
    before = record_of(writer.log, writer.run)
    left = check_resumable(before, agent.budget)
    task = [] if before.messages else [{"role": "user", "content": before.task}]  # it was cut off before its first step
    notes = [*task, *([] if same else [{"role": "user", "content": FRESH}]), *([spoken(say)] if say else [])]
    hidden = agent.environment.hidden.data
    writer.append(
        ev.RunResumed(
            fresh=not same, notes=tuple(hidden(notes)), options=hidden(dict(options or {})), budget=asdict(agent.budget)
        )
    )
    known = record_of(writer.log, writer.run)
    _laid_around(agent, writer, known, same=same)
    _restore_kits(agent.environment, known)
    if prepare is not None:
        prepare(agent)
    agent.set_current_task = _nothing  # type: ignore[method-assign]  # it is in the memory
    return agent.execute(known.task, remembered(agent, known), left)


def check_resumable(record: RunRecord, budget: Budget) -> int:
    """How many steps are left. Raises SandboxError ``run_not_resumable``."""
    if record.status in ("finished", "rejected"):
        raise SandboxError(
            ErrorCode.run_not_resumable,
            f"The run {record.run} ended: {record.status}, {record.reason}",
            "Give another task with gamebox agent.",
        )
    left = budget.max_iterations - record.ended_steps
    if left < 1:
        raise SandboxError(
            ErrorCode.run_not_resumable,
            f"The run {record.run} took all of its {budget.max_iterations} steps.",
            f"Give it more: --max-iterations {budget.max_iterations + 20}.",
        )
    return left


def remembered(agent: Agent, record: RunRecord) -> Memory:
    """The memory of the run as it was. One with a ``restore`` is given its messages at once, and then its state."""
    memory = agent.new_memory()
    restore = getattr(memory, "restore", None)
    if restore is not None:
        memory.items.extend(record.messages)
        restore(record.condensed)
        return memory
    for message in record.messages:
        memory.add_memory(message)
    return memory


def _laid_around(agent: Agent, writer: RunWriter, known: RunRecord | None, *, same: bool) -> Recorder:
    equipped = next((e for e in _layers(agent.environment) if isinstance(e, EquippedEnvironment)), None)
    kits = equipped.kits if equipped is not None else ()
    recorder = Recorder(writer, agent.environment.hidden, kits=kits, resumed=known)
    agent.environment = RecordedEnvironment(agent.environment, recorder, same=same)
    agent.generate_response = RecordedBrain(agent.generate_response, recorder)
    agent.hooks = [recorder.first, *agent.hooks, recorder.last]
    _listen(agent.environment, recorder)
    return recorder


def _layers(environment: Environment) -> list[Environment]:
    """The environment and those within it, the outermost first."""
    layers = [environment]
    while isinstance(layers[-1], WrappedEnvironment):
        layers.append(layers[-1].inner)
    return layers


def _listen(environment: Environment, recorder: Recorder) -> None:
    """Hear of each connection, where the environment tells of them, beside whoever does already."""
    inner: Any = _layers(environment)[-1]
    if not hasattr(inner, "on_connection"):
        return
    before = inner.on_connection

    def told(connection: Any) -> None:
        recorder.connected(connection)
        if before is not None:
            before(connection)

    inner.on_connection = told


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
            ErrorCode.run_not_resumable,
            f"The state of {kit.name!r} in the run {record.run} cannot be restored: {error}",
            "Resume it with the version of gamebox that recorded it.",
        ) from error


def _nothing(memory: Memory, task: str) -> None:
    """Stands for adding the task."""


def _parent() -> str | None:
    above = current_recorder()
    return None if above is None else above.run
