"""Budgets limit what a run may use; a meter counts what it has used.

The code that calls a model reports each call with ``charge``, failed calls too, from the innermost layer; the meter of the
run around it counts them. So retries, wrappers and replies that cannot be parsed are all billed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field, fields, replace

from sandbox.frozen import dataclass

from .status import End, RunStatus, StopRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What calls of a model used. ``cost_usd`` sums the priced calls; ``unpriced_calls`` counts those without a price.

    ``estimated_tokens`` are tokens of calls that failed without saying what they used (a timeout is often billed).
    ``cached_tokens`` of the input were read from the provider's cache and ``cache_write_tokens`` were written to it;
    ``reasoning_tokens`` of the output were thinking.
    """

    calls: int = 0
    failed_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    estimated_tokens: int = 0
    cost_usd: float = 0.0
    unpriced_calls: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Return the sum of input, output and estimated tokens."""
        return self.input_tokens + self.output_tokens + self.estimated_tokens

    @property
    def cost_text(self) -> str:
        """Return the cost in words: "$0.0123", or "cost unknown" if a call had no price."""
        return "cost unknown" if self.unpriced_calls else f"${self.cost_usd:.4f}"

    def __add__(self, other: Usage) -> Usage:
        return Usage(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a run may use; None means no limit. Raises ValueError for a limit that is not positive.

    Limits are checked before each step and before each call of a model, never in the middle of one: a run can exceed them by
    one call, or one action. ``max_invalid_replies`` bounds the replies in a row from which no action was carried out,
    ``max_calls_per_reply`` the tool calls of one reply that are carried out.
    """

    max_iterations: int = 50
    max_seconds: float | None = None
    max_tokens: int | None = None
    max_cost_usd: float | None = None
    max_invalid_replies: int = 8
    max_calls_per_reply: int = 8

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"{name} must be positive, got {value!r}.")

    def with_iterations(self, max_iterations: int | None) -> Budget:
        """Return the same budget with other ``max_iterations``; None changes nothing."""
        return self if max_iterations is None else replace(self, max_iterations=max_iterations)


@dataclass(slots=True)
class Meter:
    """What one run has used so far, against its budget. Safe to charge from several threads.

    ``above`` is the meter of the run that this one is a part of: it counts what this one counts, and its limits hold here, too.
    """

    budget: Budget
    started: float = field(default_factory=time.monotonic)
    usage: Usage = field(default_factory=Usage)
    above: Meter | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def charge(self, usage: Usage) -> None:
        """Count what a call used."""
        with self._lock:
            self.usage += usage
        if self.above is not None:
            self.above.charge(usage)

    @property
    def seconds(self) -> float:
        """Return the seconds since the run began."""
        return time.monotonic() - self.started

    def seconds_left(self) -> float | None:
        """Return the seconds until ``max_seconds``, its own or that of the run above, at least 0; None without a limit."""
        limits = [] if self.budget.max_seconds is None else [max(self.budget.max_seconds - self.seconds, 0.0)]
        above = None if self.above is None else self.above.seconds_left()
        return min([*limits, *([] if above is None else [above])], default=None)

    def reached(self) -> End | None:
        """Return the end that a limit of seconds, tokens or cost demands, its own or one above; None below all limits."""
        if self.above is not None and (above := self.above.reached()) is not None:
            return above
        b, used = self.budget, self.usage
        if b.max_seconds is not None and self.seconds >= b.max_seconds:
            return End(f"{self.seconds:.1f} of {b.max_seconds:g} seconds were used.", RunStatus.max_seconds)
        if b.max_tokens is not None and used.total_tokens >= b.max_tokens:
            return End(f"{used.total_tokens} of {b.max_tokens} tokens were used.", RunStatus.max_tokens)
        if b.max_cost_usd is not None and used.cost_usd >= b.max_cost_usd:
            return End(f"${used.cost_usd:.4f} of ${b.max_cost_usd:g} were used.", RunStatus.max_cost)
        if b.max_cost_usd is not None and used.unpriced_calls:
            reason = f"The limit of ${b.max_cost_usd:g} cannot be kept: the price of this model is not known."
            return End(reason, RunStatus.max_cost)
        return None

    def check(self) -> None:
        """Raise StopRun if a limit of seconds, tokens or cost is reached, its own or one above."""
        if (end := self.reached()) is not None:
            raise StopRun(end.reason, end.status)


_meter: ContextVar[Meter | None] = ContextVar("gamebox_meter", default=None)


@contextmanager
def metering(meter: Meter) -> Iterator[Meter]:
    """Have ``charge`` count on ``meter``, and on the meter of the run around it, while the block runs."""
    around = _meter.get()
    meter.above = around if around is not meter else None
    token = _meter.set(meter)
    try:
        yield meter
    finally:
        _meter.reset(token)


def current_meter() -> Meter | None:
    """Return the meter of the run around the caller; None outside of a run."""
    return _meter.get()


def charge(usage: Usage) -> None:
    """Count what a call of a model used on the run around the caller; outside of a run nothing is counted."""
    meter = _meter.get()
    if meter is not None:
        meter.charge(usage)
