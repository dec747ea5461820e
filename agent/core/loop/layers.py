"""Layers: policies around the loop, given per run in one tuple.

A layer sees each part of a step and may change it. Layers that come first are outermost: their ``around_*`` begin first and end
last. All other methods are called in the order of the tuple. No two methods run at the same time, even if several calls
of one reply do.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

from agent.core.run import AgentRun, Step
from agent.memory import Memory

from .turns import Ask, Call

Flow: TypeAlias = Generator[Any, Any, Any]


class Layer:
    """A policy of a run. Every method may be left out. ``StopRun``, raised by any of them, ends the run.

    A layer with ``outside_record`` stands outside of the record of a run: a call that it refuses was never started. One with a
    ``state_name`` and a ``snapshot`` has its state recorded, and restored when the run is resumed.
    """

    state_name: ClassVar[str] = ""
    outside_record: ClassVar[bool] = False

    def recorded_by(self, recorder: Any) -> Layer:  # noqa: ARG002
        """Return the layer for a run that ``recorder`` records; only layers with ``outside_record`` are asked."""
        return self

    def for_run(self, agent: Any) -> Layer:  # noqa: ARG002
        """Return the layer for the next run of ``agent``; one that keeps the state of a run returns another for each."""
        return self

    def before_step(self, step: Step, memory: Memory) -> None:
        """Act before the prompt is made; ``step`` has its number."""

    def around_ask(self, ask: Ask) -> Flow:
        """Act around the question to the brain: ``reply = yield ask`` asks, and the return value is the reply.

        Yield another ``Ask`` to change the prompt, or several to ask again; return without a yield to answer instead of the brain.
        What the brain raises is raised at the ``yield``.
        """
        return (yield ask)

    def after_decision(self, step: Step, memory: Memory) -> None:
        """Act after the reply was read, once for each of its calls, before any of them is carried out."""

    def around_do(self, call: Call) -> Flow:
        """Act around one tool call: ``envelope = yield call`` carries it out, and the return value is the answer.

        Return an envelope without a yield to refuse the call. Calls that cannot be carried out (``Call.refusal``) do not come here.
        """
        return (yield call)

    def after_answer(self, step: Step, memory: Memory) -> None:
        """Act after the answers were added to the memory, once for each call."""

    def after_step(self, step: Step, memory: Memory) -> None:
        """Act at the end of a step."""

    def after_run(self, run: AgentRun) -> None:
        """Act after the last step, however the run ended. Hooks come first, in order, then the layers, innermost first."""

    def sections(self) -> Mapping[str, str]:
        """Return short sections for the next prompt, by title; they follow what the environment says of itself."""
        return {}

    def snapshot(self) -> Any:
        """Return the state as JSON-ready data for ``restore``, or None without a state. Called after each call and step."""
        return None

    def restore(self, state: Any) -> None:
        """Restore a state that ``snapshot`` returned, maybe in an earlier process. Raises ValueError for anything else."""

    def on_resume(self, behind: int) -> None:
        """Act before the first step of a run that continues from its log: ``behind`` steps had ended before."""


def with_state(layers: Sequence[Layer]) -> list[Layer]:
    """The layers whose state is recorded."""
    return [layer for layer in layers if layer.state_name and type(layer).snapshot is not Layer.snapshot]


def overriding(layers: Sequence[Layer], name: str) -> list[Callable[..., Any]]:
    """The methods ``name`` of the layers that have one of their own, in order."""
    return [getattr(layer, name) for layer in layers if getattr(type(layer), name, None) is not getattr(Layer, name)]


def through(arounds: Sequence[Callable[[Any], Flow]], request: Ask | Call) -> Flow:
    """Pass ``request`` through the ``around_*`` methods, the first one outermost; yields what reaches the inside."""
    if not arounds:
        return (yield request)
    around, inner = arounds[0](request), arounds[1:]
    try:
        wanted = next(around)
        while True:
            try:
                answer = yield from through(inner, wanted)
            except BaseException as error:  # noqa: BLE001 - the layer decides
                wanted = around.throw(error)
            else:
                wanted = around.send(answer)
    except StopIteration as end:
        return end.value


def together(flows: Sequence[Flow]) -> Flow:
    """Advance several flows of calls, so that what they wait for is carried out at the same time.

    Yields tuples of calls and expects their answers. An exception in place of these is passed to every flow that waits.
    """
    answers: list[Any] = [None] * len(flows)
    waiting: dict[int, Any] = {}

    def advance(index: int, step: Callable[[], Any]) -> None:
        waiting.pop(index, None)
        try:
            waiting[index] = step()
        except StopIteration as end:
            answers[index] = end.value

    for index, flow in enumerate(flows):
        advance(index, lambda flow=flow: next(flow))  # type: ignore[misc]
    while waiting:
        places = list(waiting)
        try:
            results = yield tuple(waiting[index] for index in places)
        except BaseException as error:  # noqa: BLE001 - the layers decide
            for index in places:
                advance(index, lambda index=index, error=error: flows[index].throw(error))  # type: ignore[misc]
        else:
            for index, result in zip(places, results, strict=True):
                advance(index, lambda index=index, result=result: flows[index].send(result))  # type: ignore[misc]
    return answers
