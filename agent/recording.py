"""The recorder: writes a run into the event log while it goes on, each decision before it is carried out.

What cannot be recorded is not done: a fault of the log ends the run as ``failed``, with its words.
"""

from __future__ import annotations

import hashlib
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sandbox.envelope import jsonable
from sandbox.environment import ActionLike
from sandbox.errors import SandboxError
from sandbox.secrecy import Secrets

from . import events as ev
from .budget import Usage, current_meter
from .envelopes import LOST
from .hooks import Hooks, Step
from .kits import Kit
from .memory import Memory
from .messages import exchange
from .model.replay import stored
from .prompt import Prompt
from .run import AgentRun
from .status import RunStatus, StopRun
from .store.chain import canonical
from .store.log import RunWriter
from .store.reading import RunRecord, StepRecord

log = logging.getLogger(__name__)

# Of the connections of one run; a sandbox can make as many as it likes.
MOST_CONNECTIONS = 2000
_UNUSED = Usage()


@dataclass(slots=True)
class _Turn:
    """The step under way. ``replayed`` is what the log has of it, where it is gone through again; ``open`` until it ended."""

    number: int
    replayed: StepRecord | None = None
    open: bool = True
    answered: bool = False
    terminal: bool = False
    used: Usage = _UNUSED
    seconds: float = 0.0


