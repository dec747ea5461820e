"""The commands of ``gamebox`` in sandboxes of a service, as a person uses them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.observing import eventually
from tests.integration.own_engine import IMAGE
from tests.integration.test_cli_in_a_sandbox import PATIENCE_SECONDS, shell, until
from tests.programs import run_gamebox
from tests.scripted_runs import coding
from tests.servers.gamebox_service import ServiceProcess

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]
SMALL = ("--image", IMAGE, "--memory", "64m")
Gamebox = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def gamebox(service: ServiceProcess, monkeypatch: pytest.MonkeyPatch) -> Gamebox:
    monkeypatch.setenv("GAMEBOX_URL", service.url)
    monkeypatch.setenv("GAMEBOX_API_KEY", service.key)
    # No engine of this host could be what answers.
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")
    return run_gamebox


def test_run(gamebox: Gamebox, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("hi\n")
    ran = gamebox("run", *SMALL, "--workspace", tmp_path, "-e", "X=1", "--", "sh", "-c", "cat a; echo $X; echo e >&2; exit 7")
    assert (ran.returncode, ran.stdout, ran.stderr) == (7, "hi\n1\n", "e\n")
    read = gamebox("run", *SMALL, "-i", "--", "wc", "-c", input="data\n")
    assert (read.returncode, read.stdout) == (0, "5\n")
    late = gamebox("run", *SMALL, "--timeout", "0.5", "--", "sleep", "60")
    assert (late.returncode, "did not end within" in late.stderr) == (124, True)
    assert gamebox("ls", "--json").stdout == "[]\n"


def test_keep_use_list_remove(gamebox: Gamebox, tmp_path: Path) -> None:
    made = gamebox("run", *SMALL, "--keep", "--name", "work", "--keep-seconds", "120", "--", "sh", "-c", "echo hi > x")
    ident = made.stderr.split("kept: ")[1].split()[0]
    assert len(ident) == 20
    (listed,) = json.loads(gamebox("ls", "--remote", "--json").stdout)
    assert (listed["id"], listed["metadata"], listed["idle_seconds"]) == (ident, {"name": "work"}, 120.0)
    (line,) = [line for line in gamebox("ls").stdout.splitlines() if "work" in line]
    assert line.startswith(ident)
    assert "running, 60 min left" in line
    # A busy machine may put off the look at the files to a later command.
    later = "run", "--in", "work", "--", "sleep", "0.5"
    assert "+ x" in made.stderr or eventually(lambda: "+ x" in gamebox(*later).stderr)
    for known in ("work", ident, ident[:6]):
        used = gamebox("run", "--in", known, "--", "cat", "x")
        assert (used.returncode, used.stdout, used.stderr) == (0, "hi\n", "")
    assert gamebox("exec", "work", "--", "cat", "x").stdout == "hi\n"
    assert gamebox("cp", "work:x", tmp_path / "x").returncode == 0
    assert (tmp_path / "x").read_text() == "hi\n"
    told = json.loads(gamebox("run", "--in", "work", "--json", "--", "true").stdout)
    assert told["sandbox_id"] == ident
    removed = gamebox("rm", "work")
    assert (removed.returncode, removed.stdout) == (0, f"{ident}\n")
    missing = gamebox("rm", "work")
    assert (missing.returncode, "sandbox_not_found" in missing.stderr) == (2, True)


def test_what_has_no_effect_there_is_refused(gamebox: Gamebox) -> None:
    for option in (["--runtime", "runsc"], ["--cache", "x"], ["--service", "a=https://b"], ["--pull"]):
        refused = gamebox("run", *option, "--", "true")
        assert (refused.returncode, f"{option[0]} has no effect in a sandbox of a service" in refused.stderr) == (125, True)
    both = gamebox("run", "--local", "--remote", "--", "true")
    assert (both.returncode, "Leave one of them out" in both.stderr) == (125, True)
    assert gamebox("rm", "--detached").returncode == 2
    assert gamebox("run", "--local", "--", "echo", "here").stdout == "here\n"


def test_an_address_is_needed(gamebox: Gamebox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GAMEBOX_URL")
    for command in (["run", "--remote", "--", "true"], ["ls", "--remote"], ["rm", "--remote", "x"]):
        refused = gamebox(*command)
        assert refused.returncode in (2, 125)
        assert "GAMEBOX_URL" in refused.stderr


def test_an_agent_works_in_one(gamebox: Gamebox, tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    repo.mkdir()
    (repo / "a.txt").write_text("one\n")
    steps = [
        {"tool": "edit", "args": {"path": "a.txt", "old_text": "one", "new_text": "two"}},
        {"tool": "finish", "args": {"summary": "changed"}},
    ]
    (tmp_path / "script.json").write_text(json.dumps(steps))
    done = gamebox(*coding(repo, str(tmp_path / "script.json"))[:-1], "--log", tmp_path / "runs.db", "--keep", *SMALL)
    assert done.returncode == 0, done.stderr
    assert "-one\n+two\n" in done.stdout
    (kept,) = json.loads(gamebox("ls", "--json").stdout)
    assert kept["metadata"]["name"].startswith("run-")
    assert (kept["idle_seconds"], kept["time_to_live_seconds"]) == (3600.0, 3600.0)
    assert gamebox("exec", kept["metadata"]["name"], "--", "cat", "a.txt").stdout == "two\n"
    assert gamebox("rm", kept["id"]).returncode == 0


def test_a_batch_works_in_some(gamebox: Gamebox, tmp_path: Path) -> None:
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo/a.txt").write_text("one\n")
    steps = [
        {"tool": "edit", "args": {"path": "a.txt", "old_text": "one", "new_text": "two"}},
        {"tool": "finish", "args": {"summary": "changed"}},
    ]
    (tmp_path / "script.json").write_text(json.dumps(steps))
    tasks = [
        {"id": name, "task": "mend", "repo": "repo", "script": "script.json", "checks": [f"grep -q {word} a.txt"]}
        for name, word in (("good", "two"), ("bad", "three"))
    ]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    ran = gamebox("batch", tmp_path / "tasks.jsonl", "-o", tmp_path / "out", "--agent", "coding", "-n", "2", *SMALL)
    assert "mean 0.500 of 2" in ran.stdout, ran.stderr
    rewards = {name: json.loads((tmp_path / f"out/{name}/result.json").read_text())["rewards"] for name in ("good", "bad")}
    assert rewards == {"good": {"reward": 1.0}, "bad": {"reward": 0.0}}
    assert gamebox("ls", "--json").stdout == "[]\n"


def test_a_shell(gamebox: Gamebox) -> None:
    ours, process = shell(*SMALL)
    until(ours, b"$ ")
    os.write(ours, b"tty; exit 3\r")
    until(ours, b"/dev/pts/")
    assert process.wait(PATIENCE_SECONDS) == 3
    os.close(ours)
