"""What a brain is, and how it reports a reply while the model is still writing it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, Protocol

from sandbox.errors import SandboxError
from sandbox.frozen import dataclass


class Brain(Protocol):
    """Any callable from a prompt to a reply: text, ``{"tool", "args"}``, a chat message, or a Response."""

    def __call__(self, prompt: Any, /) -> Any:
        """Return the reply. An exception ends the run as ``model_failed``."""


class ModelError(SandboxError):
    """A model did not answer; ``code`` is one of the model codes of ``AgentErrorCode``."""


class ScriptEndedError(ModelError):
    """A script has no more replies. Unlike a model that did not answer, waiting does not help."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a reply that is still being written.

    ``start`` begins a reply and makes every earlier piece void: the model is asked again after a fault. ``text`` and ``thinking``
    carry the next characters. ``tool_call`` carries the next characters of the arguments of call number ``index``; the first
    piece of a call has its ``name``.
    """

    kind: Literal["start", "text", "thinking", "tool_call"]
    text: str = ""
    index: int = 0
    name: str = ""


OnDelta = Callable[[Delta], None]
_on_delta: ContextVar[OnDelta | None] = ContextVar("gamebox_on_delta", default=None)


@contextmanager
def receiving_deltas(on_delta: OnDelta | None) -> Iterator[None]:
    """Have brains that can stream call ``on_delta`` with each piece, on their thread, while the block runs.

    A brain still returns the whole reply. The listener travels in a context variable, so that it reaches the brain through
    wrappers and through a ``prompt_llm_for_action`` that a subclass overrides. An exception from ``on_delta`` stops the call.
    None stops listening, as for a summary that is written in between.
    """
    token = _on_delta.set(on_delta)
    try:
        yield
    finally:
        _on_delta.reset(token)


def delta_listener() -> OnDelta | None:
    """Return the function that gets the pieces of the reply; None outside of ``receiving_deltas``."""
    return _on_delta.get()
