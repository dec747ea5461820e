"""What the sandboxes of `gamebox agent` are asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.options import AgentOptions
from sandbox.cli import Kept
from sandbox.guest_environment import GuestEnvironment


@pytest.mark.parametrize("local", [True, False])
def test_a_command_of_an_agent_has_time_for_a_build(local: bool, tmp_path: Path) -> None:
    """UX 4: 120 seconds are short for builds and installations."""
    (tmp_path / "repo").mkdir()
    made = AgentOptions(task="t", local=local).opener(Kept())(tmp_path / "repo")
    assert isinstance(made, GuestEnvironment)
    assert made.limits.timeout_seconds == 600
    assert "a command may take 600 s" in made.describe()["limits"]


def test_the_image_of_an_agent_is_pulled_on_request_alone(tmp_path: Path) -> None:
    plain, pulling = (AgentOptions(task="t", pull=pull).opener(Kept())(tmp_path) for pull in (False, True))
    assert (plain._pull, pulling._pull) == (False, True)  # type: ignore[attr-defined]
