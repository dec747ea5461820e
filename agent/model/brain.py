"""What a brain is."""

from __future__ import annotations

from typing import Any, Protocol

from sandbox.errors import SandboxError


class Brain(Protocol):
    """Any callable from a prompt to a reply: text, ``{"tool", "args"}``, a chat message, or a Response."""

    def __call__(self, prompt: Any, /) -> Any:
        """The reply. What is raised ends the run as ``model_failed``."""


class ModelError(SandboxError):
    """A model did not answer; ``code`` is one of the model codes of ``AgentErrorCode``."""


class ScriptEndedError(ModelError):
    """A script has no further reply: waiting does not help, as it may where a model did not answer."""
