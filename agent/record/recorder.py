"""The recorder: a layer that writes a run into the event log while it goes on, each call before it is carried out.

A call that cannot be recorded is not carried out: a fault of the log ends the run as ``failed``.
"""

from __future__ import annotations

import hashlib
import logging
import sys
import threading
import time
from asyncio import CancelledError
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from agent.core.budget import current_meter
from agent.core.envelopes import LOST, not_begun
from agent.core.kits import Kit
from agent.core.loop.layers import Flow, Layer, with_state
from agent.core.loop.turns import Ask, Call
from agent.core.registry import ActionRegistry
from agent.core.run import AgentRun, Step
from agent.core.status import RunStatus, StopRun
from agent.memory import Memory
from agent.memory.exchange import exchange
from agent.model.replay import stored
from agent.record.store.log import RunWriter
from agent.record.store.run_record import CallRecord, RunRecord, Used
from sandbox.envelope import jsonable
from sandbox.environment.base import ActionLike, Environment
from sandbox.errors import ErrorCode, SandboxError

from . import events as ev
from .answers import own_words
from .interrupted_calls import gone, interrupted, is_repeatable, request_id_of, unknown, unrecorded
from .turn import UNUSED, Turn, call_of, digest_of_prompt, message_event, set_back

log = logging.getLogger(__name__)

# Of the connections of one run; a sandbox can make as many as it likes.
MOST_CONNECTIONS = 2000


_recording: ContextVar[tuple[Recorder, int] | None] = ContextVar("gamebox_recorder", default=None)


def current_recorder() -> Recorder | None:
    """Return the recorder of the run whose tool call the caller carries out; None outside of one. A run that begins there is a part
    of that run.
    """
    under_way = _recording.get()
    return None if under_way is None else under_way[0]


def current_call() -> int:
    """Return the index of the tool call that the caller carries out, within its reply."""
    under_way = _recording.get()
    return 0 if under_way is None else under_way[1]


