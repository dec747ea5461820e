"""The arguments of ``Agent``: short forms are completed, and wrong ones are a TypeError that says what to pass instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from agent.core.loop.layers import Layer
from agent.language import AgentLanguage
from sandbox.environment.base import Environment

from .actions import Action
from .budget import Budget
from .goals import Goal
from .kits import Kit
from .registry import ActionRegistry


def goals_from(goals: Sequence[Goal | str] | Goal | str) -> Sequence[Goal]:
    """Return ``goals``, with each text as the goal that it describes."""
    listed: Any = [goals] if isinstance(goals, Goal | str) else goals
    if isinstance(listed, Mapping) or not isinstance(listed, Iterable):
        raise _wrong("goals", "a text, or a list of goals and texts", goals)
    found = list(listed)
    for goal in found:
        if not isinstance(goal, str) and not _has(goal, "priority", "name", "description"):
            raise _wrong("goals", "a text, or a list of goals and texts", goal)
    if listed is goals and not any(isinstance(goal, str) for goal in found):
        return cast("Sequence[Goal]", goals)  # the caller's own list: it may still change
    return [Goal(goal) if isinstance(goal, str) else goal for goal in found]


def language_from(language: AgentLanguage | None) -> AgentLanguage:
    """Return ``language``; native function calling by default."""
    if language is None:
        from agent.language import FunctionCallingLanguage

        return FunctionCallingLanguage()
    _check(
        "agent_language",
        "an AgentLanguage, such as FunctionCallingLanguage()",
        language,
        "construct_prompt",
        "parse_response",
    )
    return language


def registry_from(registry: ActionRegistry | Iterable[Action | Callable[..., Any]] | None) -> ActionRegistry:
    """Return ``registry``; actions and functions in a list become one."""
    candidate: Any = registry
    if not isinstance(candidate, type) and _has(candidate, "get_action", "get_actions"):
        return cast("ActionRegistry", candidate)
    if registry is None or isinstance(candidate, str | Mapping | Action) or not isinstance(candidate, Iterable):
        raise _wrong("action_registry", "an ActionRegistry, such as standard_registry([function])", registry)
    return ActionRegistry(candidate)


def brain_from(brain: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    """Return ``brain``, which must be callable."""
    _check("generate_response", 'a model, such as LiteLLMModel("provider/name"), or a function', brain, "__call__")
    return cast("Callable[[Any], Any]", brain)


def environment_from(environment: Environment | None) -> Environment:
    """Return ``environment``; without one, functions run on this host, and there is no sandbox."""
    if environment is None:
        return Environment()
    _check("environment", "an Environment, such as DockerEnvironment()", environment, "execute_action")
    return environment


def check_options(hooks: object, budget: object, new_memory: object, layers: object, kits: object) -> None:
    """Raise TypeError for an option of the wrong kind."""
    for name, kind, values in (("hooks", Layer, hooks), ("layers", Layer, layers or ()), ("kits", Kit, kits)):
        if not isinstance(values, Iterable):
            raise _wrong(name, f"a list of {kind.__name__}", values)
        for value in values:
            if not isinstance(value, kind):
                raise _wrong(name, f"a list of {kind.__name__}", value)
    if budget is not None and not isinstance(budget, Budget):
        raise _wrong("budget", "a Budget, such as Budget(max_iterations=20)", budget)
    if not callable(new_memory):
        raise _wrong("new_memory", "a function that makes a memory, such as the class WindowMemory", new_memory)


def _check(name: str, wanted: str, value: object, *attributes: str) -> None:
    """Raise TypeError unless ``value`` is an object with these attributes."""
    if isinstance(value, type) or not _has(value, *attributes):
        raise _wrong(name, wanted, value)


def _has(value: object, *names: str) -> bool:
    """Return whether ``value`` has these attributes: a class of the user's own need not be a subclass of ours."""
    return all(hasattr(value, name) for name in names)


def _wrong(name: str, wanted: str, value: object) -> TypeError:
    if value is None:
        return TypeError(f"Agent needs {name}: {wanted}.")
    kind = f"the class {value.__name__}" if isinstance(value, type) else f"{type(value).__name__} {value!r:.80}"
    return TypeError(f"{name} of Agent must be {wanted}, not {kind}.")
