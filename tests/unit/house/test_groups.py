"""xdist gives tests that share something to one worker. It finds groups in the ids of tests, and with pytest 9.2 it finds none."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def _shared() -> None:
    """Stands for an engine or a service."""


@pytest.mark.usefixtures("_shared")
def test_tests_that_share_a_fixture_are_a_group(request: pytest.FixtureRequest) -> None:
    module = "tests/unit/house/test_groups.py"
    assert [mark.args for mark in request.node.iter_markers("xdist_group")] == [(module,)]
    if request.config.getoption("loadgroup", False):
        assert request.node.nodeid.endswith(f"@{module}"), "xdist does not see groups"


def test_a_test_that_shares_nothing_is_in_no_group(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("xdist_group") is None
