"""A run that delegates, killed with SIGKILL at random moments: no event is lost, no action is carried out twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from .killed_tree import killed_over_and_over


@pytest.mark.engine
@pytest.mark.timeout(300)
def test_a_tree_of_agents_that_is_killed_at_random_moments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight times, from a fixed seed; ``python -m tests.scenarios.killed_tree 30 SEED`` does it more often."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    found = killed_over_and_over(tmp_path, kills=8, seed=5)
    assert found.kills == 8
    assert sum(count for depth, count in found.within.items() if depth) > 2, "agents below were at work, too"
