"""A small repository, and the log of runs on it.

tested_tool and client_under_test are suites of their own, as users of the pytest plugin have them; tests here run them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.docker.kept.inventory import remove
from tests.scripted_runs import left_of

collect_ignore = ["tested_tool", "client_under_test"]


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo/a.txt").write_text("one\n")
    return tmp_path / "repo"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where runs are recorded with XDG_STATE_HOME in the folder ``state``."""
    return tmp_path / "state/gamebox/runs.db"


@pytest.fixture
def _no_sandbox_is_left(log: Path) -> Iterator[None]:
    yield
    left = left_of(log)
    for each in left:
        remove(each, force=True)
    assert left == []
