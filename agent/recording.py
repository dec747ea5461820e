"""The recorder: writes a run into the event log while it goes on, each decision before it is carried out.

What cannot be recorded is not done: a fault of the log ends the run as ``failed``, with its words.
"""

from __future__ import annotations

import hashlib
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from agent.model.replay import stored
from agent.store.log import RunWriter
from agent.store.reading import RunRecord, StepRecord, Used
from sandbox.envelope import jsonable
from sandbox.environment.base import ActionLike
from sandbox.environment.secrets import Secrets
from sandbox.errors import SandboxError

from . import events as ev
from .answers import own_words
from .budget import current_meter
from .envelopes import LOST
from .hooks import Step
from .kits import Kit
from .memory import Memory
from .messages import exchange
from .recorded_hooks import First, Last
from .recorded_turn import UNUSED, Turn, call_of, digest_of_prompt, message_event, set_back
from .registry import ActionRegistry
from .run import AgentRun
from .status import RunStatus, StopRun

log = logging.getLogger(__name__)

# Of the connections of one run; a sandbox can make as many as it likes.
MOST_CONNECTIONS = 2000


class Recorder:
    """Writes one run. ``first`` and ``last`` are hooks: nothing may come before the one and after the other.

    ``resumed`` is the record of the run where it goes on from there. ``hidden`` are the environment's secrets, which are masked.
    ``above`` is the recorder of the run that this one is a part of: what pauses or fails that one ends this one, too.
    ``actions`` tell how calls read. ``unrecorded`` is why the end of the run is not in the log; None where it is. ``detach`` is
    called at the end of the run: it takes the recorder out of the agent again.
    """

    def __init__(
        self, writer: RunWriter, hidden: Secrets, *, kits: Iterable[Kit] = (), resumed: RunRecord | None = None,
        above: Recorder | None = None, actions: ActionRegistry | None = None,
    ) -> None:  # fmt: skip
        self.writer, self.resumed, self.above = writer, resumed, above
        self.unrecorded: SandboxError | None = None
        self.detach: Callable[[], None] = _nothing
        self._over = False
        self.said = ""  # what the user says as the run goes on
        self._parts: dict[str, Used] = dict(resumed.parts) if resumed else {}  # those that are not counted yet
        self.first, self.last = First(self), Last(self)
        self._hidden, self._kits, self._actions = hidden, tuple(kits), actions
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
        """The id of the run."""
        return self.writer.run

    @property
    def step(self) -> int:
        """The number of the step under way."""
        return self._turn.number

    @property
    def replayed(self) -> StepRecord | None:
        """What the log has of the step under way, where it is gone through again; else None."""
        return self._turn.replayed

    # --- steering ------------------------------------------------------------------
    def pause(self) -> None:
        """End the run as ``paused`` before its next step; may be called from another thread."""
        self._pausing.set()

    def stop(self, stop: StopRun) -> None:
        """End the run in the middle of the step under way, once the loop comes by: its action has no answer yet."""
        self._stop = self._stop or stop

    @property
    def is_stopping(self) -> bool:
        """Whether the run ends in the middle of the step under way, to go on there when it is resumed."""
        return self._stop is not None

    def fail(self, error: SandboxError) -> StopRun:
        """End the run as ``failed`` for a fault of the log; every later event is refused."""
        stop = StopRun(f"The run could not be recorded: {error.message}", RunStatus.failed)
        stop.__cause__ = error
        self._stop = stop
        return stop

    @property
    def is_pausing(self) -> bool:
        """Whether it is to be paused, or one above it."""
        return self._pausing.is_set() or (self.above is not None and self.above.is_pausing)

    @property
    def failed(self) -> StopRun | None:
        """Why nothing can be recorded any more, here or above."""
        if self._stop is not None and self._stop.status is RunStatus.failed:
            return self._stop
        return None if self.above is None else self.above.failed

    # --- parts ------------------------------------------------------------------
    def next_part(self) -> str:
        """The id of the next run that is a part of the step under way: the same again where that step is gone through again."""
        self._turn.parts += 1
        return hashlib.sha256(f"{self.run}/{self.step}/{self._turn.parts}".encode()).hexdigest()[:16]

    def takes_up(self, part: str) -> None:
        """The part goes on, and counts what it used before by itself."""
        self._parts.pop(part, None)

    def _count_parts(self) -> None:
        """Count what the parts used that began before this run was cut off, and do not go on."""
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
        """``data`` without secrets. What is made shorter is cleaned before: half of a secret would not be found."""
        data = jsonable(data)
        return self._hidden.data(data) if self._hidden else data

    # --- a step ------------------------------------------------------------------
    def begin(self, number: int, memory: Memory) -> None:
        """A step begins. Raises StopRun."""
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
        """The reply was read: it is in the log before it is acted on."""
        if self._turn.replayed is not None:
            return
        self.add(
            ev.ActionDecided(
                step=self._turn.number, reply=stored(step.response), tool=step.tool, args=step.args,
                prompt_sha256=digest_of_prompt(step.prompt), usage=self._used(), thought=step.thought,
                call=call_of(self._actions, step.tool, self._clean(step.args)),
            )
        )  # fmt: skip

    def started(self, action: ActionLike, args: Mapping[str, Any], request_id: str | None) -> None:
        """The action is about to be handed over."""
        self.add(ev.ActionStarted(step=self._turn.number, tool=action.name, args=dict(args), request_id=request_id))

    def executed(self, envelope: Mapping[str, Any], seconds: float, action: ActionLike | None = None) -> None:
        """The environment answered. One that is lost has not: whether it did what it was asked is found out when it is back. Nor
        has an action that stopped the run.
        """
        if envelope.get("code") in LOST or self._stop is not None:
            return
        shown = own_words(action, self._clean(envelope))
        event = ev.ActionExecuted(step=self._turn.number, envelope=dict(envelope), seconds=round(seconds, 3), shown=shown)
        self.add(event, *self._changed_states())
        self._turn.answered = True

    def handed(self) -> bool:
        """An action is handed over; whether its answer is in the log already."""
        replayed = self._turn.replayed
        self._turn.answered = replayed is not None and replayed.executed is not None
        return self._turn.answered

    def result(self, step: Step, memory: Memory) -> None:
        """Decision and answer are in the memory. Raises StopRun."""
        self._raise_stop()
        envelope = step.envelope or {}
        if envelope.get("code") in LOST:
            return
        self._count_parts()
        told = exchange(step.response, envelope)
        new = self._new(memory)
        implied = new[len(new) - len(told) :] == told
        extra = new[: len(new) - len(told)] if implied else new
        events = [message_event(message) for message in extra]
        if not self._turn.answered:
            events.append(ev.ActionExecuted(step=self._turn.number, envelope=envelope, handed_over=False))
        notices = envelope.get("notices")
        ended = ev.StepEnded(
            step=self._turn.number, notices=list(notices) if notices else None, usage=self._used(),
            seconds=round(self._seconds() - self._turn.seconds, 3), implied=implied,
        )  # fmt: skip
        self._held = [*events, *self._changed_states(memory), ended]
        self._turn.replayed, self._turn.open = None, False
        if self.resumed is not None:
            self._tell(self.resumed, memory)

    def catch_up(self, memory: Memory) -> None:
        """Write the messages that were added to the memory by whomever, and the states that changed."""
        events = [*(message_event(message) for message in self._new(memory)), *self._changed_states(memory)]
        if self._held:
            self._held += events
        elif events:
            self.add(*events)

    def end(self, run: AgentRun) -> None:
        """The run ended. Where that cannot be written, ``unrecorded`` says why: the run has an outcome, which must not be lost."""
        self._over = True
        self.detach()
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
        """A connection ended; called in a thread of the network's own. Those after the end of the run are not its own."""
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
        """Add what was to be told after the step that the run went on in the middle of; the log has it with RunResumed."""
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
        """Restore what was used before, and refuse to go on beyond a limit."""
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
        for kit in self._kits:
            state = jsonable(kit.snapshot())
            if state != self._states.get(kit.name):
                self._states[kit.name] = state
                events.append(ev.StateChanged(kit=kit.name, state=state))
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
        """What was used since the last time this was asked in this step; {} for nothing."""
        meter = current_meter()
        if meter is None or meter.usage == self._turn.used:
            return {}
        now, before = asdict(meter.usage), asdict(self._turn.used)
        self._turn.used = meter.usage
        return {name: round(now[name] - before[name], 9) for name in now}


def _nothing() -> None:
    """Stand for what is to be done at the end until somebody sets it."""
