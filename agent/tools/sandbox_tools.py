"""The operations of the sandbox as actions: schema and description come from the operation itself."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any

from agent.actions import Action
from agent.envelopes import text_of
from sandbox.errors import ToolError
from sandbox.operations import OPERATIONS, schema_of

# Two reach the host's files, which is not for a model to decide; the others tell a model nothing that list and run do not.
HOST_ONLY = frozenset(name for name, request in OPERATIONS.items() if not request.for_models)
# What a model need not ask for: the environment's description ends with it, in every prompt.
IN_EVERY_PROMPT = frozenset({"usage"})
# The rest of run's arguments (argv, env, stdin, ...) offer a model second ways to say the same. These are all that the hints of
# results name, and without wait_seconds or pty there is nothing for send, screen and resize to act on.
RUN_ARGUMENTS = (
    "command", "cwd", "timeout_seconds", "background", "session", "wait_seconds", "pty", "rows", "cols",
)  # fmt: skip
_ARGV_SENTENCE = re.compile(r" ?Give either command[^.]*\.")


class SandboxAction(Action):
    """An action that the environment carries out as the operation of that name. Raises ValueError for no operation of
    a model.
    """

    def __init__(self, operation: str, *, metadata: Mapping[str, Any] | None = None) -> None:
        if operation not in OPERATIONS or operation in HOST_ONLY:
            names = ", ".join(n for n in OPERATIONS if n not in HOST_ONLY)
            raise ValueError(f"{operation!r} is no operation that a model may use; there are {names}.")
        self.operation = operation
        super().__init__(operation, None, _description(operation), _parameters(operation), metadata=metadata)

    def execute(self, /, **kwargs: Any) -> Any:
        """Raises ToolError: without a sandbox there is nothing to carry it out."""
        raise ToolError(
            f"{self.name} is carried out by a sandbox, not by calling it ({len(kwargs)} arguments given).",
            "Hand the action to execute_action of a DockerEnvironment.",
        )

    def show(self, envelope: Mapping[str, Any]) -> str:
        """The envelope with the operation's own wording of its result."""
        return text_of(envelope, OPERATIONS[self.operation].result, self.name)


def sandbox_tools(only: Iterable[str] | None = None) -> list[SandboxAction]:
    """The operations a model may use, or those named in ``only``."""
    return [
        SandboxAction(name)
        for name in (OPERATIONS if only is None else only)
        if only is not None or name not in HOST_ONLY | IN_EVERY_PROMPT
    ]


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
