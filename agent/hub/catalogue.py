"""The parts that a spec can name. Each is imported when it is first used: none of them costs what it is not used for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from sandbox.errors import ErrorCode, SandboxError

if TYPE_CHECKING:  # the commands that list agents are to be fast
    from agent.kits import Kit
    from agent.language import AgentLanguage
    from agent.memory import Memory
    from agent.model.brain import Brain

    from .setting import Setting

# Name → where it is. A kit is made as ``Kit(setting, **options)``, a language and a memory as ``Class(**options)``, a middleware as
# ``function(brain, setting)``.
KITS: dict[str, str] = {
    "delegate": "agent.tools.delegate:DelegateKit",
    "reject": "agent.tools.rejecting:RejectKit",
    "editor": "agent.tools.editor:EditorKit",
    "ipython": "agent.tools.ipython:IPythonKit",
    "message": "agent.tools.message:MessageKit",
    "mini": "agent.tools.mini:MiniKit",
    "plan": "agent.tools.plan:PlanKit",
    "ask_user": "agent.tools.asking:AskUserKit",
    "mcp": "agent.tools.mcp:McpKit",
    "monologue": "agent.tools.monologue:MonologueKit",
    "recall": "agent.tools.recall:RecallKit",
    "early": "agent.adapters.early:EarlyKit",
    "late": "agent.adapters.late:LateKit",
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
    "retry_format": "agent.model.retry_format:retry_format",
    "finish_when_plan_closed": "agent.tools.plan:finish_when_plan_closed",
}
# Made with what only Python can give: no file can name them.
OF_PYTHON = frozenset({"early", "late"})
# Kits whose actions have other names than the kit; those of mcp are its servers' tools. A test holds this to the kits.
ACTIONS_OF: dict[str, tuple[str, ...]] = {
    "editor": (
        "open", "goto", "scroll_up", "scroll_down", "create", "edit", "search_dir", "search_file", "find_file", "submit",
    ),
    "ipython": ("ipython", "ipython_restart"),
    "mcp": (),
    "mini": ("run",),
    "monologue": ("message",),
    "plan": ("add_task", "modify_task"),
}  # fmt: skip
# Middleware → the kit it works with.
MIDDLEWARE_OF: dict[str, str] = {"finish_when_plan_closed": "plan"}
# Operations that an agent which only reads cannot name.
WRITING = frozenset({"write", "edit", "make_dir", "move", "delete"})


def kit(name: str, setting: Setting, options: Mapping[str, Any]) -> Kit:
    """The kit of that name. Raises SandboxError ``invalid_configuration``."""
    made: Kit = _made("kit", KITS, name, lambda make: make(setting, **options))
    return made


def ends_runs(name: str) -> bool:
    """Whether ``name`` is a kit whose hooks end runs, by no action that could be refused."""
    return name in KITS and bool(_found("kit", KITS, name).ends_runs)


def language(name: str, options: Mapping[str, Any]) -> AgentLanguage:
    """The language of that name. Raises SandboxError ``invalid_configuration``."""
    made: AgentLanguage = _made("language", LANGUAGES, name, lambda make: make(**options))
    return made


def memory(name: str, options: Mapping[str, Any], brain: Brain | None = None) -> Callable[[], Memory]:
    """What makes a memory of that name; ``brain`` is for those that want one.

    The option ``over`` names the memory below it and has its options: ``{"memory": "recall", ...}``. Raises SandboxError
    ``invalid_configuration``, also for options that do not fit.
    """
    given = dict(options)
    over = given.pop("over", None)
    inner: Callable[[], Memory] | None = None
    if over is not None:
        if not isinstance(over, Mapping) or not isinstance(over.get("memory"), str):
            raise SandboxError(
                ErrorCode.invalid_configuration,
                f"The memory {name!r} cannot be over {over!r:.200}.",
                "Write it as over: {memory: NAME, ...}.",
            )
        inner = memory(over["memory"], {key: value for key, value in over.items() if key != "memory"}, brain)

    def made(make: Any) -> Any:
        below = {} if inner is None else {"inner": inner()}
        wanted = {"summariser": brain} if getattr(make, "wants_brain", False) else {}
        return make(**below, **wanted, **given)

    found = _found("memory", MEMORIES, name)
    _made("memory", MEMORIES, name, made)
    return lambda: cast("Memory", made(found))


def middleware(name: str, brain: Brain, setting: Setting) -> Brain:
    """``brain`` within the middleware of that name. Raises SandboxError ``invalid_configuration``."""
    made: Brain = _made("middleware", MIDDLEWARE, name, lambda make: make(brain, setting))
    return made


def _found(what: str, known: Mapping[str, str], name: str) -> Any:
    if name not in known:
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"There is no {what} {name!r}.",
            f"Use one of: {', '.join(sorted(known))}." if known else "Leave it out.",
        )
    module, _, attribute = known[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def _made(what: str, known: Mapping[str, str], name: str, make: Callable[[Any], Any]) -> Any:
    found = _found(what, known, name)
    try:
        return make(found)
    except (TypeError, ValueError) as error:
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"The {what} {name!r} does not take these options: {error}",
            "Look at the options in docs/reference/agents/parts.md.",
        ) from error
