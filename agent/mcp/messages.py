"""JSON-RPC messages, their bounds, and the failures of an exchange. Every byte from a server is treated as hostile."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from sandbox.errors import ErrorCode, OperationError

Message = dict[str, Any]
# A longer message ends the connection: it would have to be held in memory.
MAX_MESSAGE_BYTES = 4 << 20
MAX_DEPTH = 60
# A server's own error messages are truncated to this many characters.
MAX_WORDS = 2000
METHOD_NOT_FOUND = -32601


def encoded(message: Mapping[str, Any]) -> str:
    """Encode a message as one line. Raises OperationError for arguments that JSON cannot represent."""
    try:
        return json.dumps(message, ensure_ascii=True, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise OperationError(
            ErrorCode.invalid_arguments, f"The arguments cannot be written as JSON: {error}", "Send plain JSON."
        ) from error


def decoded(text: str | bytes) -> Message | None:
    """Decode a message. Returns None if ``text`` is not one; raises OperationError ``invalid_result`` beyond the bounds."""
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
    escape = "\\ud" if isinstance(text, str) else b"\\ud"
    return _without_surrogates(value) if escape in text.lower() else value  # type: ignore[operator]


def _without_surrogates(value: Message) -> Message:
    """Replace halves of surrogate pairs by ``?``: they are not text, and neither UTF-8 nor pydantic takes them."""
    replaced: Message = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    return replaced


def too_deep(value: Any, most: int = MAX_DEPTH) -> bool:
    """Return whether ``value`` is nested deeper than ``most`` levels."""
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
    """Return whether ``message`` answers a request."""
    return "method" not in message and ("result" in message or "error" in message)


class HttpStatusError(OperationError):
    """An address answered with ``status`` in place of a message."""

    def __init__(self, url: str, status: int, hint: str) -> None:
        super().__init__(
            ErrorCode.connection_failed, f"The MCP server at {url} answered with the status {status}.", hint
        )
        self.status = status


# The server may have done something before it failed.
_failure = partial(OperationError, effects="unknown")


def nonsense(what: str) -> OperationError:
    """Build the failure for a server that violates the protocol."""
    hint = "The server is at fault: do without it, and tell the user."
    return _failure(ErrorCode.invalid_result, f"The MCP server sent {what}.", hint)


def late(seconds: float) -> OperationError:
    """Build the failure for a server that did not answer in time."""
    words = f"The MCP server did not answer within {seconds:g} seconds; it may still be at work."
    return _failure(ErrorCode.timeout, words, "Look at what it has done before you call it again, or ask for less.")


def gone(why: str) -> OperationError:
    """Build the failure for a server whose connection ended."""
    hint = "The next call of one of its tools starts it again, without the state it had."
    return _failure(ErrorCode.command_ended, f"The MCP server is gone: {why}", hint)
