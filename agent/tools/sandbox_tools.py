"""The operations of the sandbox as actions, and the registry with all of them. Schema and description come from the operation."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agent.core.actions import Action
from agent.core.envelopes import text_of
from agent.core.registry import ActionRegistry
from sandbox.errors import ToolError
from sandbox.operations import OPERATIONS, schema_of

from .finish import finish_action, think_action

# Two read and write files of the host; the others tell a model nothing that list and run do not.
HOST_ONLY = frozenset(name for name, request in OPERATIONS.items() if not request.for_models)
# What only some images can do is offered where an agent names it.
IN_SOME_SANDBOXES = frozenset(name for name, request in OPERATIONS.items() if not request.in_every_sandbox)
# Every prompt ends with this information, as part of the environment's description.
IN_EVERY_PROMPT = frozenset({"usage"})
# The other arguments of run (argv, env, stdin, ...) are second ways to say the same. Hints name only these, and send, screen and
# resize need wait_seconds and pty.
RUN_ARGUMENTS = (
    "command",
    "cwd",
    "timeout_seconds",
    "background",
    "session",
    "wait_seconds",
    "pty",
    "rows",
    "cols",
)
_ARGV_SENTENCE = re.compile(r" ?Give either command[^.]*\.")


class SandboxAction(Action):
    """An action that the environment carries out as the operation of that name. Raises ValueError if models have no such
    operation.
    """

    def __init__(self, operation: str, *, metadata: Mapping[str, Any] | None = None) -> None:
        if operation not in OPERATIONS or operation in HOST_ONLY:
            names = ", ".join(n for n in OPERATIONS if n not in HOST_ONLY)
            raise ValueError(f"{operation!r} is not an operation that a model may use; there are {names}.")
        self.operation = operation
        super().__init__(operation, None, _description(operation), _parameters(operation), metadata=metadata)

    def execute(self, /, **kwargs: Any) -> Any:
        """Raise ToolError: only a sandbox can carry this action out."""
        raise ToolError(
            f"{self.name} is carried out by a sandbox, not by calling it ({len(kwargs)} arguments given).",
            "Hand the action to execute_action of a DockerEnvironment.",
        )

    def show(self, envelope: Mapping[str, Any]) -> str:
        """Return the envelope as text, with the result in the operation's own words."""
        return text_of(envelope, OPERATIONS[self.operation].result, self.name)


def sandbox_tools(only: Iterable[str] | None = None) -> list[SandboxAction]:
    """Return the operations that a model may use in every sandbox, or those named in ``only``."""
    return [
        SandboxAction(name)
        for name in (OPERATIONS if only is None else only)
        if only is not None or name not in HOST_ONLY | IN_EVERY_PROMPT | IN_SOME_SANDBOXES
    ]


def standard_registry(more: Iterable[Action | Callable[..., Any]] = ()) -> ActionRegistry:
    """Return a registry with the sandbox's operations, think, finish, and ``more`` actions or functions.

    Raises ValueError if two have the same name, and TypeError for a function that cannot become an action.
    """
    return ActionRegistry([*sandbox_tools(), think_action(), finish_action(), *more])


def _description(operation: str) -> str:
    text = inspect.getdoc(OPERATIONS[operation]) or ""
    joined = "\n\n".join(" ".join(block.split()) for block in text.split("\n\n"))
    return _ARGV_SENTENCE.sub("", joined) if operation == "run" else joined


def _parameters(operation: str) -> dict[str, Any]:
    schema = schema_of(OPERATIONS[operation])
    if operation != "run":
        return schema
    shown = {name: schema["properties"][name] for name in RUN_ARGUMENTS}
    shown["command"] = {"type": "string", "minLength": 1, "description": shown["command"]["description"]}
    return {**schema, "properties": shown, "required": ["command"]}
