"""The commands on recorded runs, as a person uses them: pausing, resuming, a sandbox that is gone, and what is left."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.job.new_agent import write_agent
from agent.record.store import EventLog, RunRecord, record_of, verify
from sandbox.docker.engine.client import connect
from sandbox.docker.kept.inventory import remove, sandboxes
from tests.programs import run_gamebox
from tests.scripted_runs import coding, left_of

from .model_server import ModelServer, Reply, call, error
from .test_agent_in_docker import containers_with, wait_for_start

GAMEBOX = [sys.executable, "-c", "from agent.cli.app import main; main()"]
FINISH = {"tool": "finish", "args": {"summary": "all done"}}


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def gamebox(*args: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = run_gamebox(*args)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert "\nTraceback" not in f"\n{done.stderr}"  # one of a cell that raised is shown further in
    return done


def script(tmp_path: Path, *steps: Any) -> str:
    file = tmp_path / f"{uuid.uuid4().hex}.json"
    file.write_text(json.dumps(steps))
    return str(file)


def run(command: str) -> dict[str, Any]:
    return {"tool": "run", "args": {"command": command}}


def started(log: Path, command: list[str], until: Callable[[RunRecord], bool]) -> subprocess.Popen[str]:
    """The command in a process of its own, once its run has come so far."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not far_enough(log, until):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    return process


def far_enough(log: Path, until: Callable[[RunRecord], bool]) -> bool:
    if not log.exists():
        return False
    with EventLog(log) as events:
        return bool(events.runs()) and until(record_of(events, events.runs()[0]))


def second_is_started(record: RunRecord) -> bool:
    return len(record.steps) == 2 and record.steps[1].started is not None


def slow(mark: str) -> dict[str, Any]:
    """A command that sleeps until ``wake`` is called with its mark, or for 20 s. A process of it has the mark in its arguments."""
    parted = f"{mark[:9]}''{mark[9:]}"  # the outer shell, which has all of the command in its arguments, does not have the mark
    return run(f"echo begun >> a.txt; timeout 20 sh -c 'until [ -e /tmp/{parted} ]; do sleep 0.1; done'; echo slept >> a.txt")


def wake(mark: str) -> None:
    (container,) = containers_with(mark)
    assert connect().containers.get(container).exec_run(["touch", f"/tmp/{mark}"]).exit_code == 0


@pytest.mark.engine
@pytest.mark.usefixtures("_no_sandbox_is_left")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_paused_or_killed_and_resumed(repo: Path, tmp_path: Path, log: Path, number: signal.Signals) -> None:
    """The diff is that of all. A command goes on in the sandbox when its orchestrator is killed, and its answer is found; one
    that was interrupted was cancelled, which is its answer.
    """
    whole = number == signal.SIGKILL
    mark = uuid.uuid4().hex
    steps = script(tmp_path, run("echo two >> a.txt"), slow(mark), run("cat a.txt"), FINISH)
    command = [*GAMEBOX, "agent", "count", "--agent", "coding", "--repo", str(repo), "--script", steps]
    with started(log, command, second_is_started) as process:
        wait_for_start(mark)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    if whole:
        wake(mark)
    assert out == ""
    assert process.returncode == (-9 if number == signal.SIGKILL else 130), err
    listed = json.loads(gamebox("runs", "ls", "--json").stdout)
    assert [each["status"] for each in listed] == ["cut off" if number == signal.SIGKILL else "paused"]
    ident = listed[0]["run"]
    if number != signal.SIGKILL:
        assert f"gamebox runs resume {ident}" in err
    assert len(left_of(log)) == 1
    assert "2:" not in gamebox("runs", "verify", ident).stdout
    done = gamebox("runs", "resume", "last", "--say", "go on", "--apply")
    expected = ["one", "two", "begun", *(["slept"] if whole else [])]
    assert [line[1:] for line in done.stdout.splitlines() if line[:1] in " +" and line[:3] != "+++"] == expected
    assert (repo / "a.txt").read_text().split() == expected
    shown = json.loads(gamebox("runs", "show", ident, "--json").stdout)
    assert (shown["status"], shown["resumed"], len(shown["steps"])) == ("finished", 1, 4)
    assert shown["steps"][1]["envelope"].get("code") == (None if whole else "cancelled")
    assert shown["steps"][2]["envelope"]["result"]["output"].split() == expected
    assert list((log.parent / "runs.db.files").iterdir()) == []
    assert "run_not_resumable" in gamebox("runs", "resume", ident, code=2).stderr
    with EventLog(log) as events:
        assert verify(events, ident).ended


