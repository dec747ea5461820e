"""One call of a provider as several attempts: behind the gate of its rate limit, and again after a fault that passes by itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt

from agent.core.budget import current_meter

from .faults import is_rate_limit, is_transient, translated, wait_seconds
from .rate_gate import RateGate, gate_for

Answer = TypeVar("Answer")
log = logging.getLogger(__name__)


def attempts(
    ask: Callable[[], Answer], model: str, options: Mapping[str, Any], *, max_attempts: int, max_wait_seconds: float
) -> Answer:
    """Call ``ask`` until it answers, at most ``max_attempts`` times, and return the answer.

    Every attempt is checked against the budget of the run around it first. After a 429 all callers of the same model, address
    and key wait, for at most ``max_wait_seconds``. Raises ModelError for a fault of the provider, and other exceptions as they
    are.
    """
    gate = gate_for(model, options.get("api_base"), options.get("api_key"))

    def pause(state: RetryCallState) -> float:
        seconds = wait_seconds(_error_of(state), state.attempt_number, max_wait_seconds)
        meter = current_meter()
        left = meter.seconds_left() if meter else None
        return seconds if left is None else min(seconds, left)

    def report(state: RetryCallState) -> None:
        """A wait looks like a hang, so it is a warning, which Python shows on standard error."""
        log.warning(
            "%s: %s; trying again in %.0f s (attempt %d of %d)",
            model,
            type(_error_of(state)).__name__,
            state.upcoming_sleep,
            state.attempt_number + 1,
            max_attempts,
        )

    retrying = Retrying(
        stop=stop_after_attempt(max_attempts),
        wait=pause,
        retry=retry_if_exception(is_transient),
        before_sleep=report,
        reraise=True,
    )
    try:
        answer: Answer = retrying(_attempt, ask, gate, max_wait_seconds)
    except Exception as error:
        known = translated(error, model, options.get("api_key"))
        if known is None:
            raise
        raise known from error
    return answer


def _attempt(ask: Callable[[], Answer], gate: RateGate, max_wait_seconds: float) -> Answer:
    meter = current_meter()
    with gate.passing(meter.check if meter else _nothing):
        try:
            return ask()
        except Exception as error:
            if is_rate_limit(error):
                gate.close(wait_seconds(error, 1, max_wait_seconds))
            raise


def _error_of(state: RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome else None


def _nothing() -> None:
    pass
