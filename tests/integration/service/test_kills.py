"""A few kills of the program that kills a service under load; ``python -m tests.soak.service`` is the real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.own_engine import OwnEngine
from tests.soak.service.__main__ import Kills, environment

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]


def test_a_few_kills_lose_nothing_and_leave_nothing(
    engine: OwnEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment(tmp_path, monkeypatch)
    journal = Kills(engine, tmp_path, seed=11, clients=2).run(3)
    assert journal.wrong == []
    assert sum(journal.done.values()) > 5
