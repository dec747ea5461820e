"""Make the event log and the export that ``test_formats`` reads: ``python -m tests.formats.make_log FOLDER``.

Run it only to add files of a new version beside the old ones; a checked-in file is never made again.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from agent import Agent, Budget, Goal, Response, ToolCall, Usage
from agent.core.budget import charge
from agent.hub import AgentSpec, Hub, Setting, build
from agent.layers.approvals import Answer, ApprovalPolicy, ApprovalRequest, Approvals
from agent.layers.inbox import Inbox
from agent.record import events as ev
from agent.record.file_changes import ChangesEnvironment
from agent.record.resume import execute_recorded, resume
from agent.record.store import EventLog, tree_of
from agent.views.trajectory.run_file import to_dict
from sandbox import LocalEnvironment

WORKSPACE = Path("/tmp/gamebox-format/workspace")
TASK_INPUT = {
    "type": "object",
    "properties": {"task": {"type": "string"}},
    "required": ["task"],
    "additionalProperties": False,
}
PATCHED = {"path": "calc.py", "old_text": "a - b", "new_text": "a + b"}


class Killed(BaseException):
    """Stands for SIGKILL."""


class MortalLog(EventLog):
    """A log whose process dies behind the first event of ``dies_after``; nothing is written from there on."""

    dies_after: type[ev.Event] | None = None
    dead = False

    def append(self, run: str, events: Sequence[ev.Event], parent: str | None = None) -> int:
        """See the base class."""
        if self.dead:
            raise Killed
        last = super().append(run, events, parent)
        if self.dies_after is not None and any(isinstance(event, self.dies_after) for event in events):
            self.dead = True
            raise Killed
        return last


def call(thought: str, tool: str, /, **args: Any) -> Response:
    """A reply with one native call."""
    return Response(thought, (ToolCall(tool, json.dumps(args), f"id-{tool}"),))


WORKER: list[Any] = [
    '{"thought": "Look at the tests.", "tool": "run", "args": {"command": "cat tests.txt"}}',
    {"thought": "Not there.", "tool": "finish", "args": {"summary": "There are no tests."}},
]
MANAGER: list[Any] = [
    call("I read the code first.\nThen I fix it.", "read", path="calc.py"),
    Response(
        "Two at once.",
        (ToolCall("run", '{"command": "python3 calc.py"}', "c1"), ToolCall("think", '{"thought": "x"}', "c2")),
    ),
    "I do not know which tool to use.",
    call("Plan it.", "add_task", parent="", goal="fix add"),
    call("", "edit", **PATCHED),
    call("", "edit", **PATCHED),
    call("Risky.", "run", command="rm -rf build"),
    call("Never.", "run", command="curl example.com"),
    call("Another one.", "run", command="ls -la"),
    call("Somebody else may look.", "delegate", agent="worker", inputs={"task": "Find the tests."}),
    call("A crash.", "run", command="printf 'half\\r\\033[31mred\\033[0m\\n'; kill -SEGV $$", session=None),
    call("Slow.", "run", command="echo begun; sleep 30", timeout_seconds=0.5, session=None),
    call("No such tool.", "teleport", to="mars"),
    call("Say it.", "think", thought="The memory is long. " * 200),
    call("Much.", "run", command="seq 1 4000"),
    call("Close it.", "modify_task", task_id="0", state="completed"),
    call("Done.", "finish", summary="add adds: a + b."),
]


def needs_approval(tool: str, args: Any, rating: Any) -> bool:
    """Whether a command is one that somebody is asked about."""
    return str(args.get("command", "")).split(" ")[0] in ("rm", "curl", "ls")


def following(steps: Iterator[Any]) -> Callable[[Setting], Any]:
    """A brain that gives the replies in their order, and charges for each."""

    def reply(prompt: Any) -> Any:
        charge(Usage(calls=1, input_tokens=1000, output_tokens=50, cost_usd=0.01))
        return next(steps)

    return lambda setting: reply


def manager(environment: LocalEnvironment, steps: Iterator[Any], *, answers: Sequence[Answer] = ()) -> Agent:
    """The agent of the log: a kit, a delegate, approvals, a memory that condenses."""
    given = list(answers)

    def asked(request: ApprovalRequest) -> Answer:
        return given.pop(0) if given else Answer(verdict="approve")

    worker = AgentSpec(
        name="worker", description="Looks.", goals=(Goal("Do it."),), actions=("run", "finish"), language="json",
        inputs=TASK_INPUT, brain=following(iter(WORKER)),
    )  # fmt: skip
    first = AgentSpec(
        name="manager", description="Fixes.", goals=(Goal("Do it."),), stuck=None,
        actions=("delegate", "run", "read", "write", "edit", "plan", "think", "finish"), brain=following(steps),
        memory="condensing", memory_options={"threshold_tokens": 2000},
    )  # fmt: skip
    agent = build(
        first, Setting(environment=ChangesEnvironment(environment), hub=Hub([first, worker]), budget=Budget())
    )
    policy = ApprovalPolicy(tools={"run": needs_approval})
    approvals = Approvals(policy, asked, environment=agent.environment, registry=agent.actions)
    agent.layers = (approvals, *agent.layers)
    return agent


def fresh_workspace() -> Path:
    """The folder that the agents work in, as it is at first."""
    shutil.rmtree(WORKSPACE, ignore_errors=True)
    (WORKSPACE / "build").mkdir(parents=True)
    (WORKSPACE / "build" / "old.txt").write_text("old\n")
    (WORKSPACE / "calc.py").write_text("def add(a, b):\n    return a - b\n\n\nprint(add(2, 3))\n")
    return WORKSPACE


def record_whole(log: EventLog) -> None:
    """A run that was paused once, heard its user, delegated, asked for approvals, and finished."""
    answers = [
        Answer(verdict="edit", args={"command": "rm -r build"}), Answer(verdict="reject", reason="no network"),
        Answer(verdict="approve", for_session=True),
    ]  # fmt: skip
    options = {"model": "provider/name", "agent": "manager"}
    with LocalEnvironment(workspace=fresh_workspace()) as environment:
        steps = iter(MANAGER)
        agent = manager(environment, steps, answers=[*answers[:1], Answer(verdict="later")])
        inbox = Inbox()
        agent.hooks.append(inbox)
        inbox.say("Mind the tests, please.")
        execute_recorded(agent, "Fix <add> in calc.py.", log, name="manager", options=options, run="whole")
        with log.begin("whole") as writer:
            resume(manager(environment, steps, answers=answers[1:]), writer, say="Go on.")


def record_cut_off(log: MortalLog, run: str, dies_after: type[ev.Event]) -> None:
    """A run whose process was killed in the middle of its second step."""
    log.dies_after, log.dead = None, False
    steps = [*MANAGER[:1], call("I fix it.", "edit", **PATCHED), MANAGER[-1]]
    with LocalEnvironment(workspace=fresh_workspace()) as environment:
        agent = manager(environment, iter(steps))

        class Deadly(Inbox):
            def before_step(self, step: Any, memory: Any) -> None:
                if step.number == 2:
                    log.dies_after = dies_after

        agent.hooks.append(Deadly())
        try:
            execute_recorded(agent, "Fix it.", log, name="manager", run=run)
        except Killed:
            return
    raise AssertionError("it was to be killed")


def main(folder: Path) -> None:
    """Write ``runs.db`` and ``run.json`` into ``folder``."""
    with MortalLog(folder / "runs.db") as log:
        record_whole(log)
        for run, kind in (
            ("decided", ev.ActionDecided),
            ("started", ev.ActionStarted),
            ("executed", ev.ActionExecuted),
        ):
            record_cut_off(log, run, kind)
        exported = to_dict(tree_of(log, "whole"))
    (folder / "run.json").write_text(json.dumps(exported, indent=1) + "\n")
    with sqlite3.connect(folder / "runs.db") as database:
        database.execute("PRAGMA journal_mode=DELETE")
    database.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
