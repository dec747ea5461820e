"""A brain that follows a script."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

from agent.errors import AgentErrorCode
from sandbox.errors import ErrorCode, SandboxError

from .brain import ScriptEndedError


class ScriptedModel:
    """Replies with one of ``steps`` after the other.

    A step is a reply (text, ``{"thought", "tool", "args"}``, a Response), an exception to raise, or a function from
    the prompt to a reply. After the last one it raises ScriptEndedError, ``model_unavailable``. ``prompts`` keeps what it
    was asked.
    """

    def __init__(self, steps: Iterable[Any]) -> None:
        self.steps: list[Any] = list(steps)
        self.prompts: list[Any] = []

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read the script from a JSON file: a list of replies. Raises SandboxError ``invalid_configuration``."""
        hint = 'A script is a JSON list of {"thought": "...", "tool": "NAME", "args": {...}} or of texts.'
        try:
            steps = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise SandboxError(
                ErrorCode.invalid_configuration, f"The script {path} cannot be read: {error}.", hint
            ) from error
        good = isinstance(steps, list) and steps and all(isinstance(s, str | dict) for s in steps)
        if not good:
            raise SandboxError(ErrorCode.invalid_configuration, f"The script {path} is not a list of replies.", hint)
        return cls(steps)

    @property
    def remaining(self) -> int:
        """Return how many steps are left."""
        return max(len(self.steps) - len(self.prompts), 0)

    def __call__(self, prompt: Any, /) -> Any:
        number = len(self.prompts)
        self.prompts.append(prompt)
        if number >= len(self.steps):
            raise ScriptEndedError(
                AgentErrorCode.model_unavailable,
                f"The script has {len(self.steps)} steps and was asked for step {number + 1}.",
                "End the script with the action that ends the run.",
            )
        step: Any | Callable[[Any], Any] = self.steps[number]
        if isinstance(step, BaseException):
            raise step
        return step(prompt) if callable(step) else step
