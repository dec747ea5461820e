"""The way of a call through the rooms is the one that docs/architecture.md shows. ``make docs`` writes it anew."""

from __future__ import annotations

import pytest

from tests.pages.files import ARCHITECTURE
from tests.walk.walk import CALLS, TITLES, way_of, words

# Which functions are entered depends on the version of Python.
pytestmark = pytest.mark.exhaustive


@pytest.mark.parametrize("call", CALLS)
def test_the_page_shows_the_way_of_a_call(call: str) -> None:
    assert words(call) in ARCHITECTURE.read_text(encoding="utf-8"), "run make docs, and commit what it writes"


def test_a_walk_goes_through_host_and_guest_and_back() -> None:
    way, busy = way_of("read")
    assert all(way[title] for title in TITLES if title != "Guest, the processes of the command")
    assert len(busy) < 15
