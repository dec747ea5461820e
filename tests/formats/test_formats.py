"""Files that an earlier version wrote are read, shown, resumed and exported by this one: they lie at users' sites.

``make_log`` wrote ``log-1.db`` and ``run-1.json`` before replies could have several calls.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent import Agent, AgentRun, Goal, Response, RunStatus, ScriptedModel, ToolCall
from agent.cli.app import main
from agent.cli.trajectory import FORMATS
from agent.hub import AgentSpec, Hub, Setting, build
from agent.record.resume import resume
from agent.record.store import EventLog, record_of, verify_all
from sandbox import LocalEnvironment

HERE = Path(__file__).parent
FINISH = Response("Done.", (ToolCall("finish", '{"summary": "resumed"}', "f"),))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A copy of the log, with the rights that a log has."""
    copy = tmp_path / "runs.db"
    shutil.copyfile(HERE / "log-1.db", copy)
    copy.chmod(0o600)
    return copy


@pytest.fixture
def log(path: Path) -> Iterator[EventLog]:
    with EventLog(path) as opened:
        yield opened


def command(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["runs", *args])
    assert not ended.value.code
    return capsys.readouterr().out


def test_every_event_is_there_and_unchanged(log: EventLog) -> None:
    verdicts = {verdict.run: verdict for verdict in verify_all(log)}
    assert {run: verdict.ended for run, verdict in verdicts.items() if len(run) < 16} == {
        "whole": True, "decided": False, "started": False, "executed": False,
    }  # fmt: skip
    assert len(verdicts) == 5
    assert all(verdict.intact for verdict in verdicts.values())
    assert verdicts["whole"].events > 100


def test_a_run_is_folded_as_it_was(log: EventLog) -> None:
    run = record_of(log, "whole")
    assert (run.status, run.agent, run.task, run.resumed) == ("finished", "manager", "Fix <add> in calc.py.", 1)
    assert run.options == {"model": "provider/name", "agent": "manager"}
    assert run.result == {"summary": "add adds: a + b."}
    assert [step.tool for step in run.steps] == [
        "read", "run", None, "add_task", "edit", "edit", "run", "run", "run", "delegate", "run", "run", "teleport", "think", "run",
        "modify_task", "finish",
    ]  # fmt: skip
    assert [step.number for step in run.steps] == list(range(1, 18))
    assert run.steps[0].thought == "I read the code first.\nThen I fix it."
    assert run.steps[0].reply == Response(run.steps[0].thought, (ToolCall("read", '{"path": "calc.py"}', "id-read"),))
    codes = [step.envelope.get("code") for step in run.steps if step.envelope is not None]
    assert codes == [
        None, None, "unparsable_response", None, None, "text_not_found", None, "approval_refused", None, None, None, "timeout",
        "unknown_tool", None, None, None, None,
    ]  # fmt: skip
    assert (run.usage.calls, round(run.usage.cost_usd, 6), run.usage.input_tokens) == (19, 0.19, 19000)
    assert sum(step.usage.calls for step in run.steps) == 19
    assert len(run.children) == 1
    worker = record_of(log, run.children[0])
    assert (worker.parent, worker.agent, worker.status, len(worker.steps)) == ("whole", "worker", "finished", 2)
    assert run.kits["plan"]
    assert run.condensed is not None
    assert [message["role"] for message in run.messages[:4]] == ["user", "user", "assistant", "tool"]


def test_approvals_and_changes_are_there(log: EventLog) -> None:
    edited, rejected, approved = record_of(log, "whole").steps[6:9]
    assert edited.answered is not None
    assert (edited.answered.verdict, edited.answered.args) == ("edit", {"command": "rm -r build"})
    assert edited.started is not None
    assert edited.started.args == {"command": "rm -r build"}
    assert edited.changed is not None
    assert "deleted file" in edited.changed.patch
    assert rejected.answered is not None
    assert (rejected.answered.verdict, rejected.answered.reason) == ("reject", "no network")
    assert approved.answered is not None
    assert approved.answered.for_session


