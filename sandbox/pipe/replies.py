"""Word the fault and the notices in a reply of the guest, whose bytes are hostile until they are checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandbox.envelope import Notice
from sandbox.errors import ErrorCode, OperationError
from sandbox.messages.faults import fault_error, violation, word_notice

MOST_NOTICES = 20


def fault_of(fault: Any, operation: str) -> OperationError:
    """Return the error for the fault in a reply, in words.

    Raises SandboxUnavailableError ``protocol_violation`` for what no guest of ours would send.
    """
    try:
        # ErrorCode(...) would also read a code of the agent, which no guest gives.
        code = ErrorCode.__members__[fault["code"]]
        effects = fault["effects"]
        fields = dict(fault["fields"])
    except (TypeError, ValueError, KeyError) as problem:
        raise violation(operation) from problem
    error = fault_error(code, fields, operation)
    if effects not in ("none", "partial", "unknown"):
        raise violation(operation)
    error.effects = effects
    error.retryable = error.retryable and effects == "none"
    return error


def notices_of(listed: Any, known: Mapping[str, Any] | None = None) -> list[Notice]:
    """Return the notices in a reply, in words that use what the host knows (``known``): the first 20 with a known code."""
    notices = []
    for item in listed if isinstance(listed, list) else []:
        if isinstance(item, dict) and isinstance(item.get("code"), str):
            notice = word_notice(item["code"], {**item, **(known or {})})
            if notice is not None:
                notices.append(notice)
    return notices[:MOST_NOTICES]