BOSS = """---
name: boss
description: Hands work on.
actions: [run, delegate, finish]
kit_options: {delegate: {agents: [worker]}}
inputs: {type: object, properties: {task: {type: string}}, required: [task]}
---
Have it done.
"""
WORKER = BOSS.replace("boss", "worker").replace("delegate, ", "").replace("kit_options: {delegate: {agents: [worker]}}\n", "")


@pytest.mark.engine
@pytest.mark.usefixtures("_no_sandbox_is_left")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_delegated_agent_is_paused_or_killed_with_the_run_and_taken_up(
    repo: Path, tmp_path: Path, log: Path, number: signal.Signals
) -> None:
    """One script for all agents: resumed, each reply is used once, and each command is carried out once."""
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents/boss.md").write_text(BOSS)
    (tmp_path / "agents/worker.md").write_text(WORKER)
    mark = uuid.uuid4().hex
    hand_on = {"tool": "delegate", "args": {"agent": "worker", "inputs": {"task": "x"}}}
    steps = script(tmp_path, run("echo two >> a.txt"), hand_on, run("export A=three"), slow(mark), run("echo $A >> a.txt"), FINISH,
                   run("echo four >> a.txt"), FINISH)  # fmt: skip
    command = [*GAMEBOX, "agent", "count", "--agents", str(tmp_path / "agents"), "--agent", "boss", "--repo", str(repo)]

    def at_work_below(record: RunRecord) -> bool:
        with EventLog(log) as events:
            return any(second_is_started(record_of(events, child)) for child in record.children)

    with started(log, [*command, "--script", steps], at_work_below) as process:
        wait_for_start(mark)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    whole = number == signal.SIGKILL
    if whole:
        wake(mark)
    assert (out, process.returncode) == ("", -9 if number == signal.SIGKILL else 130), err
    with EventLog(log) as events:
        (ident,) = events.runs()
        (child,) = events.children(ident)
        ended = {record_of(events, each).status for each in (ident, child)}
        assert ended == {None if number == signal.SIGKILL else "paused"}
    gamebox("runs", "resume", "last", "--apply")
    assert (repo / "a.txt").read_text().split() == ["one", "two", "begun", *(["slept"] if whole else []), "three", "four"]
    with EventLog(log) as events:
        assert events.children(ident) == [child]
        assert [len(record_of(events, each).steps) for each in (ident, child)] == [4, 4]
        assert all(verify(events, each).intact for each in (ident, child))


