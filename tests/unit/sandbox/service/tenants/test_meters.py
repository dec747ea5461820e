"""A meter lets through what was agreed, says when more will fit, and forgets nothing but what has leaked."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.service.tenants.meters import Meter


def test_all_of_a_minute_may_be_used_at_once_and_then_as_much_as_leaks() -> None:
    meter = Meter(60.0)
    assert [meter.spend(1, 3, 100.0) for _ in range(3)] == [0, 0, 0]
    assert meter.spend(1, 3, 100.0) == pytest.approx(20.0)
    assert meter.spend(1, 3, 110.0) == pytest.approx(10.0)
    assert meter.spend(1, 3, 120.0) == 0
    assert (meter.left(3, 120.0), meter.reset_seconds(3, 120.0)) == (0, 60)
    assert (meter.left(3, 200.0), meter.reset_seconds(3, 200.0)) == (3, 0)


def test_what_is_more_than_all_never_fits_and_a_refused_one_uses_nothing() -> None:
    meter = Meter(60.0)
    assert meter.spend(4, 3, 0.0) == math.inf
    assert meter.spend(3, 3, 0.0) == 0
    meter.give_back(2)
    assert meter.spend(2, 3, 0.0) == 0


def test_what_was_not_to_be_refused_any_more_counts_for_what_follows() -> None:
    meter = Meter(10.0)
    assert meter.add(30, 10, 0.0) == 20
    assert meter.spend(1, 10, 20.0) == pytest.approx(1.0)
    assert meter.left(10, 30.0) == 10


def test_a_quota_that_is_changed_holds_at_once_and_a_clock_that_goes_back_gives_nothing() -> None:
    meter = Meter(60.0)
    meter.spend(10, 10, 100.0)
    assert meter.left(20, 100.0) == 10
    assert meter.left(5, 100.0) == 0
    assert meter.spend(1, 10, 0.0) > 0
    assert meter.spend(1, 10, 6.1) == 0


@given(
    st.integers(1, 50),
    st.lists(st.tuples(st.floats(0, 30, allow_nan=False), st.integers(1, 10)), max_size=60),
)
def test_no_window_has_more_than_twice_the_quota(most: int, steps: list[tuple[float, int]]) -> None:
    """A bucket may be emptied at once, and refills meanwhile: in no minute more than two of it get through."""
    meter, at, let_through = Meter(60.0), 0.0, list[tuple[float, int]]()
    for wait, amount in steps:
        at += wait
        if meter.spend(amount, most, at) == 0:
            let_through.append((at, amount))
    for start, _ in let_through:
        assert sum(amount for when, amount in let_through if start <= when < start + 60) <= 2 * most
