"""The loop: prompt, ask, act, remember, check. It names no tool, no language and no kind of agent, and does no I/O.

``turns`` is a generator. It yields what it needs done, and its driver (see ``drivers``) sends back the answer: a prompt, a
reply, envelopes. An ``End`` in place of an answer ends the run.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, Protocol, TypeAlias

from agent.core.actions import Action
from agent.core.envelopes import LOST, Envelope
from agent.core.run import AgentRun, Progress
from agent.core.status import End, RunStatus
from sandbox.frozen import dataclass

# What is in force while a request is carried out: context managers, made anew each time.
Within: TypeAlias = tuple[Callable[[], AbstractContextManager[Any]], ...]


@contextmanager
def entered(within: Within) -> Iterator[None]:
    """Have the context managers of a request in force while the block runs."""
    with ExitStack() as stack:
        for manager in within:
            stack.enter_context(manager())
        yield


@dataclass(frozen=True, slots=True)
class Prepare:
    """Make the prompt of a step; the answer is the prompt. ``again`` is true for the second prompt of the same step."""

    within: Within = ()
    again: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the brain; the answer is its reply, or ``TooLong``."""

    prompt: Any
    within: Within = ()


class TooLong:
    """The answer to a question that did not fit into the model's context. The memory shows less now: make the prompt again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One tool call of a reply; the answer is its envelope. ``refusal`` is why it cannot be carried out, with ``action`` None
    if there is no such action. ``index`` is its place in the reply, ``notices`` are added to its answer.
    """

    index: int = 0
    tool: str | None = None
    args: Any
    action: Action | None = None
    refusal: Envelope | None = None
    notices: tuple[Mapping[str, Any], ...] = ()
    thought: str = ""
    within: Within = ()

    @property
    def name(self) -> str:
        """The name of the action, or of the tool that does not exist."""
        return str(self.tool) if self.action is None else self.action.name


@dataclass(frozen=True, slots=True)
class Do:
    """Carry out the calls of one reply; the answer is their envelopes, in the order of the calls."""

    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Remember:
    """Add a reply and its envelopes to the memory; the answer is None."""

    reply: Any
    envelopes: tuple[Envelope, ...]
    within: Within = ()


Request: TypeAlias = Prepare | Ask | Do | Remember


class Deciding(Protocol):
    """What the loop asks an agent itself."""

    def read(self, reply: Any) -> tuple[Call, ...]:
        """Return the calls of a reply, at least one."""

    def decides_the_end(self, reply: Any) -> bool | None:
        """Return whether a reply whose call was carried out ends the run; None to leave that to the call."""

    def is_cancelled(self) -> bool:
        """Whether the run is to end before its next step."""


def turns(progress: Progress, agent: Deciding) -> Generator[Request, Any, AgentRun]:
    """Run the loop until a terminal action succeeds, a limit is reached or an answer is an ``End``."""
    budget, invalid = progress.meter.budget, 0
    for number in range(1, budget.max_iterations + 1):
        if agent.is_cancelled():
            return progress.end(End("The run was cancelled.", RunStatus.cancelled))
        if invalid >= budget.max_invalid_replies:
            reason = f"{invalid} replies in a row contained no action that could be carried out."
            return progress.end(End(reason, RunStatus.no_valid_action))
        if (limit := progress.meter.reached()) is not None:
            return progress.end(limit)
        progress.begin(number)
        if isinstance(prompt := (yield Prepare()), End):
            return progress.end(prompt)
        prompt, reply = yield from _ask(prompt)
        if isinstance(reply, End):
            return progress.end(reply)
        progress.change(prompt=prompt, response=reply)
        calls = agent.read(reply)
        if isinstance(envelopes := (yield Do(calls)), End):
            return progress.end(envelopes)
        if isinstance(end := (yield Remember(reply, envelopes)), End):
            return progress.end(end)
        invalid = invalid + 1 if all(call.refusal is not None for call in calls) else 0
        if (ended := _end_of(calls, envelopes, partial(agent.decides_the_end, reply))) is not None:
            return progress.end(ended)
    return progress.end(End(f"{budget.max_iterations} steps were taken.", RunStatus.max_iterations))


def _ask(prompt: Any) -> Generator[Request, Any, tuple[Any, Any]]:
    """Ask with a prompt, and again with a shorter one if it was too long. Returns the prompt that was answered, and the answer."""
    while isinstance(reply := (yield Ask(prompt)), TooLong):
        if isinstance(prompt := (yield Prepare(again=True)), End):
            return prompt, prompt
    return prompt, reply


def _end_of(
    calls: tuple[Call, ...], envelopes: tuple[Envelope, ...], decides_the_end: Callable[[], bool | None]
) -> End | None:
    """Return the end that an answer causes: the environment is lost, a terminal action succeeded, or the agent decides so."""
    for call, envelope in zip(calls, envelopes, strict=True):
        if envelope.get("code") in LOST:
            return End(str(envelope.get("error")), RunStatus.environment_lost)
        if call.action is None or call.refusal is not None:
            continue
        terminal = call.action.terminal
        if terminal and envelope.get("tool_executed") is not True:
            continue
        own = decides_the_end()
        if terminal if own is None else own:
            return End(f"{call.name} ended the run.", RunStatus.finished, envelope.get("result"))
    return None