@pytest.mark.engine
@pytest.mark.usefixtures("_no_sandbox_is_left")
def test_a_sandbox_that_is_gone(repo: Path, tmp_path: Path, log: Path) -> None:
    """It is said, with what can be done; in a new one the agent is told, and its steps and limits go on."""
    steps = script(tmp_path, run("echo two >> a.txt"), run("sleep 60"), run("cat a.txt"), FINISH)
    command = [
        *GAMEBOX,
        "agent",
        "count",
        "--agent",
        "coding",
        "--repo",
        str(repo),
        "--script",
        steps,
        "--max-iterations",
        "4",
    ]
    with started(log, command, second_is_started) as process:
        gone = gamebox("runs", "resume", "last", code=2).stderr
        assert "run_in_use" in gone
        assert "run_in_use" in gamebox("runs", "rm", "last", code=2).stderr
        process.kill()
        process.communicate()
    refused = gamebox("runs", "resume", "last", "--fresh", code=2).stderr
    assert "still there" in refused
    for each in left_of(log):
        remove(each, force=True)
    refused = gamebox("runs", "resume", "last", code=2).stderr
    assert "run_not_resumable" in refused
    assert "--fresh" in refused
    (repo / "a.txt").write_text("anew\n")
    told = json.loads(gamebox("runs", "resume", "last", "--fresh", "--json").stdout)
    assert (told["status"], told["changes"], told["resumable"]) == ("finished", [], False)
    assert told["steps"][0]["envelope"]["code"] == "effects_unknown"
    assert told["steps"][1]["envelope"]["result"]["output"] == "anew\n"
    with EventLog(log) as events:
        record = record_of(events, told["run"])
    assert [step.number for step in record.steps] == [1, 2, 3, 4]
    assert sum("new sandbox" in str(m["content"]) for m in record.messages if m["role"] == "user") == 1


