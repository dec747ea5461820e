"""Messages of JSON-RPC, the way they travel, and how it fails: every byte of a server is taken for hostile."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from sandbox.errors import ErrorCode, OperationError

Message = dict[str, Any]
# A message longer than this ends the connection: it would be kept in memory until its end.
MAX_MESSAGE_BYTES = 4 << 20
MAX_DEPTH = 60
# What a server says of its own faults is cut to this.
MAX_WORDS = 2000
METHOD_NOT_FOUND = -32601


class Wire(Protocol):
    """The way to one server. ``ended`` is why it is gone, or empty."""

    ended: str

    def open(self, on_message: Callable[[Message], None]) -> None:
        """Connect; ``on_message`` is called, in any thread, with what the server sends unasked. Raises OperationError."""

    def ask(self, message: Message, seconds: float) -> Message:
        """The answer to a request with an ``id``. Raises OperationError: ``timeout``, ``command_ended``, ``connection_failed``,
        ``invalid_result``.
        """

    def tell(self, message: Message) -> None:
        """Send what needs no answer. Raises OperationError."""

    def close(self) -> None:
        """End the connection, and the server where it was started for it; may be called more than once."""


def encoded(message: Mapping[str, Any]) -> str:
    """The message as one line. Raises OperationError for arguments that are no JSON."""
    try:
        return json.dumps(message, ensure_ascii=True, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise OperationError(
            ErrorCode.invalid_arguments, f"The arguments cannot be written as JSON: {error}", "Send plain JSON."
        ) from error


def decoded(text: str | bytes) -> Message | None:
    """The message in ``text``; None for what is none. Raises OperationError ``invalid_result`` for one beyond the bounds."""
    if len(text) > MAX_MESSAGE_BYTES:
        raise nonsense(f"a message of more than {MAX_MESSAGE_BYTES >> 20} MiB")
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise nonsense(f"a message nested deeper than {MAX_DEPTH} levels") from error
    except ValueError:
        return None
    if not isinstance(value, dict) or value.get("jsonrpc") != "2.0":
        return None
    if too_deep(value):
        raise nonsense(f"a message nested deeper than {MAX_DEPTH} levels")
    return value


def too_deep(value: Any, most: int = MAX_DEPTH) -> bool:
    """Whether ``value`` is nested deeper than ``most`` levels."""
    level: list[Any] = [value]
    for _ in range(most):
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
        ]
        if not level:
            return False
    return True


def is_answer(message: Mapping[str, Any]) -> bool:
    """Whether it answers a request."""
    return "method" not in message and ("result" in message or "error" in message)


def refusal(request: Mapping[str, Any]) -> Message:
    """The answer to a request of a server for what this client does not do for it."""
    words = f"This client does not do {str(request.get('method'))[:100]}."
    return {"jsonrpc": "2.0", "id": request.get("id"), "error": {"code": METHOD_NOT_FOUND, "message": words}}


# The server may have done something before it failed.
_failure = partial(OperationError, effects="unknown")


def nonsense(what: str) -> OperationError:
    """The server does not keep to the protocol."""
    hint = "The server is at fault: do without it, and tell the user."
    return _failure(ErrorCode.invalid_result, f"The MCP server sent {what}.", hint)


def late(seconds: float) -> OperationError:
    """The server did not answer in time."""
    words = f"The MCP server did not answer within {seconds:g} seconds; it may still be at work."
    return _failure(ErrorCode.timeout, words, "Look at what it has done before you call it again, or ask for less.")


def gone(why: str) -> OperationError:
    """The server is not there any more."""
    hint = "The next call of one of its tools starts it anew, without the state it had."
    return _failure(ErrorCode.command_ended, f"The MCP server is gone: {why}", hint)
