"""The agent: goals, actions, memory and environment, brought together by a language and a brain."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from agent.core.loop.calls import carry_out
from agent.core.loop.drivers import conduct, drive, drive_async
from agent.core.loop.hooks import PrintingHooks
from agent.core.loop.layers import Layer
from agent.core.loop.streaming import StreamEvent, astream, stream
from agent.core.loop.turns import Call
from agent.core.loop.workers import Workers
from agent.language import AgentLanguage
from agent.memory import Memory, WindowMemory
from agent.memory.exchange import exchange
from agent.model.response import text_of_reply
from sandbox.environment.base import Environment
from sandbox.frozen import dataclass

from .actions import Action
from .agent_arguments import brain_from, check_options, environment_from, goals_from, language_from, registry_from
from .budget import Budget, Meter, metering
from .envelopes import Envelope, invalid_arguments, unknown_tool, unparsable
from .goals import Goal
from .kits import EquippedEnvironment, Kit
from .prompt import Prompt
from .registry import ActionRegistry
from .run import AgentRun, Progress
from .status import END_TOOL, LanguageError

# Methods of the seeds' agents that know one action of a reply; a subclass that overrides one gets one call a reply.
_OF_ONE_ACTION = ("get_action", "should_terminate", "update_memory")
Arrange: TypeAlias = Callable[[tuple[Layer, ...]], tuple[Layer, ...]]


class Agent:
    """Goals, actions, memory and environment, brought together by a language and a brain.

    ``goals`` may be texts, or one text. ``agent_language`` is native function calling by default. ``action_registry`` may be a list
    of actions and functions. ``generate_response`` is any callable ``prompt -> reply``, also a coroutine function. Without an
    ``environment``, functions run on this host, and there is no sandbox. ``budget`` bounds each run;
    ``new_memory`` makes the memory of a run that is started without one (by default a window that keeps the task). ``layers`` are
    the policies of each run, the outermost first; ``hooks`` follow them. By default a budget line is in each prompt, and an agent
    that goes in circles gets a notice. ``kits`` add their actions, sections and hooks. One agent runs one task at a time.

    Raises TypeError for an argument of the wrong kind.
    """

    def __init__(
        self,
        goals: Sequence[Goal | str] | str,
        agent_language: AgentLanguage | None = None,
        action_registry: ActionRegistry | Iterable[Action | Callable[..., Any]] | None = None,
        generate_response: Callable[[Any], Any] | None = None,
        environment: Environment | None = None,
        *,
        hooks: Sequence[Layer] = (),
        budget: Budget | None = None,
        new_memory: Callable[[], Memory] = WindowMemory,
        layers: Sequence[Layer] | None = None,
        kits: Sequence[Kit] = (),
    ) -> None:
        check_options(hooks, budget, new_memory, layers, kits)
        environment = environment_from(environment)
        self.goals = goals_from(goals)
        self.agent_language = language_from(agent_language)
        self.actions = _with_kits(registry_from(action_registry), kits)
        self.generate_response = brain_from(generate_response)
        self.environment = EquippedEnvironment(environment, kits) if kits else environment
        self.hooks = [*hooks, *(hook for kit in kits for hook in kit.hooks())]
        self.budget = budget or Budget()
        self.new_memory = new_memory
        self.layers = _default_layers(environment) if layers is None else tuple(layers)
        self.last_run: AgentRun | None = None
        self._cancelled = threading.Event()
        self._arrange_next: Arrange | None = None

    def __repr__(self) -> str:
        brain = getattr(self.generate_response, "model", None) or type(self.generate_response).__name__
        parts = (type(self.agent_language).__name__, f"{len(self.actions.get_actions())} actions", str(brain)[:80])
        return f"{type(self).__name__}({', '.join(parts)}, {type(self.environment).__name__})"

    # --- the parts of a step, to be overridden ------------------------------------------------------------------
    def construct_prompt(self, goals: Sequence[Goal], memory: Memory, actions: ActionRegistry) -> Any:
        """Return the prompt, as the language words it."""
        return self.agent_language.construct_prompt(
            actions=actions.get_actions(), environment=self.environment, goals=goals, memory=memory
        )

    def prompt_llm_for_action(self, full_prompt: Any) -> Any:
        """Return the brain's reply."""
        return self.generate_response(full_prompt)

    def get_action(self, response: Any) -> tuple[Action | None, dict[str, Any]]:
        """Return the action that the reply chose (None if there is no such action) and the invocation: tool and args."""
        invocation = self.agent_language.parse_response(response)
        if not isinstance(invocation, Mapping):
            raise LanguageError(f"The reply was read as {type(invocation).__name__}, not as an action.", "Name a tool.")
        return self.actions.get_action(invocation.get("tool", "")), {"args": {}, **invocation}

    def should_terminate(self, response: Any) -> bool:
        """Return whether the reply chose a terminal action; False for an unknown one or a reply that cannot be read.

        A subclass that overrides it decides which call ends the run, except for a terminal action that failed.
        """
        try:
            action, _ = self.get_action(response)
        except LanguageError:
            return False
        return bool(action and action.terminal)

    def set_current_task(self, memory: Memory, task: str) -> None:
        """Add the task as what the user said."""
        memory.add_memory({"role": "user", "content": task})

    def update_memory(self, memory: Memory, response: Any, result: Mapping[str, Any]) -> None:
        """Add the decision, then its result."""
        for message in exchange(response, result):
            memory.add_memory(message)

    # --- runs ------------------------------------------------------------------
    def run(
        self, user_input: str, memory: Memory | None = None, max_iterations: int | None = None, verbose: bool = False
    ) -> Memory:
        """Carry out a task and return the memory, continued if one was given. ``last_run`` says how the run ended.

        Raises what the brain raised, and ValueError for ``max_iterations`` below 1.
        """
        return _memory_of(self.execute(user_input, memory, max_iterations, verbose))

    async def arun(
        self, user_input: str, memory: Memory | None = None, max_iterations: int | None = None, verbose: bool = False
    ) -> Memory:
        """Do what ``run`` does without blocking the event loop: await coroutine functions, run everything else in worker threads.

        Cancelling it ends the run as ``cancelled`` once the call under way came back.
        """
        return _memory_of(await self.aexecute(user_input, memory, max_iterations, verbose))

    def execute(
        self, user_input: str, memory: Memory | None = None, max_iterations: int | None = None, verbose: bool = False,
        *, add_task: bool = True, layers: Sequence[Layer] | None = None,
    ) -> AgentRun:  # fmt: skip
        """Carry out a task and return how it ended, with status, reason, steps and usage. What the brain raises is in ``error``.

        Pass ``add_task=False`` with a ``memory`` that has the task already. ``layers`` replace those of
        the agent for this run, but never those of its environment.
        """
        start = _Start(user_input if add_task else None, memory, verbose, layers)
        return self._drive(start, max_iterations)

    async def aexecute(
        self, user_input: str, memory: Memory | None = None, max_iterations: int | None = None, verbose: bool = False,
        *, add_task: bool = True, layers: Sequence[Layer] | None = None,
    ) -> AgentRun:  # fmt: skip
        """Do what ``execute`` does, without blocking the event loop (see ``arun``)."""
        start = _Start(user_input if add_task else None, memory, verbose, layers)
        return await self._drive_async(start, max_iterations)

    def stream(
        self, user_input: str, memory: Memory | None = None, max_iterations: int | None = None,
        *, layers: Sequence[Layer] | None = None,
    ) -> Iterator[StreamEvent]:  # fmt: skip
        """Carry out a task in a thread and yield its events: deltas of brains that stream, tool calls, answers, notices, the end.

        Closing the iterator cancels the run. Raises what ``execute`` raises.
        """
        start = _Start(user_input, memory, layers=layers)
        return stream(lambda reporter: self._drive(replace(start, first=(reporter,)), max_iterations), self.cancel)

    def astream(
        self, user_input: str, memory: Memory | None = None, max_iterations: int | None = None,
        *, layers: Sequence[Layer] | None = None,
    ) -> AsyncIterator[StreamEvent]:  # fmt: skip
        """Do what ``stream`` does, on the event loop (see ``arun``)."""
        start = _Start(user_input, memory, layers=layers)
        return astream(lambda reporter: self._drive_async(replace(start, first=(reporter,)), max_iterations), self.cancel)

    def standing_layers(self) -> tuple[Layer, ...]:
        """Return the layers of each run: those of the environment (``LayeredEnvironment``) and its own, without the hooks."""
        return (*_unwrapped(self.environment)[0], *self.layers)

    def arrange_next_run(self, arrange: Arrange | None) -> None:
        """Have the layers of the next run be what ``arrange`` makes of them; None takes that back.

        ``arrange`` gets what ``for_run`` returned, those of the environment first, without the hooks.
        """
        self._arrange_next = arrange

    def cancel(self) -> None:
        """End the run before its next step, or the next call of the same reply, and what its kits wait for, such as agents below.

        It may be called from another thread.
        """
        self._cancelled.set()
        for kit in self.kits:
            kit.cancel()

    @property
    def kits(self) -> tuple[Kit, ...]:
        """The kits that the agent has in its environment."""
        kits: tuple[Kit, ...] = tuple(getattr(self.environment, "kits", ()))
        return kits

    def _drive(self, start: _Start, max_iterations: int | None) -> AgentRun:
        parts = _Parts(self, start.task)
        with metering(Meter(self.budget.with_iterations(max_iterations))) as meter:
            progress, layers = self._begun(start, meter)
            return drive(parts, progress.memory, conduct(parts, progress, layers))

    async def _drive_async(self, start: _Start, max_iterations: int | None) -> AgentRun:
        parts = _Parts(self, start.task)
        with metering(Meter(self.budget.with_iterations(max_iterations))) as meter, Workers(self.cancel) as workers:
            progress, layers = await workers.result(partial(self._begun, start, meter))
            return await drive_async(parts, progress.memory, conduct(parts, progress, layers), workers)

    def _begun(self, start: _Start, meter: Meter) -> tuple[Progress, tuple[Layer, ...]]:
        self._cancelled.clear()
        progress = Progress(self.new_memory() if start.memory is None else start.memory, meter)
        arrange, self._arrange_next = self._arrange_next, None
        own = self.layers if start.layers is None else start.layers
        standing = self._for_run(*_unwrapped(self.environment)[0], *own)
        layers = standing if arrange is None else arrange(standing)
        printing = (PrintingHooks(),) if start.verbose else ()
        return progress, (*start.first, *layers, *self._for_run(*self.hooks, *printing))

    def _for_run(self, *layers: Any) -> tuple[Layer, ...]:
        return tuple(layer.for_run(self) if isinstance(layer, Layer) else layer for layer in layers)

    # --- reading a reply ------------------------------------------------------------------
    def _read(self, reply: Any) -> tuple[Call, ...]:
        """The calls of a reply, each with the envelope that refuses it if it cannot be carried out."""
        if not self._takes_several_calls():
            try:
                return (self._call(0, reply, *self.get_action(reply)),)
            except LanguageError as error:
                return (self._unparsable(0, reply, error),)
        try:
            found = self.agent_language.parse_calls(reply)[: self.budget.max_calls_per_reply]
            if not found:
                raise LanguageError("The reply contains no action.", "Call a tool.")
        except LanguageError as error:
            found = [error]
        return tuple(
            self._unparsable(index, reply, each)
            if isinstance(each, LanguageError)
            else self._call(index, reply, self.actions.get_action(each.get("tool", "")), {"args": {}, **each})
            for index, each in enumerate(found)
        )

    def _takes_several_calls(self) -> bool:
        """Whether all calls of a reply are carried out: not if a subclass has its own way with one action of a reply."""
        own = any(self._overrides(name) for name in _OF_ONE_ACTION)
        order = [vars(kind).keys() & {"parse_calls", "parse_response"} for kind in type(self.agent_language).__mro__]
        nearest = next((names for names in order if names), set[str]())
        own_parser = "parse_response" in getattr(self.agent_language, "__dict__", {})
        return not own and "parse_calls" in nearest and not own_parser

    def _overrides(self, name: str) -> bool:
        """Whether a subclass, or this agent alone, has a method ``name`` of its own."""
        return name in vars(self) or getattr(type(self), name) is not getattr(Agent, name)

    def _call(self, index: int, reply: Any, action: Action | None, invocation: Mapping[str, Any]) -> Call:
        tool, args = invocation.get("tool"), invocation["args"]
        return Call(
            index=index,
            tool=tool if tool is None else str(tool),
            args=args,
            action=action,
            refusal=self._refusal(action, tool, args),
            notices=tuple(invocation.get("notices", ())),
            thought="" if index else self._thought(reply, tool),
        )

    def _unparsable(self, index: int, reply: Any, error: LanguageError) -> Call:
        refusal = unparsable(error.message, self._with_end_tool(error.hint))
        return Call(index=index, args={}, refusal=refusal, thought="" if index else text_of_reply(reply))

    def _refusal(self, action: Action | None, tool: Any, args: Any) -> Envelope | None:
        if action is None:
            return unknown_tool(tool, [known.name for known in self.actions.get_actions()])
        ok, message = self.actions.validate_args(action, args)
        return None if ok else invalid_arguments(action.name, message, action.parameters)

    def _with_end_tool(self, hint: str) -> str:
        """The hint with the name of the first tool that ends the run."""
        name = next((action.name for action in self.actions.get_actions() if action.terminal), END_TOOL)
        return hint.replace(END_TOOL, name)

    def _thought(self, reply: Any, tool: Any) -> str:
        """The text of a reply beside its action; all of it if no tool could be read, or the language cannot tell."""
        thought_of: Callable[[Any], str] | None = getattr(self.agent_language, "thought_of", None)
        return text_of_reply(reply) if thought_of is None or tool is None else thought_of(reply)


