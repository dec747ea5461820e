"""Messages from other processes: each is read once, in order, whatever is killed when."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent import Agent, FunctionCallingLanguage, Goal, Memory, ScriptedModel, standard_registry
from agent.core.run import Step
from agent.layers.inbox import MOST_CHARS, MOST_WAITING, Mailbox, put, waiting
from agent.record.resume import execute_recorded, resume
from agent.record.store import EventLog, record_of
from sandbox.environment.base import Environment

FINISH = {"tool": "finish", "args": {"summary": "done"}}
THINK = {"tool": "think", "args": {"thought": "hm"}}


class Killed(BaseException):
    """Stands for SIGKILL: nothing is done after it."""


def agent_of(brain: Any, mailbox: Mailbox) -> Agent:
    return Agent([Goal("g")], FunctionCallingLanguage(), standard_registry(), brain, Environment(), hooks=[mailbox])


def said(memory: list[dict[str, Any]]) -> list[str]:
    return [message["content"] for message in memory if message.get("source") == "user"]


def test_read_in_order_and_removed(tmp_path: Path) -> None:
    folder, told = tmp_path / "said", list[str]()
    texts = ["first", "second\n", "\u2028third"]
    for text in texts:
        put(folder, text)
    assert [path.stat().st_mode & 0o777 for path in waiting(folder)] == [0o600] * 3
    memory = Memory()
    box = Mailbox(folder, told.append)
    box.before_step(Step(1), memory)
    assert said(memory.items) == texts
    assert len(told) == 3
    assert len(waiting(folder)) == 3  # not removed before it was recorded
    box.after_decision(Step(1), memory)
    assert waiting(folder) == []
    put(folder, "later")
    box.before_step(Step(2), memory)
    assert said(memory.items)[3:] == ["later"]


def test_what_is_half_written_or_no_message_is_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "said"
    put(folder, "whole")
    (folder / ".00000002-0123456789abcdef").write_text("half")
    (folder / "notes.txt").write_text("none")
    memory = Memory()
    Mailbox(folder, lambda told: None).before_step(Step(1), memory)
    assert said(memory.items) == ["whole"]


@pytest.mark.parametrize("make", [
    Path.mkdir, os.mkfifo, lambda path: path.symlink_to(path.parent.parent / "secret"), lambda path: path.symlink_to(path.parent),
])  # fmt: skip
def test_what_is_no_file_is_no_message(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """It holds up no step, and nothing is read that a link leads to."""
    (tmp_path / "secret").write_text("secret")
    folder, told = tmp_path / "said", list[str]()
    put(folder, "first")
    make(folder / "00000001-0123456789abcdef")
    run = agent_of(ScriptedModel([THINK, FINISH]), Mailbox(folder, told.append)).execute("t")
    assert run.ok
    assert said(run.memory.items) == ["first"]
    assert told == ["your message is read before this step"]


def test_bounds(tmp_path: Path) -> None:
    folder = tmp_path / "said"
    for text in ("", " \n", "x" * (MOST_CHARS + 1)):
        with pytest.raises(ValueError, match=r"empty|too long"):
            put(folder, text)
    assert not folder.exists()
    folder.mkdir()
    for number in range(MOST_WAITING):
        (folder / f"{number:08d}-0123456789abcdef").touch()
    with pytest.raises(ValueError, match="already waiting"):
        put(folder, "x")
    (folder / waiting(folder)[0].name).unlink()
    (folder / "00000000-0123456789abcdef").write_bytes(b"y" * 10 * MOST_CHARS)  # not by put
    memory = Memory()
    Mailbox(folder, lambda told: None).before_step(Step(1), memory)
    assert len(said(memory.items)[0]) == MOST_CHARS


def test_too_late_is_told(tmp_path: Path) -> None:
    folder, told = tmp_path / "said", list[str]()

    def brain(prompt: Any) -> Any:
        put(folder, "wait")
        return FINISH

    agent_of(brain, Mailbox(folder, told.append)).execute("t")
    assert told == ["1 message(s) of yours came too late: the run had ended"]


@pytest.mark.exhaustive
@settings(max_examples=25, deadline=None)
@given(
    kill_at=st.integers(0, 3),
    after_removal=st.booleans(),
    before=st.integers(0, 2),
)
def test_killed_at_any_point_each_is_read_once(kill_at: int, after_removal: bool, before: int, tmp_path_factory: Any) -> None:
    """The process dies in a step, before or after the messages it has recorded were removed; what was said is told once."""
    base = tmp_path_factory.mktemp("run")
    folder, texts = base / "said", [f"m{number}" for number in range(before + 1)]
    for text in texts[:before]:
        put(folder, text)

    class Kills(Mailbox):
        def after_decision(self, step: Step, memory: Memory) -> None:
            if after_removal:
                super().after_decision(step, memory)
            if step.number == kill_at:
                raise Killed

    with EventLog(base / "runs.db") as log:
        try:
            execute_recorded(agent_of(ScriptedModel([THINK, THINK, FINISH]), Kills(folder, lambda told: None)), "t", log, run="r")
        except Killed:
            put(folder, texts[-1])
            with log.begin("r") as writer:
                run = resume(agent_of(ScriptedModel([THINK, THINK, FINISH]), Mailbox(folder, lambda told: None)), writer)
            assert said(run.memory.items) == texts
            assert waiting(folder) == []
        record = record_of(log, "r")
        assert sorted(said(record.messages)) == sorted(texts if kill_at in (1, 2, 3) else texts[:before])
