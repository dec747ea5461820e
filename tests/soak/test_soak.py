"""Twelve seconds of the soak program; ``make soak MINUTES=60`` is the real one."""

from __future__ import annotations

import pytest

from .__main__ import Soak

pytestmark = [pytest.mark.engine, pytest.mark.alone]


def test_a_short_soak() -> None:
    counts = Soak(seed=5, sandboxes=2).run(12)
    assert counts.notes == []
    assert counts.fine(), counts.lines()
    assert sum(counts.actions.values()) > 30
    assert counts.figures["sandboxes"] >= 2
