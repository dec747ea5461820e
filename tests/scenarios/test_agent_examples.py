"""The example agents, run as a reader would run them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import run_gamebox

from .model_server import ModelServer, call

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def example(name: str, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / name), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_file_agent_recovers_from_a_wrong_name() -> None:
    done = example("file_agent.py")
    assert done.returncode == 0, done.stderr
    assert "There is no file 'tide.txt'." in done.stdout
    assert done.stdout.splitlines()[-1] == "harbour.txt and tides.txt mention a neap tide."


def test_research_agent_must_read_what_it_cites() -> None:
    done = example("research_agent.py")
    assert done.returncode == 0, done.stderr
    assert "harbour was not read" in done.stdout
    assert done.stdout.splitlines()[-1].endswith("[tides, harbour]")


@pytest.mark.parametrize("args", [("--local",), pytest.param((), marks=pytest.mark.engine)])
def test_coding_agent_mends_its_own_program(args: tuple[str, ...]) -> None:
    done = example("coding_agent.py", *args)
    assert done.returncode == 0, done.stderr
    assert "AssertionError" in done.stdout
    assert "while number >= value" in done.stdout.split("Ended: finished")[1]


def test_an_example_with_a_real_client(monkeypatch: pytest.MonkeyPatch) -> None:
    with ModelServer([call("list_files", {}), call("finish", {"summary": "three files"})]) as server:
        monkeypatch.setenv("OPENAI_API_BASE", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        done = example("file_agent.py", "--model", "openai/test", "How many files are there?")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "three files"
    assert server.requests[0]["messages"][1]["content"] == "How many files are there?"


@pytest.mark.parametrize("name", ["file_agent.py", "research_agent.py", "coding_agent.py"])
def test_the_self_check_fails_none_of_them(name: str) -> None:
    done = run_gamebox("check", f"{EXAMPLES / name}:make_agent")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fail " not in done.stdout
