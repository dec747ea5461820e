"""``gamebox agent --model`` through the real litellm against a server of our own."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.programs import run_gamebox

from .model_server import ModelServer, Reply, call, error, text


def agent(tmp_path: Path, replies: list[Reply], *options: str) -> tuple[subprocess.CompletedProcess[str], ModelServer]:
    repo = tmp_path / "repo"
    repo.mkdir()
    (repo / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    with ModelServer(replies) as server:
        environment = {**os.environ, "OPENAI_API_BASE": server.base_url, "OPENAI_API_KEY": "sk-test"}
        command = [
            "agent",
            "fix add",
            "--agent",
            "coding",
            "--repo",
            str(repo),
            "--model",
            "openai/gpt-4o-mini",
        ]
        done = run_gamebox(*command, "--local", *options, env=environment)
    return done, server


EDIT = {"path": "calc.py", "old_text": "a - b", "new_text": "a + b"}


def test_a_model_repairs_and_its_cost_is_told(tmp_path: Path) -> None:
    replies = [
        error(500, "busy"),
        call("edit", EDIT, content="The sign is wrong."),
        text("Done."),
        call("finish", {"summary": "Fixed the sign."}),
    ]
    done, server = agent(tmp_path, replies, "--json", "--apply", "--max-cost", "1")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["status"], told["applied"]) == ("finished", True)
    usage = told["usage"]
    assert (usage["calls"], usage["failed_calls"], usage["input_tokens"]) == (4, 1, 300)
    assert usage["cost_usd"] > 0
    assert "The sign is wrong." in done.stderr
    assert re.search(r"openai/gpt-4o-mini: InternalServerError; trying again in \d+ s \(attempt 2 of 6\)", done.stderr)
    assert "4 model calls (1 failed), 300 + 60 tokens, $0.0" in done.stderr
    system = server.requests[0]["messages"][0]["content"]
    assert "Reproduce. Show the bug" in system
    assert (tmp_path / "repo/calc.py").read_text() == "def add(a, b):\n    return a + b\n"


@pytest.mark.parametrize(
    ("reply", "code", "said"),
    [
        (error(401, "Incorrect API key provided", code="invalid_api_key"), 2, "OPENAI_API_KEY"),
        (error(404, "no such model"), 1, "model_rejected_request"),
    ],
)
def test_a_model_that_refuses_is_told_without_a_traceback(tmp_path: Path, reply: Reply, code: int, said: str) -> None:
    done, server = agent(tmp_path, [reply] * 3)
    assert done.returncode == code
    assert len(server.requests) == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_fallback_answers_with_the_options_and_the_log_says_which_model_it_was(tmp_path: Path) -> None:
    log = tmp_path / "runs.db"
    replies = [error(404, "no such model"), call("finish", {"summary": "done"})]
    options = ["--fallback", "openai/gpt-4.1-mini", "--model-option", "temperature=0", "--log", str(log), "--json"]
    done, server = agent(tmp_path, replies, *options)
    assert done.returncode == 0, done.stderr
    assert [(r["model"], r["temperature"]) for r in server.requests] == [("gpt-4o-mini", 0), ("gpt-4.1-mini", 0)]
    assert "openai/gpt-4o-mini failed (model_rejected_request); asking openai/gpt-4.1-mini" in done.stderr
    shown = run_gamebox("runs", "show", "last", "--log", str(log), "--json")
    assert '"model": "openai/gpt-4.1-mini"' in shown.stdout


def test_a_key_is_no_option_of_a_model(tmp_path: Path) -> None:
    done, server = agent(tmp_path, [], "--model-option", "api_key=sk-1")
    assert done.returncode != 0
    assert "environment variable" in done.stderr
    assert not server.requests
