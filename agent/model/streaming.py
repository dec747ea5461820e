"""A reply that arrives in pieces: each is reported, and all of them are put together into a whole one."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from agent.errors import AgentErrorCode

from .brain import Delta, ModelError, OnDelta

# Far above what any model writes: a server must not fill the memory of the host.
MAX_REPLY_CHARS = 20_000_000


def collected(litellm: Any, chunks: Iterable[Any], messages: list[Any], on_delta: OnDelta) -> Any:
    """Return the whole reply that ``chunks`` are the pieces of, each of which ``on_delta`` receives as it arrives.

    Raises ModelError for a stream without end or without content.
    """
    try:
        kept = _received(chunks, on_delta)
    finally:
        _close(chunks)
    whole = litellm.stream_chunk_builder(kept, messages=messages) if kept else None
    if whole is None or not getattr(whole, "choices", None):
        raise ModelError(AgentErrorCode.model_unavailable, "The model answered without a reply.", "Try again.")
    return whole


def endless() -> ModelError:
    """Build the fault for a reply of more than ``MAX_REPLY_CHARS``."""
    return ModelError(AgentErrorCode.model_unavailable, "The reply of the model does not end.", "Use another model.")


def _received(chunks: Iterable[Any], on_delta: OnDelta) -> list[Any]:
    on_delta(Delta("start"))
    kept: list[Any] = []
    size = 0
    for chunk in chunks:
        kept.append(chunk)
        for delta in _deltas(chunk):
            size += len(delta.text)
            on_delta(delta)
        if size > MAX_REPLY_CHARS:
            raise endless()
    return kept


def _close(chunks: Any) -> None:
    """End the HTTP response, so that a provider stops writing a reply that nobody reads. litellm has no method for that."""
    stream = getattr(chunks, "completion_stream", None)
    for part in (stream, getattr(stream, "streaming_response", None)):
        close = getattr(part, "close", None)
        if callable(close):
            with suppress(Exception):
                close()


def _deltas(chunk: Any) -> Iterable[Delta]:
    choices = getattr(chunk, "choices", None)
    delta = getattr(choices[0], "delta", None) if choices else None
    if delta is None:
        return
    thinking = getattr(delta, "reasoning_content", None)
    if isinstance(thinking, str) and thinking:
        yield Delta("thinking", thinking)
    text = getattr(delta, "content", None)
    if isinstance(text, str) and text:
        yield Delta("text", text)
    for call in getattr(delta, "tool_calls", None) or ():
        function = getattr(call, "function", None)
        name, arguments = getattr(function, "name", None) or "", getattr(function, "arguments", None) or ""
        if name or arguments:
            yield Delta("tool_call", arguments, int(getattr(call, "index", 0) or 0), name)