class Recorder(Layer):
    """A layer that writes one run. It stands after approvals, before all others.

    ``resumed`` is the record of the run if it continues; a tool call that was cut off is then not simply carried out again: an
    answer in the log is answered again, and a call that was started is asked for again by its request id if the sandbox is still
    the ``same``, or repeated if that does no harm; of every other call the answer is that nobody knows (``effects_unknown``).

    ``above`` is the recorder of the run that this one is a part of: what pauses or fails that one ends this one, too. ``actions``
    summarize calls. ``unrecorded`` is why the end of the run is not in the log, or None. Secrets of ``environment`` are masked.
    """

    def __init__(
        self, writer: RunWriter, environment: Environment, *, kits: Iterable[Kit] = (), resumed: RunRecord | None = None,
        above: Recorder | None = None, actions: ActionRegistry | None = None, same: bool = True,
    ) -> None:  # fmt: skip
        self.writer, self.resumed, self.above, self.same = writer, resumed, above, same
        self.unrecorded: SandboxError | None = None
        self.detach: Callable[[], None] = _nothing  # takes back that the next run of an agent is recorded
        self._stop_listening = _listen(environment, self)
        self._memory: Memory | None = None
        self._over = False
        self.said = ""  # what the user says as the run goes on
        self._parts: dict[str, Used] = dict(resumed.parts) if resumed else {}  # those that are not counted yet
        self._hidden, self._actions = environment.hidden, actions
        self._sources: dict[str, Kit | Layer] = {kit.name: kit for kit in kits}  # of states
        self._states: dict[str, Any] = dict(resumed.kits) if resumed else {}
        self._condensed: Any = resumed.condensed if resumed else None
        self.behind = 0  # steps that had ended when it was resumed: the loop does not count them
        if resumed is not None:
            behind = resumed.steps[-1].number if resumed.steps else 0
            self.behind = behind - (1 if resumed.steps and not resumed.steps[-1].ended else 0)
        self._seen = len(resumed.messages) if resumed else 0
        self._turn = Turn(0, open=False)
        self._stop: StopRun | None = None
        # The end of a step, written with what comes next: it may be the end of the run, which must not be lost alone.
        self._held: list[ev.Event] = []
        self._pausing = threading.Event()
        self._connections = len(resumed.connections) if resumed else 0

    @property
    def run(self) -> str:
        """The run's id."""
        return self.writer.run

    @property
    def step(self) -> int:
        """The number of the step under way."""
        return self._turn.number

    # --- as a layer ------------------------------------------------------------------
    def before_step(self, step: Step, memory: Memory) -> None:
        self._memory = memory
        self.begin(step.number, memory)

    def around_ask(self, ask: Ask) -> Flow:
        """Answer the first question of a run that continues in the middle of a step from the log. Ctrl-C pauses the run."""
        if self._memory is not None:
            self.catch_up(self._memory)
        if self._turn.replayed is not None:
            return self._turn.replayed.reply
        try:
            return (yield ask)
        except KeyboardInterrupt as error:
            raise StopRun("The run was interrupted.", RunStatus.paused) from error

    def after_decision(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        self.decide(step)

    def around_do(self, call: Call) -> Flow:
        """Record the call before and after it is carried out, and never carry it out twice."""
        action, before = call.action, self.call_before(call.index)
        if before is not None and before.executed is not None:
            self._turn.answered.add(call.index)
            return dict(before.executed.envelope)
        if action is None or (self._stop is not None and self.failed is None):
            return self._settle(call, interrupted(call.name))
        if before is not None and not self.same:
            return self._settle(call, gone(action, before))
        if before is None or before.started is None:
            return (yield from self._carry_out(call, request_id_of(action, self.run, self.step, call.index)))
        request_id = before.started.request_id
        if request_id is None and not is_repeatable(action):
            return self._settle(call, unknown(action))
        envelope: dict[str, Any] = yield from self._carry_out(call, request_id)
        if (
            request_id is not None
            and envelope.get("code") == ErrorCode.invalid_arguments
            and request_id in str(envelope)
        ):
            return self._settle(call, unknown(action))  # it was asked in other words, a masked secret among them
        return envelope

    def after_answer(self, step: Step, memory: Memory) -> None:
        if step.index == 0:  # before any other layer can end the run
            self.result(step, memory)

    def after_run(self, run: AgentRun) -> None:
        self.end(run)

    def _carry_out(self, call: Call, request_id: str | None) -> Flow:
        try:
            self.started(call, request_id)
        except StopRun as stop:
            return unrecorded(call.name, stop.reason)
        began = time.monotonic()
        args = call.args if request_id is None else {**call.args, "request_id": request_id}
        try:
            envelope = yield replace(call, args=args, within=(*call.within, partial(_carrying_out, self, call.index)))
        except KeyboardInterrupt:
            self.stop(StopRun("The run was interrupted.", RunStatus.paused))
            return interrupted(call.name)
        except CancelledError:
            if call.index not in self._turn.entered:
                self._settle(call, not_begun(call.name))
            raise
        try:
            self.executed(call.index, envelope, time.monotonic() - began, call.action)
        except StopRun:
            pass  # ``result`` ends the run
        return envelope

    def _settle(self, call: Call, envelope: dict[str, Any]) -> dict[str, Any]:
        """Record the answer to a call that is not carried out, and return it."""
        try:
            self.executed(call.index, envelope, 0.0)
        except StopRun as stop:
            self.stop(stop)
        return envelope

    def close(self) -> None:
        """Stop listening for connections."""
        self._stop_listening()

    def watch(self, layers: Sequence[Layer]) -> None:
        """Record the states of these layers, too."""
        self._sources.update({layer.state_name: layer for layer in layers})

    def call_before(self, index: int) -> CallRecord | None:
        """Return what the log has of that call if the step was begun before the run was cut off, else None."""
        replayed = self._turn.replayed
        return replayed.calls[index] if replayed is not None and index < len(replayed.calls) else None

    # --- steering ------------------------------------------------------------------
    def pause(self) -> None:
        """End the run as ``paused`` before its next step; may be called from another thread."""
        self._pausing.set()

    def stop(self, stop: StopRun) -> None:
        """End the run in the middle of the step under way; its call under way gets no answer in the log."""
        self._stop = self._stop or stop

    @property
    def is_stopping(self) -> bool:
        """Whether the run ends in the middle of the step under way, and continues there when it is resumed."""
        return self._stop is not None

    def fail(self, error: SandboxError) -> StopRun:
        """End the run as ``failed`` for a fault of the log; every later event is refused."""
        stop = StopRun(f"The run could not be recorded: {error.message}", RunStatus.failed)
        stop.__cause__ = error
        self._stop = stop
        return stop

    @property
    def is_pausing(self) -> bool:
        """Whether somebody asked to pause this run, or one above it."""
        return self._pausing.is_set() or (self.above is not None and self.above.is_pausing)

    @property
    def failed(self) -> StopRun | None:
        """The fault after which nothing can be recorded, here or in a run above; else None."""
        if self._stop is not None and self._stop.status is RunStatus.failed:
            return self._stop
        return None if self.above is None else self.above.failed

    # --- parts ------------------------------------------------------------------
    def next_part(self) -> str:
        """Return a deterministic id for the next run that is a part of the call under way; replaying the step gives the same id."""
        index = current_call()
        self._turn.parts[index] = number = self._turn.parts.get(index, 0) + 1
        place = f"{self.step}.{index}" if index else f"{self.step}"
        return hashlib.sha256(f"{self.run}/{place}/{number}".encode()).hexdigest()[:16]

    def takes_up(self, part: str) -> None:
        """Leave the counting of what ``part`` used before to the part itself, which is resumed."""
        self._parts.pop(part, None)

    def _count_parts(self) -> None:
        """Count the usage of parts from before this run was cut off that are not resumed."""
        meter = current_meter()
        for used in self._parts.values():
            if meter is not None:
                meter.charge(used.usage)
                set_back(meter, used.seconds)
        self._parts.clear()

    def add(self, *events: ev.Event) -> None:
        """Write events. Raises StopRun ``failed`` from the fault of the log; every later call does the same."""
        failed = self.failed
        if failed is not None:
            raise failed
        try:
            self.writer.append(*(self._masked(event) for event in events))
        except SandboxError as error:
            raise self.fail(error) from error

    def _masked(self, event: ev.Event) -> ev.Event:
        return ev.event_of(event.kind, self._clean(event.to_data()))

    def _clean(self, data: Any) -> Any:
        """Return ``data`` without secrets. Mask before cutting: half of a secret would not be recognized."""
        data = jsonable(data)
        return self._hidden.data(data) if self._hidden else data

    # --- a step ------------------------------------------------------------------
    def begin(self, number: int, memory: Memory) -> None:
        """Record that a step begins. Raises StopRun if the run is to end."""
        self._raise_stop()
        if self.is_pausing:
            self._pausing.clear()
            raise StopRun("The run was paused.", RunStatus.paused)
        if number == 1:
            self._go_on()
        self.catch_up(memory)
        self._turn = Turn(self.behind + number)
        self._mark()
        held, self._held = self._held, []
        if number == 1 and self.resumed is not None and self.resumed.pending is not None:
            self._turn.replayed = self.resumed.pending
            return
        self.add(*held, ev.StepBegan(step=self._turn.number))

    def decide(self, step: Step) -> None:
        """Record one call of the reply; all are in the log before any is carried out."""
        before = self.call_before(step.index)
        if before is not None and before.decided is not None:
            return
        self.add(
            ev.ActionDecided(
                step=self._turn.number, reply=stored(step.response) if step.index == 0 else None, tool=step.tool, args=step.args,
                prompt_sha256=digest_of_prompt(step.prompt), usage=self._used(), thought=step.thought if step.index == 0 else "",
                call=call_of(self._actions, step.tool, self._clean(step.args)), index=step.index,
            )
        )  # fmt: skip

    def started(self, call: Call, request_id: str | None) -> None:
        """Record that a call is about to be carried out."""
        self.add(
            ev.ActionStarted(
                step=self._turn.number,
                tool=call.name,
                args=dict(call.args),
                request_id=request_id,
                index=call.index,
            )
        )

    def entered(self, index: int) -> None:
        """Take note that a call is carried out from now on."""
        self._turn.entered.add(index)

    def executed(
        self, index: int, envelope: Mapping[str, Any], seconds: float, action: ActionLike | None = None
    ) -> None:
        """Record the answer of the environment. If that is lost, or the call stopped the run, there is none yet."""
        if envelope.get("code") in LOST or self._stop is not None:
            return
        shown = own_words(action, self._clean(envelope))
        event = ev.ActionExecuted(
            step=self._turn.number, envelope=dict(envelope), seconds=round(seconds, 3), shown=shown, index=index
        )
        self.add(event, *self._changed_states())
        self._turn.answered.add(index)

    def result(self, step: Step, memory: Memory) -> None:
        """Prepare the events for the end of a step, whose reply and answers are in the memory. Raises StopRun."""
        self._raise_stop()
        envelopes = [call.envelope or {} for call in step.calls]
        if any(envelope.get("code") in LOST for envelope in envelopes):
            return
        self._count_parts()
        told = exchange(step.response, envelopes)
        new = self._new(memory)
        implied = new[len(new) - len(told) :] == told
        extra = new[: len(new) - len(told)] if implied else new
        events = [message_event(message) for message in extra]
        for index, envelope in enumerate(envelopes):
            if index not in self._turn.answered:
                events.append(
                    ev.ActionExecuted(step=self._turn.number, envelope=envelope, handed_over=False, index=index)
                )
        notices = [list(envelope.get("notices") or ()) or None for envelope in envelopes]
        ended = ev.StepEnded(
            step=self._turn.number, notices=notices[0], usage=self._used(), implied=implied,
            seconds=round(self._seconds() - self._turn.seconds, 3), other_notices=tuple(notices[1:]),
        )  # fmt: skip
        self._held = [*events, *self._changed_states(memory), ended]
        self._turn.replayed, self._turn.open = None, False
        if self.resumed is not None:
            self._tell(self.resumed, memory)

    def catch_up(self, memory: Memory) -> None:
        """Record messages that were added to the memory since the last time, and states that changed."""
        events = [*(message_event(message) for message in self._new(memory)), *self._changed_states(memory)]
        if self._held:
            self._held += events
        elif events:
            self.add(*events)

    def end(self, run: AgentRun) -> None:
        """Record the end of the run. If that fails, ``unrecorded`` says why: the outcome of the run must not be lost."""
        self._over = True
        self.close()
        interrupted = isinstance(sys.exception(), KeyboardInterrupt)
        status = RunStatus.paused if interrupted else run.status
        events: list[ev.Event] = []
        if not self._turn.open:  # else it is gone through again, and then they are added again
            events = [
                *self._held,
                *(message_event(message) for message in self._new(run.memory)),
                *self._changed_states(run.memory),
            ]
        usage, seconds = run.usage, run.seconds
        for used in self._parts.values():  # the run ended before it came to them
            usage, seconds = usage + used.usage, seconds + used.seconds
        ended = ev.RunEnded(
            status=status.value, reason=run.reason, result=run.result, usage=asdict(usage), seconds=round(seconds, 3)
        )
        failed = self.failed
        if failed is not None:
            log.error("%s", failed.reason)  # the reason of the run's own end, as well
            cause = failed.__cause__
            self.unrecorded = cause if isinstance(cause, SandboxError) else None
            return
        try:
            self.writer.append(*(self._masked(event) for event in (*events, ended)))
        except SandboxError as error:
            log.error("the end of the run could not be recorded: %s", error.message)  # noqa: TRY400 - it is told in words
            self.unrecorded = error

    def connected(self, connection: Any) -> None:
        """Record a connection that ended, unless the run is over; called in a thread of the network."""
        self._connections += not self._over
        if self._over or self._connections > MOST_CONNECTIONS:
            return
        last = self._connections == MOST_CONNECTIONS
        data = {"why": "further connections of this run are not kept"} if last else asdict(connection)
        try:
            self.add(ev.ConnectionClosed(connection=data))
        except StopRun:
            log.info("a connection could not be recorded; the run ends with its step", exc_info=True)

    def _tell(self, resumed: RunRecord, memory: Memory) -> None:
        """Add the messages that follow the step in which the run continued; the log has them with RunResumed."""
        notes, resumed.notes = resumed.notes, []
        for note in notes:
            memory.add_memory(note)
        self._seen += len(notes)

    # --- within ------------------------------------------------------------------
    def _raise_stop(self) -> None:
        failed = self.failed
        if failed is not None:
            raise failed from failed.__cause__
        if self._stop is not None:
            stop, self._stop = self._stop, None
            raise stop from stop.__cause__

    def _go_on(self) -> None:
        """Count what was used before the run was resumed. Raises StopRun beyond a limit."""
        meter = current_meter()
        if self.resumed is None or meter is None:
            return
        own = self.resumed.own
        meter.charge(own.usage)
        set_back(meter, own.seconds)
        meter.check()

    def _new(self, memory: Memory) -> list[dict[str, Any]]:
        new = list(memory.items[self._seen :])
        self._seen = len(memory.items)
        return new

    def _changed_states(self, memory: Memory | None = None) -> list[ev.Event]:
        events: list[ev.Event] = []
        for name, source in self._sources.items():
            state = jsonable(source.snapshot())
            if state != self._states.get(name):
                self._states[name] = state
                events.append(ev.StateChanged(kit=name, state=state))
        snapshot: Callable[[], Any] | None = getattr(memory, "snapshot", None)
        if snapshot is not None:
            state = jsonable(snapshot())
            if state != self._condensed:
                self._condensed = state
                events.append(ev.MemoryCondensed(state=state))
        return events

    def _mark(self) -> None:
        meter = current_meter()
        self._turn.used = UNUSED if meter is None else meter.usage
        self._turn.seconds = self._seconds()

    def _seconds(self) -> float:
        meter = current_meter()
        return 0.0 if meter is None else meter.seconds

    def _used(self) -> dict[str, Any]:
        """Return what was used since the last call in this step; {} for nothing."""
        meter = current_meter()
        if meter is None or meter.usage == self._turn.used:
            return {}
        now, before = asdict(meter.usage), asdict(self._turn.used)
        self._turn.used = meter.usage
        return {name: round(now[name] - before[name], 9) for name in now}


@contextmanager
def _carrying_out(recorder: Recorder, index: int) -> Iterator[None]:
    recorder.entered(index)
    token = _recording.set((recorder, index))
    try:
        yield
    finally:
        _recording.reset(token)


def arranged(layers: Sequence[Layer], recorder: Recorder) -> tuple[Layer, ...]:
    """Return the layers of a recorded run: those outside of the record, the recorder, all others."""
    recorder.watch(with_state(layers))
    outside = [layer.recorded_by(recorder) for layer in layers if layer.outside_record]
    return (*outside, recorder, *(layer for layer in layers if not layer.outside_record))


def _listen(environment: Environment, recorder: Recorder) -> Callable[[], None]:
    """Report each connection of the environment to ``recorder``, beside its own listener; returns a function that ends this."""
    inner: Any = environment
    while "inner" in vars(inner):
        inner = inner.inner
    if not hasattr(inner, "on_connection"):
        return _nothing
    before = inner.on_connection

    def heard(connection: Any) -> None:
        recorder.connected(connection)
        if before is not None:
            before(connection)

    def stop() -> None:
        if inner.on_connection is heard:
            inner.on_connection = before

    inner.on_connection = heard
    return stop


def _nothing() -> None:
    """Do nothing."""