@dataclass(frozen=True, slots=True)
class _Start:
    """What one run begins with; ``first`` are layers around all others."""

    task: str | None
    memory: Memory | None = None
    verbose: bool = False
    layers: Sequence[Layer] | None = None
    first: tuple[Layer, ...] = ()


class _Parts:
    """What the drivers need, carried out by the methods of an agent that subclasses may override."""

    def __init__(self, agent: Agent, task: str | None) -> None:
        self._agent, self._task = agent, task

    def begin(self, memory: Memory) -> None:
        if self._task is not None:
            self._agent.set_current_task(memory, self._task)

    def prepare(self, memory: Memory) -> Any:
        prompt = self._agent.construct_prompt(self._agent.goals, memory, self._agent.actions)
        if isinstance(prompt, Prompt) and prompt.parallel_calls is None and not self._agent._takes_several_calls():  # noqa: SLF001
            return replace(prompt, parallel_calls=False)  # tokens for calls that would be answered too_many_actions
        return prompt

    def ask(self, prompt: Any) -> Any:
        return self._agent.prompt_llm_for_action(prompt)

    def read(self, reply: Any) -> tuple[Call, ...]:
        return self._agent._read(reply)  # noqa: SLF001 - the same room

    def do(self, call: Call) -> Envelope:
        assert call.action is not None, "only calls of actions are carried out"  # noqa: S101
        return carry_out(_unwrapped(self._agent.environment)[1], call.action, call.args)

    def remember(self, memory: Memory, reply: Any, envelopes: Sequence[Envelope]) -> None:
        if len(envelopes) == 1:
            self._agent.update_memory(memory, reply, envelopes[0])
            return
        for message in exchange(reply, envelopes):
            memory.add_memory(message)

    def decides_the_end(self, reply: Any) -> bool | None:
        return self._agent.should_terminate(reply) if self._agent._overrides("should_terminate") else None  # noqa: SLF001

    def is_cancelled(self) -> bool:
        return self._agent._cancelled.is_set()  # noqa: SLF001

    def ended(self, run: AgentRun) -> None:
        self._agent.last_run = run


