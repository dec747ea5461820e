"""What the sandboxes of `gamebox agent` are asked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.job.commands import opener
from agent.job.options import AgentOptions
from sandbox.cli.sandbox_options import Kept
from sandbox.environment.sandboxed import SandboxedEnvironment
from sandbox.errors import SandboxError
from tests.programs import run_gamebox


@pytest.mark.parametrize("local", [True, False])
def test_a_command_of_an_agent_has_time_for_a_build(local: bool, tmp_path: Path) -> None:
    """UX 4: 120 seconds are short for builds and installations."""
    (tmp_path / "repo").mkdir()
    made = AgentOptions(task="t", local=local).opener(Kept())(tmp_path / "repo")
    assert isinstance(made, SandboxedEnvironment)
    assert made.limits.timeout_seconds == 600
    assert "a command may take 600 s" in made.describe()["limits"]


def test_the_image_of_an_agent_is_pulled_on_request_alone(tmp_path: Path) -> None:
    plain, pulling = (AgentOptions(task="t", pull=pull).opener(Kept())(tmp_path) for pull in (False, True))
    assert (plain.spec.pull, pulling.spec.pull) == (False, True)  # type: ignore[attr-defined]


def test_replay_pulls_the_image_on_request_alone(tmp_path: Path) -> None:
    """Review: its error advised --pull, an option that it did not have."""
    plain, pulling = (opener("nosuch:1", local=False, pull=pull)(tmp_path) for pull in (False, True))
    assert (plain.spec.pull, pulling.spec.pull) == (False, True)  # type: ignore[attr-defined]


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan")])
def test_a_time_to_keep_a_sandbox_is_checked_before_a_run_is_recorded(seconds: float) -> None:
    with pytest.raises(SandboxError, match="is not a time to wait"):
        AgentOptions(task="t", keep_seconds=seconds).job()


def test_a_time_to_keep_a_sandbox_keeps_it() -> None:
    assert [AgentOptions(task="t", **given).keeps for given in ({}, {"keep": True}, {"keep_seconds": 60.0})] == [
        False, True, True,
    ]  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("command", [("run",), ("shell",), ("agent",), ("batch",), ("runs", "replay")])
def test_all_commands_that_make_a_sandbox_of_an_image_can_pull_it(command: tuple[str, ...]) -> None:
    shown = run_gamebox(*command, "--help", env={**os.environ, "COLUMNS": "200"}).stdout
    assert "--pull" in shown
    if command in (("run",), ("shell",)):
        for words in ("--disk", "--user", "root-on-request", "--profile"):
            assert words in shown
