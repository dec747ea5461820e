"""Drivers: they carry out what the loop asks for, through the agent's own methods.

``conduct`` puts the layers around the loop and yields what is left to be done. ``drive`` does it on the caller's thread,
``drive_async`` awaits coroutine functions and runs everything else in worker threads.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from agent.core.envelopes import LOST, Envelope, not_begun, not_ended, only_first_calls
from agent.core.prompt import showing_sections
from agent.core.run import AgentRun, CallOutcome, Progress, Step
from agent.core.status import End, RunStatus, StopRun
from agent.errors import AgentErrorCode
from agent.memory import Memory
from sandbox.environment.base import cancelling
from sandbox.environment.coroutines import awaiting_on, run_awaitable
from sandbox.errors import SandboxError
from sandbox.pipe.watching import CancelToken

from .calls import groups, is_terminal, with_notices
from .hooks import Hooks
from .layers import Flow, Layer, overriding, through, together
from .turns import Ask, Call, Deciding, Do, Prepare, Remember, Request, TooLong, entered, turns
from .workers import Workers

log = logging.getLogger(__name__)

# Each shows about half of the one before; a prompt that is too long after that is long for another reason than the memory.
MAX_SHORTER_PROMPTS = 3


class Driven(Deciding, Protocol):
    """What a driver needs of an agent."""

    def begin(self, memory: Memory) -> None:
        """Add the task to the memory."""

    def prepare(self, memory: Memory) -> Any:
        """Return the prompt."""

    def ask(self, prompt: Any) -> Any:
        """Return the reply, or what can be awaited for it."""

    def do(self, call: Call) -> Envelope:
        """Carry out a call."""

    def remember(self, memory: Memory, reply: Any, envelopes: Sequence[Envelope]) -> None:
        """Add a reply and its envelopes to the memory."""

    def ended(self, run: AgentRun) -> None:
        """Take note of the outcome."""


def conduct(agent: Driven, progress: Progress, layers: Sequence[Layer]) -> Flow:
    """The loop with its layers: yields requests and tuples of calls, and returns the AgentRun.

    Ctrl-C and faults of layers and languages end the run, are recorded in its outcome and raised again.
    """
    conductor = Conductor(agent, progress, layers)
    answer: Any = None
    try:
        agent.begin(progress.memory)
        loop = turns(progress, agent)
        while True:
            try:
                request = loop.send(answer)
            except StopIteration as end:
                run: AgentRun = end.value
                break
            try:
                answer = yield from conductor.answer(request)
            except StopRun as stop:
                answer = stop.end
    except StopRun as stop:
        run = progress.end(stop.end)
    except BaseException as error:
        conductor.finish(progress.end(_end_for(error)))
        raise
    conductor.finish(run)
    return run


class Conductor:
    """Answers the requests of the loop with the help of the layers. All of its code runs on one thread at a time."""

    def __init__(self, agent: Driven, progress: Progress, layers: Sequence[Layer]) -> None:
        self.agent, self.progress = agent, progress
        self._before_step = overriding(layers, "before_step")
        self._around_ask = overriding(layers, "around_ask")
        self._after_decision = overriding(layers, "after_decision")
        self._around_do = overriding(layers, "around_do")
        self._after_answer = overriding(layers, "after_answer")
        self._after_step = overriding(layers, "after_step")
        hooks = [layer for layer in layers if isinstance(layer, Hooks)]
        others = [layer for layer in reversed(layers) if not isinstance(layer, Hooks)]
        self._after_run = overriding([*hooks, *others], "after_run")
        self._sections = overriding(layers, "sections")
        self._calls: tuple[Call, ...] = ()
        self._shortened = 0  # prompts of this step that were made again, each from less of the memory

    def answer(self, request: Request) -> Flow:
        """The answer to a request of the loop."""
        if isinstance(request, Prepare):
            return self._prepare(request)
        if isinstance(request, Ask):
            return self._ask(request)
        return self._do(request.calls) if isinstance(request, Do) else self._remember(request)

    def finish(self, run: AgentRun) -> None:
        """Hand the outcome to the agent and to every layer, also if one of them raises."""
        self.agent.ended(run)
        with ExitStack() as stack:
            for method in reversed(self._after_run):
                stack.callback(method, run)

    def _prepare(self, request: Prepare) -> Flow:
        if not request.again:
            self._shortened = 0
            self._tell(self._before_step, self.progress.step)
        if self._sections:
            sections = {title: text for method in self._sections for title, text in method().items()}
            request = Prepare((partial(showing_sections, sections),))
        return (yield request)

    def _ask(self, request: Ask) -> Flow:
        try:
            return (yield from through(self._around_ask, request))
        except StopRun:
            raise
        except Exception as error:
            if self._has_more_room(error):
                return TooLong()
            log.info("the brain failed", exc_info=True)
            return End(str(error) or type(error).__name__, RunStatus.model_failed, error=error)

    def _has_more_room(self, error: Exception) -> bool:
        """Whether the prompt was too long for the model, and the memory shows less from now on."""
        overflow = isinstance(error, SandboxError) and error.code is AgentErrorCode.context_window_exceeded
        make_room: Callable[[], bool] | None = getattr(self.progress.memory, "make_room", None)  # a memory may be any object
        if not overflow or self._shortened >= MAX_SHORTER_PROMPTS or make_room is None or not make_room():
            return False
        self._shortened += 1
        log.warning("the prompt was too long for the model; the memory shows less from now on")
        return True

    def _do(self, calls: tuple[Call, ...]) -> Flow:
        self._calls, first = calls, calls[0]
        outcomes = tuple(CallOutcome(call.tool, call.args) for call in calls)
        self.progress.change(tool=first.tool, args=first.args, thought=first.thought, calls=outcomes)
        for index in range(len(calls)):
            self._tell(self._after_decision, self._step_of(index))
        answers: dict[int, Envelope] = {call.index: call.refusal for call in calls if call.refusal is not None}
        for group in groups([call for call in calls if call.refusal is None]):
            refusal = self._refusal(group[0], answers)
            if refusal is not None:
                answers.update({call.index: refusal for call in group})
            elif len(group) == 1:
                answers[group[0].index] = yield from through(self._around_do, group[0])
            else:
                envelopes = yield from together([through(self._around_do, call) for call in group])
                answers.update({call.index: envelope for call, envelope in zip(group, envelopes, strict=True)})
        return tuple(with_notices(answers[call.index] or {}, call.notices) for call in calls)

    def _refusal(self, call: Call, answers: Mapping[int, Envelope]) -> Envelope | None:
        """Why a call is not carried out after those of the same reply that have ``answers``; None if nothing speaks against it."""
        lost = next((envelope for envelope in answers.values() if envelope.get("code") in LOST), None)
        if lost is not None:
            return lost
        if self.agent.is_cancelled() and any(each.refusal is None for each in self._calls if each.index in answers):
            return not_begun(call.name)
        if not is_terminal(call):
            return None
        done = [index for index, envelope in answers.items() if envelope.get("tool_executed") is True]
        if any(is_terminal(each) for each in self._calls if each.index in done):
            return only_first_calls(len(answers))
        failed = [each.name for each in self._calls if each.index in answers and each.index not in done]
        return not_ended(call.name, failed) if failed else None

    def _remember(self, request: Remember) -> Flow:
        yield request
        outcomes = [CallOutcome(c.tool, c.args, e) for c, e in zip(self._calls, request.envelopes, strict=True)]
        self.progress.change(envelope=request.envelopes[0], calls=tuple(outcomes))
        for index in range(len(outcomes)):
            self._tell(self._after_answer, self._step_of(index))
        self._tell(self._after_step, self.progress.step)

    def _step_of(self, index: int) -> Step:
        """The step as the call with that index sees it."""
        step = self.progress.step
        if not index:
            return step
        call = step.calls[index]
        return replace(step, index=index, tool=call.tool, args=call.args, envelope=call.envelope)

    def _tell(self, methods: Sequence[Callable[[Step, Memory], None]], step: Step) -> None:
        for method in methods:
            method(step, self.progress.memory)


def drive(agent: Driven, memory: Memory, flow: Flow) -> AgentRun:
    """Carry out the requests of ``flow`` on this thread, calls that come together in threads of their own."""
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            request = flow.send(answer) if error is None else flow.throw(error)
        except StopIteration as end:
            run: AgentRun = end.value
            return run
        answer = error = None
        try:
            carried_out = _side_by_side if isinstance(request, tuple) else _carried_out
            answer = carried_out(agent, memory, request)
        except BaseException as raised:  # noqa: BLE001 - the loop decides
            error = raised


async def drive_async(agent: Driven, memory: Memory, flow: Flow, workers: Workers) -> AgentRun:
    """Carry out the requests of ``flow`` in worker threads; what can be awaited is awaited on this event loop.

    Cancelling it ends the run as cancelled. The answer of a call that was under way reaches the layers before.
    """
    answer: Any = None
    error: BaseException | None = None
    with awaiting_on(asyncio.get_running_loop()):
        while True:
            ended, request = await workers.result(partial(_advance, flow, answer, error))
            answer, error = None, workers.cancelled
            if ended:
                if error is not None:
                    raise error
                run: AgentRun = request
                return run
            if error is not None:
                continue
            try:
                if isinstance(request, tuple):
                    answer = await workers.results([_awaited(agent, memory, call, workers) for call in request])
                else:
                    answer = await _awaited(agent, memory, request, workers)
            except asyncio.CancelledError as raised:
                workers.note(raised)
                error = raised
            except GeneratorExit:  # the event loop is gone
                raise
            except BaseException as raised:  # noqa: BLE001 - the loop decides
                error = raised
            if error is None and isinstance(request, Ask):
                error = workers.cancelled  # no call of the reply is begun


def _advance(flow: Flow, answer: Any, error: BaseException | None) -> tuple[bool, Any]:
    """Whether the flow has ended, and its value or next request. StopIteration cannot cross threads."""
    try:
        return False, flow.send(answer) if error is None else flow.throw(error)
    except StopIteration as end:
        return True, end.value


async def _awaited(agent: Driven, memory: Memory, request: Any, workers: Workers) -> Any:
    with entered(request.within):
        value = await workers.result(partial(_perform, agent, memory, request))
        if not inspect.isawaitable(value):
            return value
        if workers.cancelled is None:
            return await value
        if inspect.iscoroutine(value):
            value.close()
        raise workers.cancelled


def _side_by_side(agent: Driven, memory: Memory, calls: Sequence[Call]) -> list[Any]:
    pool, token = ThreadPoolExecutor(len(calls), thread_name_prefix="gamebox-call"), CancelToken()
    try:
        with cancelling(token):
            futures = [pool.submit(copy_context().run, _carried_out, agent, memory, call) for call in calls]
        return [future.result() for future in futures]
    except BaseException:  # Ctrl-C, which only this thread gets
        token.cancel()
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _carried_out(agent: Driven, memory: Memory, request: Any) -> Any:
    with entered(request.within):
        value = _perform(agent, memory, request)
        return run_awaitable(value) if inspect.isawaitable(value) else value


def _perform(agent: Driven, memory: Memory, request: Prepare | Ask | Call | Remember) -> Any:
    try:
        if isinstance(request, Prepare):
            return agent.prepare(memory)
        if isinstance(request, Ask):
            return agent.ask(request.prompt)
        if isinstance(request, Call):
            return agent.do(request)
        return agent.remember(memory, request.reply, request.envelopes)
    except StopIteration as error:  # it would look like the end of a generator
        source = "a brain" if isinstance(request, Ask) else "a part of the agent"
        raise RuntimeError(f"{source} raised StopIteration") from error


def _end_for(error: BaseException) -> End:
    if isinstance(error, KeyboardInterrupt):
        return End("The run was interrupted.", RunStatus.cancelled)
    if isinstance(error, asyncio.CancelledError | GeneratorExit):  # the driver is gone, with its event loop
        return End("The run was cancelled.", RunStatus.cancelled)
    return End(f"{type(error).__name__}: {error}", RunStatus.failed, error=error if isinstance(error, Exception) else None)
