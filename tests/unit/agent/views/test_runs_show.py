"""What ``gamebox runs show`` tells of a run: all that a person wants to know of it, in lines that fit the terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.replay import stored
from agent.record import events as ev
from agent.record.call_summary import summarize_args
from agent.record.store import EventLog
from agent.tools import standard_registry
from agent.views.runs_show import show_run
from sandbox.operations import RunResult
from sandbox.text.wrapping import columns, wrap

WIDE = "漢字" * 60
USAGE = {"calls": 1, "input_tokens": 120, "output_tokens": 33, "cost_usd": 0.0123}


def done(**result: Any) -> dict[str, Any]:
    return {
        "tool_executed": True, "result": result, "timestamp": "2026-01-01T00:00:00.000+00:00", "duration_ms": 1.0, "notices": [],
    }  # fmt: skip


def ran(**more: Any) -> dict[str, Any]:
    return RunResult(id="c1", **{"exit_code": 0, **more}).model_dump(mode="json")


def failed(code: str, error: str, **more: Any) -> dict[str, Any]:
    return {
        **done(), "tool_executed": False, "code": code, "error": error, "hint": "Try another.", "effects": "none", "result": None,
        "retryable": False, "next_tool": None, **more,
    }  # fmt: skip


def a_step(number: int, tool: str | None, args: Any, envelope: Mapping[str, Any] | None, thought: str = "") -> list[ev.Event]:
    reply = stored({"thought": thought, "tool": tool, "args": args})
    events: list[ev.Event] = [
        ev.StepBegan(step=number),
        ev.ActionDecided(step=number, reply=reply, tool=tool, args=args, usage=USAGE),
    ]
    if envelope is not None:
        events.append(ev.ActionStarted(step=number, tool=tool or "", args=args, request_id=f"r-{number}"))
        events.append(ev.ActionExecuted(step=number, envelope=envelope, seconds=1.5))
        events.append(ev.StepEnded(step=number, seconds=2.5))
    return events


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A run with everything: each kind of end of a command, approvals, words of the user, parts of parts, a resumption."""
    path = tmp_path / "runs.db"
    notice = {"code": "network_refused", "message": "example.com was refused.", "hint": "Do without it."}
    asked: Any = {"risk": "high", "reasons": ("deletes outside of the workspace",)}
    with EventLog(path) as events:

        def add(*more: ev.Event) -> None:
            events.append("top", more)

        add(ev.RunBegan(task=f"mend it {WIDE}", agent="manager", options={"model": "provider/name"}))
        add(ev.MessageAdded(message={"role": "user", "content": "mend it"}))
        seen = {**done(**ran(exit_code=2, output="1 failed\n")), "notices": [notice]}
        add(*a_step(1, "run", {"command": "make test"}, seen, WIDE))
        add(ev.UserSpoke(text="mind the tests"))
        add(*a_step(2, "run", {"command": "crash"}, done(**ran(exit_code=None, signal="SIGSEGV", output="x" * 3000))))
        timeout = failed("timeout", "It ran longer than 3 s and was ended.", result=ran(exit_code=None, signal="SIGKILL"))
        add(*a_step(3, "run", {"command": "sleep 9", "timeout_seconds": 3}, timeout))
        add(ev.RunEnded(status="paused", reason="The run was interrupted."))
        add(ev.RunResumed(fresh=True, notes=({"role": "user", "content": "look again", "source": "user"},)))
        add(*a_step(4, "run", {"command": "rm -r /"}, None))
        add(ev.ApprovalRequested(step=4, tool="run", args={"command": "rm -r /"}, **asked))
        add(ev.ApprovalAnswered(step=4, tool="run", verdict="edit", risk="high", args={"command": "ls"}, for_session=True))
        add(ev.ActionExecuted(step=4, envelope=done(**ran(output="a.py\n"))), ev.StepEnded(step=4, seconds=1.0))
        add(*a_step(5, "run", {"command": "curl example.com"}, None))
        add(ev.ApprovalRequested(step=5, tool="run", args={}, **asked))
        add(ev.ApprovalAnswered(step=5, tool="run", verdict="reject", reason="never that", risk="high"))
        add(ev.ActionExecuted(step=5, envelope=failed("approval_refused", "run was not approved: never that")))
        add(ev.MessageAdded(message={"role": "user", "content": "You go in circles."}), ev.StepEnded(step=5))
        add(ev.StepBegan(step=6))
        add(ev.ActionDecided(step=6, reply=stored(""), tool="delegate", args={"agent": "coder", "inputs": {"task": "a part"}}))
        add(ev.ActionStarted(step=6, tool="delegate", args={}))
        events.append("child", [ev.RunBegan(task="a part", agent="coder")], "top")
        events.append("child", a_step(1, "read", {"path": "a.py"}, failed("path_not_found", "'a.py' does not exist.")))
        events.append("grandchild", [ev.RunBegan(task="a part of a part", agent="verifier")], "child")
        events.append("child", [ev.RunEnded(status="rejected", reason="no")])
        ended = failed("delegate_not_finished", "coder did not finish", result={"run_id": "child", "status": "rejected"})
        add(ev.ActionExecuted(step=6, envelope=ended), ev.StepEnded(step=6))
        add(*a_step(7, "finish", {"summary": "done"}, None))
    return path