class Recorder:
    """Writes one run. ``first`` and ``last`` are hooks: nothing may come before the one and after the other.

    ``resumed`` is the record of the run where it goes on from there. ``hidden`` are the environment's secrets, which are masked.
    """

    def __init__(
        self, writer: RunWriter, hidden: Secrets, *, kits: Iterable[Kit] = (), resumed: RunRecord | None = None
    ) -> None:
        self.writer, self.resumed = writer, resumed
        self.first, self.last = _First(self), _Last(self)
        self._hidden, self._kits = hidden, tuple(kits)
        self._states: dict[str, Any] = dict(resumed.kits) if resumed else {}
        self._condensed: Any = resumed.condensed if resumed else None
        self._offset = 0
        if resumed is not None:
            behind = resumed.steps[-1].number if resumed.steps else 0
            self._offset = behind - (1 if resumed.steps and not resumed.steps[-1].ended else 0)
        self._seen = len(resumed.messages) if resumed else 0
        self._turn = _Turn(0, open=False)
        self._stop: StopRun | None = None
        self._held: list[ev.Event] = []  # the end of a step that ends the run: written with RunEnded or not at all
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
        """End the run once the loop has the answer of the action under way; that step does not count as ended."""
        self._stop = self._stop or stop

    def add(self, *events: ev.Event) -> None:
        """Write events. Raises StopRun ``failed`` from the fault of the log; every later call does the same."""
        if self._stop is not None and self._stop.status is RunStatus.failed:
            raise self._stop
        try:
            self.writer.append(*(self._masked(event) for event in events))
        except SandboxError as error:
            stop = StopRun(f"The run could not be recorded: {error.message}", RunStatus.failed)
            stop.__cause__ = error
            self._stop = stop
            raise stop from error

    def _masked(self, event: ev.Event) -> ev.Event:
        data = jsonable(event.to_data())
        return ev.event_of(event.kind, self._hidden.data(data) if self._hidden else data)

    # --- a step ------------------------------------------------------------------
    def begin(self, number: int, memory: Memory) -> None:
        """A step begins. Raises StopRun."""
        self._raise_stop()
        if self._pausing.is_set():
            self._pausing.clear()
            raise StopRun("The run was paused.", RunStatus.paused)
        if number == 1:
            self._go_on()
        self.catch_up(memory)
        self._turn = _Turn(self._offset + number)
        self._mark()
        if number == 1 and self.resumed is not None and self.resumed.pending is not None:
            self._turn.replayed = self.resumed.pending
            return
        self.add(ev.StepBegan(step=self._turn.number))

    def decide(self, step: Step) -> None:
        """The reply was read: it is in the log before it is acted on."""
        if self._turn.replayed is not None:
            return
        self.add(
            ev.ActionDecided(
                step=self._turn.number, reply=stored(step.response), tool=step.tool, args=step.args,
                prompt_sha256=digest_of_prompt(step.prompt), usage=self._used(),
            )
        )  # fmt: skip

    def started(self, action: ActionLike, args: Mapping[str, Any], request_id: str | None) -> None:
        """The action is about to be handed over."""
        self.add(ev.ActionStarted(step=self._turn.number, tool=action.name, args=dict(args), request_id=request_id))

    def executed(self, envelope: Mapping[str, Any], seconds: float) -> None:
        """The environment answered. One that is lost has not: whether it did what it was asked is found out when it is back."""
        if envelope.get("code") in LOST:
            return
        event = ev.ActionExecuted(step=self._turn.number, envelope=dict(envelope), seconds=round(seconds, 3))
        self.add(event, *self._changed_states())
        self._turn.answered = True

    def handed(self, action: ActionLike) -> bool:
        """An action is handed over; whether its answer is in the log already."""
        self._turn.terminal = bool(getattr(action, "terminal", False))
        replayed = self._turn.replayed
        self._turn.answered = replayed is not None and replayed.executed is not None
        return self._turn.answered

    def result(self, step: Step, memory: Memory) -> None:
        """Decision and answer are in the memory. Raises StopRun."""
        self._raise_stop()
        envelope = step.envelope or {}
        if envelope.get("code") in LOST:
            return
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
        events += [*self._changed_states(memory), ended]
        if self._turn.terminal and envelope.get("tool_executed") is True:
            self._held = events
        else:
            self.add(*events)
        self._turn.replayed, self._turn.open = None, False
        if self.resumed is not None:
            self._tell(self.resumed, memory)

    def catch_up(self, memory: Memory) -> None:
        """Write the messages that were added to the memory by whomever, and the states that changed."""
        if self._held:
            return
        events = [*(message_event(message) for message in self._new(memory)), *self._changed_states(memory)]
        if events:
            self.add(*events)

    def end(self, run: AgentRun) -> None:
        """The run ended. Raises SandboxError where that cannot be written: it has a status by then and could say nothing."""
        interrupted = isinstance(sys.exception(), KeyboardInterrupt)
        status = RunStatus.paused if interrupted else run.status
        events: list[ev.Event] = []
        if not self._turn.open:  # else it is gone through again, and then they are added again
            events = [
                *self._held,
                *(message_event(message) for message in self._new(run.memory)),
                *self._changed_states(run.memory),
            ]
        ended = ev.RunEnded(
            status=status.value,
            reason=run.reason,
            result=run.result,
            usage=asdict(run.usage),
            seconds=round(run.seconds, 3),
        )
        if self._stop is not None and self._stop.status is RunStatus.failed:
            log.error("%s", self._stop.reason)  # the reason of the run's own end, as well
            return
        self.writer.append(*(self._masked(event) for event in (*events, ended)))

    def connected(self, connection: Any) -> None:
        """A connection ended; called in a thread of the network's own."""
        self._connections += 1
        if self._connections > MOST_CONNECTIONS:
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

    # --- parts ------------------------------------------------------------------
    def _raise_stop(self) -> None:
        if self._stop is not None:
            stop = self._stop
            if stop.status is not RunStatus.failed:
                self._stop = None
            raise stop from stop.__cause__

    def _go_on(self) -> None:
        """Restore what was used before, and refuse to go on beyond a limit."""
        meter = current_meter()
        if self.resumed is None or meter is None:
            return
        meter.charge(self.resumed.usage)
        meter.started -= self.resumed.seconds
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
        self._turn.used = _UNUSED if meter is None else meter.usage
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


def message_event(message: Mapping[str, Any]) -> ev.Event:
    """The event of a message that was added."""
    if message.get("source") == "user" and message.get("role") == "user":
        return ev.UserSpoke(text=str(message["content"]))
    return ev.MessageAdded(message=dict(message))


def digest_of_prompt(prompt: Any) -> str:
    """What tells whether two prompts were the same; the prompt itself can be made again from the events."""
    told = prompt.to_dict() if isinstance(prompt, Prompt) else prompt
    return hashlib.sha256(canonical(jsonable(told)).encode()).hexdigest()


class _First(Hooks):
    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def on_step_start(self, step: Step, memory: Memory) -> None:
        self.recorder.begin(step.number, memory)

    def on_action(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        self.recorder.decide(step)

    def on_result(self, step: Step, memory: Memory) -> None:
        self.recorder.result(step, memory)


class _Last(Hooks):
    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def on_step_start(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        self.recorder.catch_up(memory)

    def on_result(self, step: Step, memory: Memory) -> None:
        if (step.envelope or {}).get("code") not in LOST:
            self.recorder.catch_up(memory)

    def on_terminate(self, run: AgentRun) -> None:
        self.recorder.end(run)
