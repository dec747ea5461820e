"""An orchestrator that kills itself at a given point of a given step of a recorded run, and is started again to go on.

python -m tests.scenarios.killed_run LOG RUN MARKS STEP POINT      # STEP 0: it is not killed
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from agent import Action, Agent, FunctionCallingLanguage, Goal, ScriptedModel, standard_registry
from agent.core.kits import EquippedEnvironment, Kit
from agent.record import events as ev
from agent.record.resume import begin, resume
from agent.record.store import EventLog, RunWriter, record_of
from sandbox import DockerEnvironment, Limits
from sandbox.environment.base import Environment

POINTS = ("before_decided", "after_decided", "after_started", "during", "after_executed")
LAST = 20


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


class Counter(Kit):
    """One action that may be repeated, one that leaves a mark on the host and may not."""

    name = "counter"

    def __init__(self, marks: Path) -> None:
        self.count, self.marks = 0, marks
        self._actions = [
            Action("count", self._count, "Count.", metadata={"idempotent": True}),
            Action("mark", self._mark, "Leave a mark.", SCHEMA),
        ]

    def actions(self) -> list[Action]:
        return self._actions

    def _count(self) -> int:
        self.count += 1
        return self.count

    def _mark(self, n: int) -> str:
        with self.marks.open("a") as file:
            file.write(f"{n}\n")
        threading.Event().wait(0.4)
        return "marked"

    def snapshot(self) -> Any:
        return self.count

    def restore(self, state: Any) -> None:
        self.count = state


def steps() -> list[dict[str, Any]]:
    """Twenty decisions; each leaves a trace that shows how often it was carried out."""
    made: list[dict[str, Any]] = []
    for number in range(1, LAST):
        kinds = [
            {"tool": "run", "args": {"command": f"sleep 0.4; echo {number} >> done"}},
            {"tool": "mark", "args": {"n": number}},
            {"tool": "count", "args": {}},
            {"tool": "run", "args": {"command": f"echo {number} >> done; sleep 0.4", "session": "other"}},
            {"tool": "write", "args": {"path": f"file{number}", "content": "x"}},
            {"tool": "read", "args": {"path": "done"}},
        ]
        made.append(kinds[(number - 1) % len(kinds)])
    return [*made, {"tool": "finish", "args": {"summary": "done"}}]


class Mortal(RunWriter):
    """Kills its process at the point."""

    step, point = 0, ""

    def append(self, *events: ev.Event) -> int:
        kinds = {type(event) for event in events if getattr(event, "step", None) == self.step}
        if self.point == "during" and ev.ActionExecuted in kinds:
            threading.Event().wait(60)  # the action was quick: the end comes before anything is written of it
        last = super().append(*events)
        after = {
            "after_decided": ev.ActionDecided,
            "after_started": ev.ActionStarted,
            "after_executed": ev.ActionExecuted,
        }
        if after.get(self.point) in kinds:
            die()
        if self.point == "during" and ev.ActionStarted in kinds:
            threading.Timer(0.2, die).start()
        return last


def die() -> None:
    """As from outside: nothing is closed, nothing is told."""
    os.kill(os.getpid(), signal.SIGKILL)


def main(log_path: str, run: str, marks: str, step: str, point: str) -> None:
    """Begin the run or go on with it, up to the point."""
    with EventLog(log_path) as log, Mortal(log, run) as writer:
        begun = log.head(run) is not None
        known = record_of(log, run) if begun else None
        used = sum(s.decided is not None for s in known.steps) if known else 0
        writer.step, writer.point = int(step), point
        brain = ScriptedModel(steps()[used:])
        if known is None:
            options: Any = {"limits": Limits(memory_bytes=256 << 20), "track_changes": False, "keep_seconds": 120.0}
            environment: Environment = DockerEnvironment(keep=True, name=f"run-{run}", **options).start()
        else:
            environment = DockerEnvironment.attach(f"run-{run}")

        def reply(prompt: Any) -> Any:
            if point == "before_decided" and used + len(brain.prompts) + 1 == int(step):
                die()
            return brain(prompt)

        agent = agent_of(reply, environment, Path(marks))
        if known is None:
            begin(agent, writer, "leave traces")
            outcome = agent.execute("leave traces")
        else:
            outcome = resume(agent, writer)
        print(outcome.status.value, outcome.reason)
        environment.remove()


def agent_of(brain: Any, environment: Environment, marks: Path) -> Agent:
    """The agent, made anew in each process."""
    kit = Counter(marks)
    registry = standard_registry()
    for action in kit.actions():
        registry.register(action)
    return Agent([Goal("traces")], FunctionCallingLanguage(), registry, brain, EquippedEnvironment(environment, [kit]))


if __name__ == "__main__":
    main(*sys.argv[1:])
