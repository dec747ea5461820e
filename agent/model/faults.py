"""What litellm raises, in our words: which faults pass by themselves, how long to wait, and what the user can do."""

from __future__ import annotations

import math
import os
import random
import re
import sys
from email.utils import parsedate_to_datetime
from time import time

from agent.errors import AgentErrorCode
from sandbox.text.masking import LEAST_CHARS, Mask

from .brain import ModelError

GROWS_TO_SECONDS = 60.0
_TRANSIENT = (
    "RateLimitError",
    "ServiceUnavailableError",
    "InternalServerError",
    "BadGatewayError",
    "APIConnectionError",
    "Timeout",
)
_CREDENTIALS = ("AuthenticationError", "PermissionDeniedError")
_REJECTED = ("BadRequestError", "NotFoundError", "UnprocessableEntityError")
# Waiting does not help after a 429 with one of these.
_SPENT = re.compile(r"insufficient_quota|exceeded your current quota|billing|credit balance", re.IGNORECASE)
# litellm calls a reply that it cannot read a fault of the server; the next one would be the same, and billed again.
_UNREADABLE = re.compile(r"Invalid response object")
_MISSING_KEY = re.compile(r"\b[A-Z][A-Z0-9_]*_(?:API_KEY|TOKEN|KEY)\b")
# Some servers answer an overlong prompt with a plain 400; litellm knows only the wordings of large providers.
_TOO_LONG = re.compile(
    r"context (?:length|window|size)|maximum context|too many tokens|prompt is too long", re.IGNORECASE
)


def is_transient(error: BaseException) -> bool:
    """Return whether the same call can succeed a little later."""
    if _is(error, "ContextWindowExceededError") or any(p.search(str(error)) for p in (_SPENT, _TOO_LONG, _UNREADABLE)):
        return False
    status = getattr(error, "status_code", None)
    server_fault = _is(error, "APIError") and isinstance(status, int) and status >= 500
    return server_fault or _is(error, *_TRANSIENT) or _lost_connection(error)


def is_rate_limit(error: BaseException | None) -> bool:
    """Return whether the provider asks every caller to wait."""
    return _is(error, "RateLimitError") and not _SPENT.search(str(error))


def wait_seconds(error: BaseException | None, attempt: int, cap: float) -> float:
    """Return the pause after attempt ``attempt`` in seconds, at most ``cap``.

    It is the provider's Retry-After if there is one; otherwise it doubles from 1 s to GROWS_TO_SECONDS, with jitter.
    """
    asked = _retry_after(error)
    if asked is not None:
        return min(max(asked, 0.0), cap)
    return min(2.0 ** (attempt - 1) * random.uniform(0.75, 1.25), GROWS_TO_SECONDS, cap)  # noqa: S311 - spreads callers, keeps no secret


def translated(error: BaseException, model: str, key: object = None) -> ModelError | None:
    """Return the fault as a ModelError, or None for one that is not the model's. Its text has neither ``key`` nor a key that is
    in the environment: some servers quote it.
    """
    text = _brief(error, key)
    if _is(error, "ContextWindowExceededError") or (hasattr(error, "llm_provider") and _TOO_LONG.search(str(error))):
        return ModelError(
            AgentErrorCode.context_window_exceeded,
            f"The prompt is too long for {model}: {text}",
            "Use a smaller memory window, or a model with a larger context.",
        )
    if _is(error, *_CREDENTIALS):
        return ModelError(
            AgentErrorCode.model_credentials_missing,
            f"{model} refused the key: {text}",
            f"Check that {_key_of(error)} is set and valid.",
        )
    if _is(error, *_REJECTED):
        return ModelError(
            AgentErrorCode.model_rejected_request,
            f"{model} refused the request: {text}",
            "Check the name of the model and the options it is called with.",
        )
    if _is(error, *_TRANSIENT) or hasattr(error, "llm_provider") or _lost_connection(error):
        return ModelError(
            AgentErrorCode.model_unavailable,
            f"{model} did not answer: {text}",
            "Try again later, or check the address and the quota of the provider.",
            retryable=True,
        )
    return None


def _is(error: BaseException | None, *names: str) -> bool:
    """Whether litellm's classes of these names, or those of OpenAI's client beneath them, include the error.

    Once a call has failed both libraries are imported: they are looked up, since importing litellm takes seconds.
    """
    modules = [module for name in ("litellm.exceptions", "openai") if (module := sys.modules.get(name)) is not None]
    classes = [getattr(module, name, None) for module in modules for name in names]
    return isinstance(error, tuple(c for c in classes if isinstance(c, type)))


def _lost_connection(error: BaseException) -> bool:
    """Whether a stream broke off: litellm lets the errors of its HTTP client through there."""
    httpx = sys.modules.get("httpx")
    return httpx is not None and isinstance(error, httpx.TransportError)


def _key_of(error: BaseException) -> str:
    """The variable that holds the refused key, if it is known."""
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
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time()
        except (ValueError, OverflowError):
            return None
    return seconds if math.isfinite(seconds) else None


def _brief(error: BaseException, key: object) -> str:
    keys = [str(key or ""), *(value for name, value in os.environ.items() if name.endswith("_API_KEY"))]
    text = " ".join(Mask.of_stars([each for each in keys if len(each) >= LEAST_CHARS]).text(str(error)).split())
    return text if len(text) <= 500 else f"{text[:500]}…"