def by_model(monkeypatch: pytest.MonkeyPatch, replies: list[Reply], *args: str, code: int = 0) -> str:
    """The command with a model that gives these replies; what it said on standard error."""
    with ModelServer(replies) as server:
        monkeypatch.setenv("OPENAI_API_BASE", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        return gamebox(*args, code=code).stderr


@pytest.mark.engine
@pytest.mark.usefixtures("_no_sandbox_is_left")
def test_a_run_whose_model_failed_goes_on_in_its_sandbox(
    repo: Path, tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key was wrong, say: what was done is not lost, and is not told as lost."""
    command = ["agent", "count", "--agent", "coding", "--repo", str(repo), "--model", "openai/gpt-4o-mini"]
    wrong_key = error(401, "Incorrect API key provided", code="invalid_api_key")
    err = by_model(monkeypatch, [call("run", {"command": "echo two >> a.txt"}), wrong_key], *command, code=2)
    with EventLog(log) as events:
        (ident,) = events.runs()
        assert record_of(events, ident).status == "model_failed"
    assert f"the sandbox waits for 60 minutes; continue with: gamebox runs resume {ident}" in err
    assert "1 file changed" in err
    assert len(left_of(log)) == 1
    err = by_model(monkeypatch, [error(404, "no such model")], "runs", "resume", "last", code=1)
    assert f"gamebox runs resume {ident}" in err
    assert f"the agent reads it after gamebox runs resume {ident}" in gamebox("runs", "say", "last", "count further").stderr
    rest = [call("run", {"command": "echo three >> a.txt"}), call("finish", {"summary": "counted"})]
    by_model(monkeypatch, rest, "runs", "resume", "last", "--apply")
    assert (repo / "a.txt").read_text() == "one\ntwo\nthree\n"
    with EventLog(log) as events:
        record = record_of(events, ident)
        assert [step.tool for step in record.steps if step.tool] == ["run", "run", "finish"]
        assert [m["content"] for m in record.messages if "count further" in str(m["content"])] != []
    assert left_of(log) == []


@pytest.mark.engine
@pytest.mark.usefixtures("_no_sandbox_is_left")
def test_a_failed_run_is_removed_with_its_sandbox(
    repo: Path, tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["agent", "count", "--agent", "coding", "--repo", str(repo), "--model", "openai/gpt-4o-mini"]
    by_model(monkeypatch, [error(404, "no such model")], *command, code=1)
    assert len(left_of(log)) == 1
    (each,) = left_of(log)
    remove(each, force=True)
    gone = gamebox("runs", "resume", "last", code=2).stderr
    assert "the run ended (model_failed), and it was removed then, or after" in gone
    by_model(monkeypatch, [error(404, "no such model")], "runs", "resume", "last", "--fresh", code=1)
    (each,) = left_of(log)
    gamebox("runs", "rm", "last")
    assert each.id not in {found.id for found in sandboxes(connect(), every=True)}


@pytest.mark.engine
@pytest.mark.usefixtures("_no_sandbox_is_left")
def test_more_steps_for_a_run_that_took_all(repo: Path, tmp_path: Path, log: Path) -> None:
    """Its sandbox went with its end, and that is what is said."""
    steps = script(tmp_path, run("true"), FINISH)
    command = ["agent", "x", "--agent", "coding", "--repo", str(repo), "--script", steps, "--max-iterations", "1"]
    gamebox(*command, code=1)
    assert left_of(log) == []
    gone = gamebox("runs", "resume", "last", "--max-iterations", "5", code=2).stderr
    assert "is gone: the run ended (max_iterations), and it was removed then" in gone
    assert "without what the run had changed" in gone
    gamebox("runs", "resume", "last", "--max-iterations", "5", "--fresh")


@pytest.mark.engine
@pytest.mark.usefixtures("_no_sandbox_is_left")
def test_the_sandbox_of_a_finished_run_is_kept_on_request(repo: Path, tmp_path: Path, log: Path) -> None:
    """It is there under the name of its run until it is removed, and the copy of the repository is not kept with it."""
    steps = script(tmp_path, run("echo two >> a.txt"), FINISH)
    done = gamebox("agent", "x", "--agent", "coding", "--repo", str(repo), "--script", steps, "--keep", "--json")
    outcome = json.loads(done.stdout)
    name = f"run-{outcome['run']}"
    assert (outcome["status"], outcome["sandbox"], outcome["resumable"]) == ("finished", name, False)
    assert f"its sandbox {name} is kept until nobody has used it for 60 minutes" in done.stderr
    assert f"look into it: gamebox shell {name}; remove it: gamebox rm {name}" in done.stderr
    assert gamebox("exec", name, "--", "cat", "a.txt").stdout == "one\ntwo\n"
    assert "run_not_resumable" in gamebox("runs", "resume", "last", code=2).stderr
    assert list((log.parent / "runs.db.files").iterdir()) == []
    (each,) = left_of(log)
    gamebox("runs", "rm", "last")
    assert each.id not in {found.id for found in sandboxes(connect(), every=True)}


@pytest.mark.engine
@pytest.mark.usefixtures("_no_sandbox_is_left")
def test_a_run_goes_on_in_the_sandbox_that_was_kept(repo: Path, tmp_path: Path, log: Path) -> None:
    steps = script(tmp_path, run("echo two >> a.txt"), FINISH)
    command = ["agent", "x", "--agent", "coding", "--repo", str(repo), "--script", steps, "--max-iterations", "1"]
    ended = gamebox(*command, "--keep-seconds", "600", code=1)
    assert "is kept until nobody has used it for 10 minutes" in ended.stderr
    outcome = json.loads(gamebox("runs", "resume", "last", "--max-iterations", "5", "--json").stdout)
    assert outcome["changes"] == [{"path": "a.txt", "kind": "modified"}], "what was changed before is still there"
    assert outcome["sandbox"] == f"run-{outcome['run']}"
    gamebox("rm", outcome["sandbox"])
    assert left_of(log) == []


@pytest.mark.engine
@pytest.mark.usefixtures("_no_sandbox_is_left")
def test_a_paused_run_that_is_not_wanted(repo: Path, tmp_path: Path, log: Path) -> None:
    steps = script(tmp_path, run("true"), run("sleep 60"), FINISH)
    with started(
        log, [*GAMEBOX, "agent", "x", "--agent", "coding", "--repo", str(repo), "--script", steps], second_is_started
    ) as process:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    (each,) = left_of(log)
    gamebox("runs", "rm", "last")
    assert each.id not in {found.id for found in sandboxes(connect(), every=True)}
    assert gamebox("runs", "ls", "--json").stdout == "[]\n"
    assert list((log.parent / "runs.db.files").iterdir()) == []


@pytest.mark.engine
@pytest.mark.usefixtures("_no_sandbox_is_left")
@pytest.mark.parametrize("steps", [[run("echo x > new"), FINISH], [run("true")], ["no action"] * 9])
def test_a_run_that_ended_leaves_nothing(repo: Path, tmp_path: Path, log: Path, steps: list[Any]) -> None:
    """However it ended: finished, out of replies, without a valid action."""
    command = ["agent", "x", "--agent", "coding", "--repo", str(repo), "--script", script(tmp_path, *steps)]
    gamebox(*command, code=0 if steps[-1] is FINISH else 1)
    assert left_of(log) == []
    assert list((log.parent / "runs.db.files").iterdir()) == []


@pytest.mark.engine
def test_what_cannot_be_begun_is_recorded_as_failed(repo: Path, tmp_path: Path, log: Path) -> None:
    steps = script(tmp_path, FINISH)
    gamebox(
        "agent", "x", "--agent", "coding", "--repo", str(repo), "--script", steps, "--image", "example.com/none", code=2
    )
    (told,) = json.loads(gamebox("runs", "ls", "--json").stdout)
    assert told["status"] == "failed"
    assert "example.com/none" in told["reason"]
    assert list((log.parent / "runs.db.files").iterdir()) == []


# --- without an engine ------------------------------------------------------------------
@pytest.fixture
def recorded(repo: Path, tmp_path: Path) -> str:
    """The id of a run that finished, without isolation."""
    steps = script(tmp_path, {"thought": "look \x1b[31m", **run("echo two >> a.txt; cat a.txt")}, FINISH)
    done = gamebox(*coding(repo, steps, "count \x1b[2Jthings"), "--json")
    return str(json.loads(done.stdout)["run"])


def test_what_is_shown(recorded: str, log: Path) -> None:
    listed = gamebox("runs", "ls").stdout
    assert listed.splitlines()[0].split() == ["RUN", "BEGAN", "STATUS", "STEPS", "COST", "TASK"]
    assert recorded in listed
    assert "count \\x1b[2Jthings" in listed
    shown = gamebox("runs", "show", recorded[:18]).stdout
    for expected in ("look", "→ run echo two", "one\n    two", "finished: finish ended the run."):
        assert expected in shown
    assert "\x1b" not in listed + shown
    verified = gamebox("runs", "verify")
    assert f"{recorded}  intact" in verified.stdout
    assert "--head" in verified.stderr
    head = verified.stdout.split("head ")[1].split()[0]
    gamebox("runs", "verify", recorded, "--head", head)
    gamebox("runs", "verify", recorded, "--head", f"1:{'0' * 64}", code=1)


@pytest.mark.engine
def test_a_run_that_delegated_leaves_nothing(log: Path) -> None:
    gamebox("agent", "--agent", "dummy", "see whether it works")
    assert list((log.parent / "runs.db.files").iterdir()) == []
    told = json.loads(gamebox("runs", "show", "last", "--json").stdout)
    parts = [part["run"] for part in told["parts"]]
    assert parts
    assert sorted(parts) == sorted(part for step in told["steps"] for part in step["parts"])
    gamebox("runs", "rm", "last")
    assert list((log.parent / "runs.db.files").iterdir()) == []


def test_a_changed_log_is_found(recorded: str, log: Path) -> None:
    import sqlite3

    database = sqlite3.connect(log)
    database.execute("DROP TRIGGER events_stay_as_they_are")
    database.execute("UPDATE events SET at = '2020-01-01' WHERE id = 3")
    database.commit()
    database.close()
    told = gamebox("runs", "verify", code=1).stdout
    assert "CHANGED" in told
    assert "event 3: it was changed" in told


def test_errors_in_words(tmp_path: Path, recorded: str, repo: Path) -> None:
    none = str(tmp_path / "none.db")
    for command in (["ls", "--log", none],):
        assert gamebox("runs", *command).stdout.startswith("RUN")
    assert not Path(none).exists()
    for command, code in (
        (["show", "x", "--log", none], "log_unusable"), (["show", "nonsense"], "run_not_found"),
        (["rm", "nonsense"], "run_not_found"), (["verify", "nonsense"], "run_not_found"),
        (["resume", recorded], "run_not_resumable"),
        (["show", recorded, "--log", str(repo)], "log_unusable"),
    ):  # fmt: skip
        done = gamebox("runs", *command, code=2)
        assert code in done.stderr
        assert "hint: " in done.stderr
    told = json.loads(gamebox("runs", "show", "nonsense", "--json", code=2).stdout)
    assert told["code"] == "run_not_found"


def test_a_log_that_cannot_be_used_stops_a_run_before_it_begins(repo: Path, tmp_path: Path) -> None:
    steps = script(tmp_path, FINISH)
    (tmp_path / "text").write_text("x" * 5000)
    command = coding(repo, steps, "x")
    assert "log_unusable" in gamebox(*command, "--log", str(tmp_path / "text"), code=2).stderr
    gamebox(*command, "--log", str(tmp_path / "text"), "--no-log")


def test_approvals_without_a_terminal_are_rejected(repo: Path, tmp_path: Path) -> None:
    steps = script(tmp_path, run("echo x > made"), FINISH)
    command = [*coding(repo, steps, "x"), "--json", "--approve"]
    told = json.loads(gamebox(*command, "always").stdout)
    assert told["steps"][0]["envelope"]["code"] == "approval_refused"
    assert told["changes"] == []
    assert json.loads(gamebox(*command, "risky").stdout)["changes"] == [{"path": "made", "kind": "added"}]
    assert "invalid_configuration" in gamebox(*command, "sometimes", code=2).stderr


def test_approvals_on_a_terminal(repo: Path, tmp_path: Path) -> None:
    steps = script(tmp_path, run("echo x > made"), run("echo y > more"), FINISH)
    own, theirs = pty.openpty()
    command = [*GAMEBOX, *coding(repo, steps, "x"), "--json", "--approve", "always"]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        os.close(theirs)
        os.write(own, b"a\nr\nnot that\n")
        out, err = process.communicate(timeout=60)
    os.close(own)
    told = json.loads(out)
    assert told["changes"] == [{"path": "made", "kind": "added"}]
    assert "not that" in told["steps"][1]["envelope"]["error"]
    assert "approval needed: run echo x > made" in err


@pytest.mark.engine
@pytest.mark.usefixtures("_no_sandbox_is_left")
def test_a_run_with_a_python_tool_is_resumed_if_this_user_wrote_it(tmp_path: Path, log: Path) -> None:
    """The folder of the tool is an option of the run: another user's log, even if accepted, must not have it imported."""
    _, tools, _ = write_agent("dates", tmp_path)
    imported = tools.with_name("imported")
    tools.write_text(f"open({str(imported)!r}, 'w').close()\n{tools.read_text()}")
    days = {"tool": "days_between", "args": {"first": "2026-02-01", "last": "2026-03-01"}}
    steps = script(tmp_path, days, days, FINISH)
    command = ["agent", "x", "--agent", "dates", "--agents", str(tools.parent), "--script", steps, "--max-iterations", "1"]
    gamebox(*command, code=1)
    imported.unlink()
    resume = ("runs", "resume", "last", "--fresh", "--max-iterations", "5")
    key = log.with_name("runs.key")
    key.rename(tmp_path / "runs.key")
    assert "names Python" in gamebox(*resume, "--yes", code=2).stderr
    gamebox("runs", "show", "last")
    gamebox("runs", "export", "last")
    gamebox("runs", "verify")
    assert not imported.exists()
    (tmp_path / "runs.key").rename(key)
    gamebox(*resume)
    assert imported.exists()
    shown = json.loads(gamebox("runs", "show", "last", "--json").stdout)
    assert [step["envelope"]["result"] for step in shown["steps"][:2]] == [28, 28]
