"""Every sandbox of this suite has the tool in its workspace."""

from typing import Any

import pytest


@pytest.fixture(scope="session")
def sandbox_options() -> dict[str, Any]:
    return {"workspace": "tool", "env": {"JOT_FILE": "notes.jsonl"}}
