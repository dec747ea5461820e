"""The way of a call through the rooms is the one that docs/architecture.md shows. ``make docs`` writes it anew."""

from __future__ import annotations

import pytest

from tests.pages.files import ARCHITECTURE
from tests.walk.walk import CALLS, EVENTS, TITLES, TOOLS, way_of, words

# Which functions are entered depends on the version of Python.
pytestmark = pytest.mark.exhaustive


@pytest.mark.parametrize("call", CALLS)
def test_the_page_shows_the_way_of_a_call(call: str) -> None:
    """On a busy machine most calls of a trace may take the other way: without an event that a process would be too slow for."""
    page = ARCHITECTURE.read_text(encoding="utf-8")
    assert any(words(call) in page for _ in range(10)), "run make docs, and commit what it writes"


def test_a_walk_goes_through_host_and_guest_and_back() -> None:
    way, _ = way_of("read")
    others = ("Guest, the processes of the command", "Host, the thread that reads the pipe")  # the caller reads it
    assert all(way[title] for title in TITLES if title not in others)


@pytest.mark.parametrize("call", CALLS)
def test_only_tools_and_events_enter_a_room_more_than_twice(call: str) -> None:
    assert set(way_of(call)[1]) <= {*TOOLS, *EVENTS}
