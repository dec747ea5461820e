"""The whole way in a real container: the agent command, the demo, and what Ctrl-C leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

import docker
import pytest

from tests.programs import run_gamebox

pytestmark = pytest.mark.engine
GAMEBOX = [sys.executable, "-c", "from agent.cli.app import main; main()"]


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo/calc.py").write_text("def add(a, b):\n    return a - b\n")
    (tmp_path / "repo/link.py").symlink_to("calc.py")
    return tmp_path / "repo"


def scripted(tmp_path: Path, *steps: Mapping[str, object]) -> str:
    file = tmp_path / "script.json"
    file.write_text(json.dumps(steps))
    return str(file)


def run(command: str) -> Mapping[str, object]:
    return {"tool": "run", "args": {"command": command}}


FINISH = {"tool": "finish", "args": {"summary": "done"}}


def test_an_agent_repairs_a_repository(repo: Path, tmp_path: Path) -> None:
    edit = {"tool": "edit", "args": {"path": "calc.py", "old_text": "a - b", "new_text": "a + b"}}
    steps = scripted(tmp_path, edit, run("python3 -c 'import calc; print(calc.add(2, 3))'; id -u"), FINISH)
    done = run_gamebox("agent", "fix add", "--agent", "coding", "--repo", str(repo), "--script", steps, "--apply", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["steps"][1]["envelope"]["result"]["output"] == "5\n1000\n"
    assert told["changes"] == [{"path": "calc.py", "kind": "modified"}]
    assert (repo / "calc.py").read_text() == "def add(a, b):\n    return a + b\n"
    assert (repo / "link.py").is_symlink()
    assert not (repo / "__pycache__").exists()


def test_an_agent_that_does_harm_harms_nobody(repo: Path, tmp_path: Path) -> None:
    """It wipes, floods, forks, fills memory, looks for secrets and a way out; it is told each time, and the run goes on."""
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    harm = {
        f"cat {secret}; ls {tmp_path}": "No such file",
        "cat /etc/shadow": "ermission denied",
        "touch /usr/bin/mine": "ead-only file system",
        "python3 -c 'import socket; socket.create_connection((\"192.0.2.1\", 80), 3)'": "unreachable",
        "kill -9 1 && echo killed": "",
        "python3 -c 'x = bytearray(9 << 30)' || echo refused": "refused",
        "rm -rf /workspace/* ~/.[a-z]* / 2>/dev/null; ls": "",
    }
    timed = {"tool": "run", "args": {"command": "f() { f | f & }; f; wait; sleep 60", "timeout_seconds": 1}}
    write = {"tool": "write", "args": {"path": "../../etc/cron.d/mine", "content": "x"}}
    steps = scripted(tmp_path, *[run(command) for command in harm], timed, write, FINISH)
    done = run_gamebox("agent", "harm", "--agent", "coding", "--repo", str(repo), "--script", steps, "--json", "--memory", "512m")
    assert done.returncode == 0, done.stderr
    envelopes = [step["envelope"] for step in json.loads(done.stdout)["steps"]]
    for (what, said), envelope in zip(harm.items(), envelopes, strict=False):
        assert envelope["tool_executed"] is True, (what, envelope)
        assert said in envelope["result"]["output"], (what, envelope)
    assert "killed" not in envelopes[4]["result"]["output"]
    assert "of the host" not in done.stdout
    assert envelopes[len(harm)]["code"] in ("timeout", "too_many_processes")
    assert envelopes[len(harm) + 1]["code"] == "path_outside_roots"
    assert (repo / "calc.py").read_text() == "def add(a, b):\n    return a - b\n"
    assert not Path("/etc/cron.d/mine").exists()


def test_an_agent_answers_a_program_that_asks(repo: Path, tmp_path: Path) -> None:
    """A model has every argument that it takes: to start it, to look at it, to answer it and to work beside it."""
    asks = {"command": "read -p 'name? ' x; echo hello $x; read", "wait_seconds": 1, "pty": True, "session": "talk"}
    steps = scripted(
        tmp_path,
        {"tool": "run", "args": {**asks, "rows": 10, "cols": 60}},
        {"tool": "run", "args": {"command": "echo beside", "session": None}},
        {"tool": "send", "args": {"id": "c2", "wait_seconds": 30}},  # until it asks
        {"tool": "send", "args": {"id": "c2", "text": "Ann\n", "wait_seconds": 30}},
        {"tool": "screen", "args": {"id": "c2"}},
        {"tool": "kill", "args": {"id": "c2"}},
        FINISH,
    )
    done = run_gamebox("agent", "talk", "--agent", "coding", "--repo", str(repo), "--script", steps, "--json")
    assert done.returncode == 0, done.stderr
    envelopes = [step["envelope"] for step in json.loads(done.stdout)["steps"]]
    assert all(envelope["tool_executed"] for envelope in envelopes), envelopes
    asked, beside, waited, answered, shown = (envelope["result"] for envelope in envelopes[:5])
    assert (asked["id"], asked["running"], asked["output"] + waited["output"]) == ("c2", True, "name? ")
    assert beside["output"] == "beside\n"
    assert "hello Ann" in answered["output"]
    assert "hello Ann" in shown["text"]


def test_the_demo_finds_and_proves_the_fix() -> None:
    done = run_gamebox("demo")
    assert done.returncode == 0, done.stderr
    assert "diff --git" in done.stdout
    assert done.stderr.rstrip().endswith("[exit code 0]")
    assert done.stderr.count("check after the run") == 2


def containers_with(mark: str) -> list[str]:
    """Ids of the containers that carry our mark in their workspace; a sandbox that is just going is none."""
    client = docker.from_env()
    try:
        found = []
        for container in client.containers.list(ignore_removed=True):
            try:
                if mark in str(container.top(ps_args="-eo pid,args")):
                    found.append(str(container.id))
            except docker.errors.APIError:
                continue
        return found
    finally:
        client.close()


def wait_for_start(mark: str) -> None:
    deadline = time.monotonic() + 120
    while not containers_with(mark):
        assert time.monotonic() < deadline, "the command did not start"
        time.sleep(0.1)


@pytest.mark.parametrize(
    "signals", [[signal.SIGINT], [signal.SIGINT, signal.SIGINT], [signal.SIGTERM], [signal.SIGHUP], [signal.SIGKILL]]
)
def test_an_interrupted_agent_without_a_log_leaves_no_container(repo: Path, tmp_path: Path, signals: list[signal.Signals]) -> None:
    mark = uuid.uuid4().hex
    steps = scripted(tmp_path, run(f"sh -c 'sleep 300; : {mark}'"), FINISH)
    command = [*GAMEBOX, "agent", "wait", "--agent", "coding", "--repo", str(repo), "--script", steps, "--apply", "--no-log"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_for_start(mark)
            for number in signals:
                os.kill(process.pid, number)
                time.sleep(0.02)
            out, err = process.communicate(timeout=90)
        finally:
            process.kill()
    if signals != [signal.SIGKILL]:
        assert process.returncode == 130, err
        assert "Traceback" not in err
        assert out == ""
    deadline = time.monotonic() + 120
    while containers_with(mark) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert containers_with(mark) == []


def test_the_workspace_is_a_git_repository_with_and_without_its_history(repo: Path, tmp_path: Path) -> None:
    """``git status``, ``git diff`` and builds that ask git for a version failed in the sandbox."""
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com", "-C", str(repo)]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"], ["tag", "v1"]):
        subprocess.run([*git, *command], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout
    asked = run("git status --short; git log --format=%s; git describe --tags --always; git rev-parse HEAD")
    commit = run("echo '# more' >> calc.py && git commit -qam second && git log --oneline | wc -l")
    steps = scripted(tmp_path, asked, commit, FINISH)
    command = [*GAMEBOX, "agent", "look", "--repo", str(repo), "--script", steps, "--apply", "--json", "--no-log"]
    for options, first in (([], "The files that were copied into the sandbox"), (["--history"], "first\nv1\n" + head)):
        subprocess.run([*git, "checkout", "-q", "calc.py"], check=True)
        done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert told["steps"][0]["envelope"]["result"]["output"].startswith(first)
        assert not [n for n in told["steps"][0]["envelope"]["notices"] if n["code"] == "files_changed"]
        assert told["steps"][1]["envelope"]["result"]["output"] == "2\n"
        assert [change["path"] for change in told["changes"]] == ["calc.py"]
        assert subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout == head
