"""A notice reaches the model, whichever request the guest happened to tell it with (A2)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.core.actions import Action
from agent.tools.sandbox_tools import SandboxAction
from sandbox import LocalEnvironment
from sandbox.environment.base import Environment
from tests.contract.checks import seen_until


@pytest.fixture(scope="module")
def env() -> Iterator[LocalEnvironment]:
    with LocalEnvironment() as environment:
        yield environment


def _describe_until_ended(env: LocalEnvironment) -> None:
    """Describe it until the guest has heard of the end. Each description is a request, and the last one is told of the end."""
    left = seen_until(lambda: env.describe()["left"], lambda seen: "running: no command" in seen)
    assert "running: no command" in left


def _codes(envelope: dict[str, Any]) -> list[str]:
    return [notice["code"] for notice in envelope["notices"]]


def _answer_on_the_end(env: LocalEnvironment, looks: Action) -> list[str]:
    """The codes in the first answer that tells of an end: the guest may hear of it late."""
    return seen_until(lambda: _codes(env.execute_action(looks, {})), lambda codes: "command_ended" in codes)


def _ended(env: LocalEnvironment) -> str:
    """A command in the background that has ended, of which nobody was told: no request was made since."""
    file = Path(env.workspace, "pid")
    file.unlink(missing_ok=True)
    started = env.execute_action(SandboxAction("run"), {"command": "echo $$ > new; mv new pid; exit 3", "background": True})
    until = time.monotonic() + 60
    while not file.exists() or Path(f"/proc/{file.read_text().strip()}").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    time.sleep(0.3)  # in most cases the guest has heard of it then
    return str(started["result"]["id"])


def test_a2_describe_leaves_a_notice_to_the_next_answer(env: LocalEnvironment) -> None:
    _ended(env)
    _describe_until_ended(env)
    answer = env.execute_action(SandboxAction("list"), {})
    assert _codes(answer).count("command_ended") == 1
    assert "command_ended" not in _codes(env.execute_action(SandboxAction("list"), {}))


def test_a2_the_answer_of_a_tool_on_the_host_carries_what_the_prompt_left(env: LocalEnvironment) -> None:
    """The next action after the prompt was ``think``, which asks the guest nothing."""
    ident = _ended(env)
    _describe_until_ended(env)
    answer = env.execute_action(Action("think", lambda: "noted", "Think."), {})
    (message,) = [n["message"] for n in answer["notices"]]
    assert message.startswith(f"The command {ident} (")
    assert message.endswith(") ended with exit code 3.")
    assert "ended with exit code 3" in Action("think", str, "").show(answer)


def test_a2_what_a_tool_on_the_host_was_told_on_its_way_is_not_lost(env: LocalEnvironment) -> None:
    """A tool that reads files by itself drops the envelopes of these reads."""
    _ended(env)
    looks = Action("look", lambda: len(env.list().unwrap().entries), "Look.")
    assert _answer_on_the_end(env, looks).count("command_ended") == 1


def test_a2_a_tool_that_passes_the_envelope_on_passes_its_notices_on_once(env: LocalEnvironment) -> None:
    _ended(env)
    looks = Action("look", lambda: env.list(), "Look.")
    assert _answer_on_the_end(env, looks).count("command_ended") == 1
    assert "command_ended" not in _codes(env.execute_action(looks, {}))


def test_an_environment_without_a_guest_owes_nothing() -> None:
    assert Environment().execute_action(Action("think", lambda: "noted", "Think."), {})["notices"] == []
