"""A guest's processes, in which pages are read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guest.calls import RunningProcesses, place_at, running_processes


@pytest.fixture
def guest(tmp_path: Path) -> Iterator[RunningProcesses]:
    with running_processes(place_at(tmp_path)) as running:
        yield running
