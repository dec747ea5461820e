"""The parts that a spec can name. Each is imported when an agent that uses it is built."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from sandbox.errors import configuration_error

if TYPE_CHECKING:  # listing agents must be fast
    from agent.core.kits import Kit
    from agent.core.loop.layers import Layer
    from agent.language import AgentLanguage
    from agent.memory import Memory
    from agent.model.brain import Brain

    from .hub import Setting

from . import python_parts
from .spec import AgentSpec

Part = TypeVar("Part")
# Name → where it is. The calls are ``Kit(setting, **options)``, ``Language(**options)``, ``Memory(**options)`` and
# ``Layer()`` for middleware.
KITS: dict[str, str] = {
    "delegate": "agent.tools.delegate:DelegateKit",
    "reject": "agent.tools.reject:RejectKit",
    "editor": "agent.tools.editor:EditorKit",
    "ipython": "agent.tools.ipython:IPythonKit",
    "message": "agent.tools.message:MessageKit",
    "mini": "agent.tools.mini:MiniKit",
    "plan": "agent.tools.plan:PlanKit",
    "ask_user": "agent.tools.ask_user:AskUserKit",
    "mcp": "agent.tools.mcp:McpKit",
    "monologue": "agent.tools.monologue:MonologueKit",
    "recall": "agent.tools.recall:RecallKit",
    "early": "agent.contracts.early:EarlyKit",
    "late": "agent.contracts.late:LateKit",
}
LANGUAGES: dict[str, str] = {
    "function_calling": "agent.language:FunctionCallingLanguage",
    "json": "agent.language:JsonLanguage",
    "structured": "agent.language.structured:StructuredLanguage",
    "tags": "agent.language:TagLanguage",
    "fenced": "agent.language:FencedLanguage",
}
MEMORIES: dict[str, str] = {
    "condensing": "agent.memory:CondensingMemory",
    "recall": "agent.memory:RecallMemory",
    "window": "agent.memory:WindowMemory",
}
MIDDLEWARE: dict[str, str] = {
    "retry_format": "agent.layers.retry_format:RetryFormat",
    "finish_when_plan_closed": "agent.tools.plan:FinishWhenPlanClosed",
}
# Their options are Python objects: no file can name them.
OF_PYTHON = frozenset({"early", "late"})
# The actions of kits whose actions are not named like the kit; those of mcp are the tools of its servers. Tested against the kits.
ACTIONS_OF: dict[str, tuple[str, ...]] = {
    "editor": (
        "open",
        "goto",
        "scroll_up",
        "scroll_down",
        "create",
        "edit",
        "search_dir",
        "search_file",
        "find_file",
        "submit",
    ),
    "ipython": ("ipython", "ipython_restart"),
    "mcp": (),
    "mini": ("run",),
    "monologue": ("message",),
    "plan": ("add_task", "modify_task"),
}
# Middleware → the kit that it needs.
MIDDLEWARE_OF: dict[str, str] = {"finish_when_plan_closed": "plan"}
# Operations that a read-only agent cannot name.
WRITING = frozenset({"write", "edit", "make_dir", "move", "delete"})


def kit(name: str, setting: Setting, options: Mapping[str, Any]) -> Kit:
    """Return the kit of that name. Raises SandboxError ``invalid_configuration``."""
    made: Kit = _made("kit", name, _found("kit", KITS, name), lambda make: make(setting, **options))
    return made


def ends_runs(name: str) -> bool:
    """Return whether ``name`` is a kit whose hooks end runs, without an action that could be refused."""
    return name in KITS and bool(_found("kit", KITS, name).ends_runs)


def language(name: str, options: Mapping[str, Any], spec: AgentSpec | None = None) -> AgentLanguage:
    """Return the language of that name, or the one that ``module:name`` of ``spec`` makes.

    Raises SandboxError ``invalid_configuration``.
    """
    from agent.language import AgentLanguage

    found = _found("language", LANGUAGES, name, spec)
    return _of_kind(AgentLanguage, "language", name, _made("language", name, found, lambda make: make(**options)))


def memory(
    name: str, options: Mapping[str, Any], brain: Brain | None = None, spec: AgentSpec | None = None
) -> Callable[[], Memory]:
    """Return what makes a memory of that name, or ``module:name`` of ``spec``; ``brain`` is for those that want one.

    The option ``over`` names the memory below it and has its options: ``{"memory": "recall", ...}``. Raises SandboxError
    ``invalid_configuration``, also for options that do not fit.
    """
    from agent.memory import Memory

    given = dict(options)
    over = given.pop("over", None)
    inner: Callable[[], Memory] | None = None
    if over is not None:
        if not isinstance(over, Mapping) or not isinstance(over.get("memory"), str):
            raise configuration_error(
                f"The memory {name!r} cannot have {over!r:.200} below it.",
                "Write it as over: {memory: NAME, ...}.",
            )
        inner = memory(over["memory"], {key: value for key, value in over.items() if key != "memory"}, brain, spec)

    def made(make: Any) -> Any:
        below = {} if inner is None else {"inner": inner()}
        wanted = {"summariser": brain} if getattr(make, "wants_brain", False) else {}
        return make(**below, **wanted, **given)

    found = _found("memory", MEMORIES, name, spec)
    _of_kind(Memory, "memory", name, _made("memory", name, found, made))
    return lambda: cast("Memory", made(found))


def middleware(name: str, spec: AgentSpec) -> Layer:
    """Return the layer of that name. Raises SandboxError ``invalid_configuration``, also if it needs a kit that ``spec`` lacks."""
    found = _found("middleware", MIDDLEWARE, name)
    needed = MIDDLEWARE_OF.get(name)
    if needed is not None and needed not in spec.actions:
        raise configuration_error(f"{name} needs a {needed}.", f'Add "{needed}" to the actions of the agent.')
    made: Layer = found()
    return made


def _found(what: str, known: Mapping[str, str], name: str, spec: AgentSpec | None = None) -> Any:
    if spec is not None and python_parts.is_reference(name):
        return python_parts.load(name, spec)
    if name not in known:
        raise configuration_error(
            f"There is no {what} {name!r}.",
            f"Use one of: {', '.join(sorted(known))}." if known else "Leave it out.",
        )
    module, _, attribute = known[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def _made(what: str, name: str, found: Any, make: Callable[[Any], Any]) -> Any:
    try:
        return make(found)
    except (TypeError, ValueError) as error:
        raise configuration_error(
            f"The {what} {name!r} does not take these options: {error}",
            "See the options in docs/reference/agents/parts.md.",
        ) from error


def _of_kind(kind: type[Part], what: str, name: str, made: object) -> Part:
    """Return ``made``. Raises SandboxError ``invalid_configuration`` if a user's Python made something else."""
    if isinstance(made, kind):
        return made
    raise configuration_error(
        f"{name!r} returns a {type(made).__name__}, which is not a {what}.",
        f"Name a subclass of agent.{kind.__name__}, or a function that returns one.",
    )