def test_it_is_shown(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = command(capsys, "show", "whole", "--log", str(path))
    for text in (
        "Fix <add> in calc.py.", "model provider/name", "I read the code first.", "→ run python3 calc.py", "[exit code 0]",
        "Mind the tests, please.", "no network", "→ delegate worker", "│   → run cat tests.txt", "[killed by SIGSEGV]",
        "ERROR timeout", "+    return a + b", "ERROR unknown_tool", "19 model calls", "resumed 1 time",
    ):  # fmt: skip
        assert text in shown, text
    assert "cut off" in command(capsys, "show", "started", "--log", str(path))
    data = json.loads(command(capsys, "show", "whole", "--log", str(path), "--json"))
    assert [step["tool"] for step in data["steps"]][-1] == "finish"
    listed = json.loads(command(capsys, "ls", "--log", str(path), "--json"))
    assert {run["run"]: run["status"] for run in listed} == {
        "whole": "finished", "decided": "cut off", "started": "cut off", "executed": "cut off",
    }  # fmt: skip
    followed = command(capsys, "show", "whole", "--log", str(path), "--follow")
    assert followed.count("\n[") == 17 + 2  # its steps, and those of the worker


@pytest.mark.parametrize("form", FORMATS)
def test_it_is_exported(path: Path, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = command(capsys, "export", "whole", "--log", str(path), "--format", form)
    assert "python3 calc.py" in text
    assert "cat tests.txt" in text


def test_an_export_of_then_is_that_of_now(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Field by field, but for fields that are new."""
    then = json.loads((HERE / "run-1.json").read_text())
    now = json.loads(command(capsys, "export", "whole", "--log", str(path), "--format", "json"))
    again = json.loads(command(capsys, "export", str(HERE / "run-1.json"), "--format", "json"))
    assert _within(then, now) == []
    assert _within(then, again) == []
    assert "no differences" in command(capsys, "diff", "whole", str(HERE / "run-1.json"), "--log", str(path))


def _within(then: Any, now: Any, where: str = "") -> list[str]:
    """Where ``now`` lacks what ``then`` has."""
    if isinstance(then, dict) and isinstance(now, dict):
        return [line for name in then for line in _within(then[name], now.get(name), f"{where}.{name}")]
    if isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        return [
            line
            for n, (one, other) in enumerate(zip(then, now, strict=True))
            for line in _within(one, other, f"{where}[{n}]")
        ]
    return [] if then == now else [f"{where}: {then!r:.80} != {now!r:.80}"]


def going_on(environment: LocalEnvironment) -> Agent:
    """An agent with the parts of the one that made the log."""
    spec = AgentSpec(
        name="manager", description="Fixes.", goals=(Goal("Do it."),), memory="condensing", stuck=None,
        memory_options={"threshold_tokens": 2000},
        actions=("delegate", "run", "read", "write", "edit", "plan", "think", "finish"),
        brain=lambda setting: ScriptedModel([FINISH]),
    )  # fmt: skip
    return build(spec, Setting(environment=environment, hub=Hub([spec])))


def resumed(log: EventLog, run: str, workspace: Path) -> AgentRun:
    with LocalEnvironment(workspace=workspace) as environment, log.begin(run) as writer:
        return resume(going_on(environment), writer, same=False)


@pytest.mark.parametrize(("run", "answer"), [("decided", "none"), ("started", "unknown"), ("executed", None)])
def test_a_run_that_was_cut_off_goes_on(log: EventLog, run: str, answer: str | None, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    done = resumed(log, run, tmp_path / "work")
    assert (done.status, done.result) == (RunStatus.finished, {"summary": "resumed"})
    record = record_of(log, run)
    assert [step.tool for step in record.steps] == ["read", "edit", "finish"]
    envelope = record.steps[1].envelope
    assert envelope is not None
    assert envelope.get("effects" if answer else "code") == answer
    assert record.messages == done.memory.items
    assert all(verdict.intact for verdict in verify_all(log))
