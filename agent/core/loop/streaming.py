"""A run as a stream of events, while it goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeAlias

from agent.core.run import AgentRun, Step
from agent.core.status import RunStatus, StopRun
from agent.memory import Memory
from agent.model.brain import Delta, receiving_deltas
from sandbox.frozen import dataclass

from .layers import Flow, Layer
from .turns import Ask, Call


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyDelta:
    """A piece of the reply of ``step``, from a brain that streams."""

    step: int
    delta: Delta


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCalled:
    """Call number ``index`` of a reply was read, and is carried out next. ``tool`` is None if no action could be read, ``thought``
    is the text beside the calls.
    """

    step: int
    index: int
    tool: str | None
    args: Any
    thought: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAnswered:
    """The answer to that call."""

    step: int
    index: int
    tool: str | None
    envelope: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeGiven:
    """A notice of an answer: ``{code, message, hint}``."""

    step: int
    index: int
    notice: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished:
    """How the run ended; the last event."""

    run: AgentRun


StreamEvent: TypeAlias = ReplyDelta | ToolCalled | ToolAnswered | NoticeGiven | RunFinished
Put: TypeAlias = Callable[[Any], None]


class Reporter(Layer):
    """Reports each part of a run with ``put``; stands outside of all other layers. After ``close`` the run ends as cancelled."""

    def __init__(self, put: Put) -> None:
        self._put = put
        self._step = 0
        self._reported: set[int] = set()
        self._closed = threading.Event()

    def close(self) -> None:
        """Report nothing more, and stop a brain that streams."""
        self._closed.set()

    def before_step(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        self._step, self._reported = step.number, set()

    def around_ask(self, ask: Ask) -> Flow:
        return (yield replace(ask, within=(*ask.within, partial(receiving_deltas, self._report_delta))))

    def after_decision(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        thought = "" if step.index else step.thought
        self._put(ToolCalled(step=step.number, index=step.index, tool=step.tool, args=step.args, thought=thought))

    def around_do(self, call: Call) -> Flow:
        envelope = yield call
        self._report(call.index, call.tool, {**envelope, "notices": [*envelope.get("notices", ()), *call.notices]})
        return envelope

    def after_answer(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        if step.index not in self._reported and step.envelope is not None:
            self._report(step.index, step.tool, step.envelope)

    def _report_delta(self, delta: Delta) -> None:
        if self._closed.is_set():
            raise StopRun("The stream was closed.", RunStatus.cancelled)
        self._put(ReplyDelta(step=self._step, delta=delta))

    def _report(self, index: int, tool: str | None, envelope: Mapping[str, Any]) -> None:
        self._reported.add(index)
        self._put(ToolAnswered(step=self._step, index=index, tool=tool, envelope=envelope))
        for notice in envelope.get("notices") or ():
            self._put(NoticeGiven(step=self._step, index=index, notice=notice))


def stream(execute: Callable[[Layer], AgentRun], cancel: Callable[[], None]) -> Iterator[StreamEvent]:
    """Yield the events of the run that ``execute`` does with the given layer, in a thread. Raises what it raises.

    Closing the iterator cancels the run, and waits until the call under way came back.
    """
    events: SimpleQueue[Any] = SimpleQueue()
    reporter = Reporter(events.put)

    def work() -> None:
        try:
            events.put(RunFinished(run=execute(reporter)))
        except BaseException as error:  # noqa: BLE001 - raised where the events are read
            events.put(error)

    thread = threading.Thread(target=copy_context().run, args=(work,), name="gamebox-run", daemon=True)
    thread.start()
    event: Any = None
    try:
        while not isinstance(event, RunFinished):
            event = events.get()
            if isinstance(event, BaseException):
                raise event
            yield event
    finally:
        if thread.is_alive():
            reporter.close()
            cancel()
        thread.join()


async def astream(
    aexecute: Callable[[Layer], Awaitable[AgentRun]], cancel: Callable[[], None]
) -> AsyncIterator[StreamEvent]:
    """Do what ``stream`` does on an event loop."""
    events: asyncio.Queue[Any] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    reporter = Reporter(lambda event: _put_from_thread(loop, events, event))

    async def work() -> None:
        try:
            await events.put(RunFinished(run=await aexecute(reporter)))
        except BaseException as error:  # noqa: BLE001 - raised where the events are read
            await events.put(error)

    task = asyncio.create_task(work())
    event: Any = None
    try:
        while not isinstance(event, RunFinished):
            event = await events.get()
            if isinstance(event, BaseException):
                raise event
            yield event
    finally:
        reporter.close()
        if not task.done():
            task.cancel()
        cancel()
        await asyncio.wait([task])


def _put_from_thread(loop: asyncio.AbstractEventLoop, events: asyncio.Queue[Any], event: Any) -> None:
    loop.call_soon_threadsafe(events.put_nowait, event)
