"""The loop: prompt, generate, parse, execute, remember, check. It names no tool, no language and no kind of agent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agent.model.response import text_of_reply
from sandbox.environment.base import Environment

from .actions import Action
from .budget import Budget, Meter, metering
from .carrying_out import carry_out
from .envelopes import LOST, Envelope, invalid_arguments, unknown_tool, unparsable
from .goals import Goal
from .hooks import Hooks, PrintingHooks
from .language import AgentLanguage
from .memory import Memory, WindowMemory
from .messages import exchange
from .registry import ActionRegistry
from .run import AgentRun
from .running import Running
from .status import END_TOOL, LanguageError, RunStatus, StopRun


class Agent:
    """Goals, actions, memory and environment, brought together by a language and a brain.

    ``generate_response`` is any callable ``prompt -> reply``. ``budget`` bounds each run; ``new_memory`` makes the memory of a
    run that gets none (by default a window that keeps the task). One agent runs one task at a time.
    """

    def __init__(
        self,
        goals: Sequence[Goal],
        agent_language: AgentLanguage,
        action_registry: ActionRegistry,
        generate_response: Callable[[Any], Any],
        environment: Environment,
        *,
        hooks: Sequence[Hooks] = (),
        budget: Budget | None = None,
        new_memory: Callable[[], Memory] = WindowMemory,
    ) -> None:
        self.goals = goals
        self.agent_language = agent_language
        self.actions = action_registry
        self.generate_response = generate_response
        self.environment = environment
        self.hooks = list(hooks)
        self.budget = budget or Budget()
        self.new_memory = new_memory
        self.last_run: AgentRun | None = None
        self._cancelled = threading.Event()

    def __repr__(self) -> str:
        brain = getattr(self.generate_response, "model", None) or type(self.generate_response).__name__
        parts = (type(self.agent_language).__name__, f"{len(self.actions.get_actions())} actions", str(brain)[:80])
        return f"{type(self).__name__}({', '.join(parts)}, {type(self.environment).__name__})"

    def construct_prompt(self, goals: Sequence[Goal], memory: Memory, actions: ActionRegistry) -> Any:
        """Return the prompt that the language makes."""
        return self.agent_language.construct_prompt(
            actions=actions.get_actions(), environment=self.environment, goals=goals, memory=memory
        )

    def prompt_llm_for_action(self, full_prompt: Any) -> Any:
        """The brain's reply."""
        return self.generate_response(full_prompt)

    def get_action(self, response: Any) -> tuple[Action | None, dict[str, Any]]:
        """Return the action that the reply chose (None if there is no such action) and the invocation: tool and args."""
        invocation = self.agent_language.parse_response(response)
        if not isinstance(invocation, Mapping):
            raise LanguageError(f"The reply was read as {type(invocation).__name__}, not as an action.", "Name a tool.")
        return self.actions.get_action(invocation.get("tool", "")), {"args": {}, **invocation}

    def should_terminate(self, response: Any) -> bool:
        """Return whether the reply chose a terminal action; False for an unknown action or a reply that cannot be parsed."""
        try:
            action, _ = self.get_action(response)
        except LanguageError:
            return False
        return bool(action and action.terminal)

    def set_current_task(self, memory: Memory, task: str) -> None:
        """Add the task as a message of the user."""
        memory.add_memory({"role": "user", "content": task})

    def update_memory(self, memory: Memory, response: Any, result: Mapping[str, Any]) -> None:
        """Add the decision, then its result."""
        for message in exchange(response, result):
            memory.add_memory(message)

    def cancel(self) -> None:
        """End the run before its next step; may be called from another thread."""
        self._cancelled.set()

    def run(
        self, user_input: str, memory: Memory | None = None, max_iterations: int | None = None, verbose: bool = False
    ) -> Memory:
        """Carry out a task and return the memory, which continues the given one. ``last_run`` says how it ended.

        Raises what the brain raised, and ValueError for ``max_iterations`` below 1.
        """
        run = self.execute(user_input, memory, max_iterations, verbose)
        if run.error is not None:
            raise run.error
        return run.memory

    def execute(
        self, user_input: str, memory: Memory | None = None, max_iterations: int | None = None, verbose: bool = False,
        *, add_task: bool = True,
    ) -> AgentRun:
        """Do the same as ``run``, but return status, reason, steps and usage. An exception of the brain is in ``error`` and not
        raised. Pass ``add_task=False`` with a ``memory`` that already has the task.
        """
        budget = self.budget.with_iterations(max_iterations)
        memory = self.new_memory() if memory is None else memory
        hooks = [*self.hooks, PrintingHooks()] if verbose else self.hooks
        self._cancelled.clear()
        with metering(Meter(budget)) as meter, Running(memory, hooks, meter, self._keep) as running:
            if add_task:
                self.set_current_task(memory, user_input)
            for number in range(1, budget.max_iterations + 1):
                self._step(running, number)
            raise StopRun(f"{budget.max_iterations} steps were taken.", RunStatus.max_iterations)
        return running.outcome

    def _keep(self, run: AgentRun) -> None:
        self.last_run = run

    def _step(self, running: Running, number: int) -> None:
        """One turn. Raises StopRun when the run is over."""
        running.begin(number, cancelled=self._cancelled.is_set())
        prompt = self.construct_prompt(self.goals, running.memory, self.actions)
        response = running.ask(lambda: self.prompt_llm_for_action(prompt), prompt)
        action, invocation, refusal = self._decide(response)
        running.decided(invocation.get("tool"), invocation["args"], self._thought(response, invocation))
        result = refusal
        if action is not None and refusal is None:
            result = carry_out(self.environment, action, invocation["args"])
        envelope = _with_notices(result or {}, invocation.get("notices", ()))
        self.update_memory(running.memory, response, envelope)
        running.answered(envelope, valid=refusal is None)
        if envelope.get("code") in LOST:
            raise StopRun(str(envelope.get("error")), RunStatus.environment_lost)
        if action is not None and action.terminal and refusal is None and envelope.get("tool_executed") is True:
            raise StopRun(f"{action.name} ended the run.", RunStatus.finished, envelope.get("result"))

    def _decide(self, response: Any) -> tuple[Action | None, dict[str, Any], Envelope | None]:
        """The action, the invocation, and the envelope that refuses it, if it cannot be carried out."""
        try:
            action, invocation = self.get_action(response)
        except LanguageError as error:
            return None, {"tool": None, "args": {}}, unparsable(error.message, self._with_end_tool(error.hint))
        if action is None:
            return None, invocation, unknown_tool(invocation.get("tool"), [a.name for a in self.actions.get_actions()])
        ok, message = self.actions.validate_args(action, invocation["args"])
        if not ok:
            return action, invocation, invalid_arguments(action.name, message, action.parameters)
        return action, invocation, None

    def _with_end_tool(self, hint: str) -> str:
        """The hint with the name of the first tool that ends the run."""
        name = next((action.name for action in self.actions.get_actions() if action.terminal), END_TOOL)
        return hint.replace(END_TOOL, name)

    def _thought(self, response: Any, invocation: Mapping[str, Any]) -> str:
        """What the reply says beside its action: all of it where none could be read, or the language does not tell."""
        tell: Callable[[Any], str] | None = getattr(self.agent_language, "thought_of", None)
        return text_of_reply(response) if tell is None or invocation.get("tool") is None else tell(response)


def _with_notices(envelope: Mapping[str, Any], notices: Sequence[Mapping[str, Any]]) -> Envelope:
    if not notices:
        return dict(envelope)
    return {**envelope, "notices": [*envelope.get("notices", ()), *notices]}
