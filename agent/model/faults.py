"""What litellm raises, in our words: which faults pass by themselves, how long to wait, and what the user can do."""

from __future__ import annotations

import os
import random
import re
from email.utils import parsedate_to_datetime
from time import time

from agent.errors import AgentErrorCode

from .brain import ModelError

# By name: litellm's classes cannot be imported here without importing litellm, and they are siblings of the provider's.
_TRANSIENT = frozenset(
    {
        "RateLimitError",
        "ServiceUnavailableError",
        "InternalServerError",
        "BadGatewayError",
        "APIConnectionError",
        "Timeout",
        "APIError",
    }
)
_CREDENTIALS = frozenset({"AuthenticationError", "PermissionDeniedError"})
_REJECTED = frozenset(
    {
        "BadRequestError",
        "NotFoundError",
        "UnprocessableEntityError",
        "UnsupportedParamsError",
        "ContentPolicyViolationError",
    }
)
# A 429 with one of these is no matter of waiting.
_SPENT = re.compile(r"insufficient_quota|exceeded your current quota|billing|credit balance", re.IGNORECASE)
# litellm calls a reply that it cannot read a fault of the server; the next one would be the same, and billed again.
_UNREADABLE = re.compile(r"Invalid response object")
_MISSING_KEY = re.compile(r"\b[A-Z][A-Z0-9_]*_(?:API_KEY|TOKEN|KEY)\b")
# Some servers answer an overlong prompt with a plain 400; litellm knows only the wordings of large providers.
_TOO_LONG = re.compile(
    r"context (?:length|window|size)|maximum context|too many tokens|prompt is too long", re.IGNORECASE
)


def is_transient(error: BaseException) -> bool:
    """Whether the same call can work a little later."""
    status = getattr(error, "status_code", None)
    name = type(error).__name__
    if name == "APIError":
        return isinstance(status, int) and status >= 500
    return name in _TRANSIENT and not any(p.search(str(error)) for p in (_SPENT, _TOO_LONG, _UNREADABLE))


def wait_seconds(error: BaseException | None, attempt: int, cap: float) -> float:
    """The pause after attempt ``attempt``: retry-after where the provider says it, else doubling from 1 s with
    jitter; at most ``cap``.
    """
    asked = _retry_after(error)
    if asked is not None:
        return min(max(asked, 0.0), cap)
    return min(2.0 ** (attempt - 1) * random.uniform(0.75, 1.25), cap)  # noqa: S311 - spreads callers, keeps no secret


def translated(error: BaseException, model: str) -> ModelError | None:
    """The fault as a ModelError, or None for one that is not the model's."""
    name, text = type(error).__name__, _brief(error)
    if name == "ContextWindowExceededError" or _TOO_LONG.search(str(error)):
        return ModelError(
            AgentErrorCode.context_window_exceeded,
            f"The prompt is too long for {model}: {text}",
            "Use a smaller memory window, or a model with a larger context.",
        )
    if name in _CREDENTIALS:
        which = _key_of(error)
        return ModelError(
            AgentErrorCode.model_credentials_missing,
            f"{model} refused the key: {text}",
            f"Check that {which} is set and valid.",
        )
    if name in _REJECTED:
        return ModelError(
            AgentErrorCode.model_rejected_request,
            f"{model} refused the request: {text}",
            "Check the name of the model and the options it is called with.",
        )
    if name in _TRANSIENT or hasattr(error, "llm_provider"):
        return ModelError(
            AgentErrorCode.model_unavailable,
            f"{model} did not answer: {text}",
            "Try again later, or check the address and the quota of the provider.",
            retryable=True,
        )
    return None


def _key_of(error: BaseException) -> str:
    """The variable that holds the refused key, where it is known."""
    named = _MISSING_KEY.search(str(error))
    usual = f"{str(getattr(error, 'llm_provider', '')).upper()}_API_KEY"
    return named.group(0) if named else usual if usual in os.environ else "the provider's key"


def _retry_after(error: BaseException | None) -> float | None:
    response = getattr(error, "response", None)
    headers = getattr(error, "litellm_response_headers", None) or getattr(response, "headers", None) or {}
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        return float(value)
    except ValueError:
        pass
    try:
        return parsedate_to_datetime(value).timestamp() - time()
    except ValueError:
        return None


def _brief(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 500 else f"{text[:500]}…"