def _with_kits(registry: ActionRegistry, kits: Sequence[Kit]) -> ActionRegistry:
    """The registry with the actions of the kits; another one, since the caller may share the registry."""
    if not kits:
        return registry
    extended = copy(registry)
    extended.actions = dict(registry.actions)
    for kit in kits:
        for action in kit.actions():
            extended.register(action)
    return extended


def _default_layers(environment: Environment) -> tuple[Layer, ...]:
    from agent.layers.budget_line import BudgetLine
    from agent.layers.stuck import StuckNotices

    def masked(text: str) -> str:
        hidden = getattr(environment, "hidden", None)
        return text if hidden is None else str(hidden.mask.text(text))

    return (BudgetLine(), StuckNotices(masked=masked))


def _unwrapped(environment: Environment) -> tuple[list[Layer], Environment]:
    """The layers that lie around an environment, the outermost first, and the environment without them.

    The last may be that of a guard, which begins and ends with a run, and in which the run works.
    """
    layers: list[Layer] = []
    while isinstance(layer := _own_layer(environment, "layer"), Layer):
        layers.append(layer)
        environment = vars(environment)["inner"]
    if isinstance(layer := _own_layer(environment, "run_layer"), Layer):
        layers.append(layer)
    return layers, environment


def _own_layer(environment: Environment, name: str) -> Any:
    """What the environment itself has under that name: the guard of an environment further in belongs to another run."""
    return getattr(environment, "__dict__", {}).get(name)


def _memory_of(run: AgentRun) -> Memory:
    if run.error is not None:
        raise run.error
    return run.memory