def test_all_that_happened_is_shown_on_80_columns(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show_run("top", log, as_json=False) == 0
    shown = capsys.readouterr().out
    assert max(map(columns, shown.split("\n"))) <= 80
    order = [
        "top  cut off  mend it", "agent manager, model provider/name", "[1] 2.5 s, 1 model call, 120 + 33 tokens, $0.0123",
        "→ run make test", "1 failed", "[exit code 2]", "NOTICE network_refused", "the user said: mind the tests", "→ run crash",
        "SIGSEGV", "→ run sleep 9 timeout_seconds=3", "ERROR timeout", "the run stopped here (paused): The run was interrupted.",
        "resumed in a new sandbox; the user said: look again", "→ run rm -r /",
        "approval asked for: risk high, deletes outside of the workspace",
        'approved with other arguments, for the session up to risk high: {"command":', "a.py", "rejected: never that",
        "ERROR approval_refused", "message to the agent: You go in circles.", '→ delegate agent="coder" inputs={"task": "a part"}',
        "    │ child  rejected  a part", "    │   → read a.py", "    │     │ grandchild  cut off  a part of a part",
        "ERROR delegate_not_finished", "→ finish", "it was not carried out", "7 steps", "resumed 1 time",
    ]  # fmt: skip
    at = 0
    flat = shown.replace("\n", " ").replace("  ", " ")
    for expected in order:
        found = shown.find(expected, at)
        assert found >= 0 or expected in flat, (expected, shown[at : at + 600])
        at = max(found, at)


def test_json_holds_all(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_run("top", log, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert (told["status"], told["model"], told["resumed"]) == ("cut off", "provider/name", 1)
    assert [m["kind"] for m in told["moments"]] == [
        "UserSpoke", "RunEnded", "RunResumed", "ApprovalRequested", "ApprovalAnswered", "ApprovalRequested", "ApprovalAnswered",
        "MessageAdded",
    ]  # fmt: skip
    assert told["moments"][0]["step"] == 1
    steps = told["steps"]
    assert steps[0]["thought"] == WIDE
    assert steps[0]["envelope"]["notices"][0]["code"] == "network_refused"
    assert steps[0]["request_id"] == "r-1"
    assert len(steps[1]["envelope"]["result"]["output"]) == 3000
    assert steps[3]["approval_answered"]["args"] == {"command": "ls"}
    assert (steps[5]["parts"], steps[6]["started"]) == (["child"], False)
    (child,) = told["parts"]
    assert (child["run"], child["steps"][0]["envelope"]["code"]) == ("child", "path_not_found")
    assert child["parts"][0]["run"] == "grandchild"


def test_a_part_that_cannot_be_read_does_not_hide_the_rest(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with EventLog(log) as events:
        events._database.execute("DROP TRIGGER events_stay_as_they_are")
        events._database.execute("UPDATE events SET kind = 'Nonsense' WHERE run = 'child' AND id = 2")
    show_run("top", log, as_json=False)
    shown = " ".join(capsys.readouterr().out.split())
    assert "a part of it cannot be read: Event 2 of the run child cannot be read" in shown
    assert "the user said: mind the tests" in shown


@given(st.text(), st.integers(12, 100), st.text("ab ", max_size=4), st.text("ab ", max_size=6))
def test_wrapping_leaves_nothing_out_and_keeps_to_the_width(text: str, width: int, first: str, rest: str) -> None:
    lines = wrap(text, width, first, rest).split("\n")
    most = max(width, max(columns(first), columns(rest)) + 10)
    assert all(columns(line) <= most for line in lines)
    kept = "".join(line[len(first if number == 0 else rest) :] for number, line in enumerate(lines))
    assert "".join(kept.split()) == "".join(text.split())


@pytest.mark.parametrize(
    ("tool", "args", "shown"),
    [
        ("run", {"timeout_seconds": 3, "command": "make"}, "make timeout_seconds=3"),
        ("edit", {"old_text": "a", "path": "a.py", "new_text": "b"}, 'a.py old_text="a" new_text="b"'),
        ("finish", {"summary": "done"}, "done"),
        ("search", {"path": "src", "pattern": "x"}, 'x path="src"'),
    ],
)
def test_the_main_argument_is_the_one_that_the_action_declares_first(tool: str, args: dict[str, Any], shown: str) -> None:
    action = standard_registry().get_action(tool)
    assert action is not None
    assert summarize_args(args, action.parameters) == shown


def test_every_action_of_the_hub_shows_its_arguments_in_the_live_view() -> None:
    """Whatever the actions are called, and their arguments: nothing that was given is not to be seen."""
    schema = {"type": "object", "properties": {"question": {"type": "string"}, "n": {"type": "integer"}}, "required": ["question"]}
    assert summarize_args({"n": 3, "question": "why?"}, schema) == "why? n=3"
    assert summarize_args({"code": "x = 1\ny = 2"}) == "x = 1\n      y = 2"
    assert summarize_args({"goal": "g", "parent": "0"}) == 'goal="g" parent="0"'
    assert summarize_args({"odd": 1}, {"properties": None, "required": 7}) == "1"
    assert (summarize_args({}), summarize_args(None), summarize_args("text")) == ("", "", "text")
    assert len(summarize_args({f"a{n}": "x" * 500 for n in range(50)})) < 300
