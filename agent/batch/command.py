"""What ``gamebox batch`` does once its options are read: the parts of trials, progress and the table at the end."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.budget import Budget
from agent.commands import brain_of
from agent.hub import AgentSpec, Hub, Setting, build, default
from agent.hub.building import check_inputs
from agent.loop import Agent
from agent.model.brain import Brain
from agent.model.scripted import ScriptedModel
from agent.show import Screen
from sandbox.cli import DEFAULT_IMAGE, bad_input, print_json, sandbox_of
from sandbox.environment import Environment

from .oracle import oracle_agent
from .results import Result, State
from .running import Batch, run_batch
from .tasks import BatchTask, load_tasks
from .trial import Parts

ORACLE = "oracle"


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command."""

    tasks: Path
    out: Path
    agent: str
    model: str | None
    script: Path | None
    budget: Budget
    image: str | None
    memory: str
    cpus: float
    network: str
    workers: int = 1
    local: bool = False
    retry: bool = False
    as_json: bool = False
    hub: Hub = field(default_factory=default)

    @property
    def spec(self) -> AgentSpec | None:
        """The agent by name; None for the oracle. Raises SandboxError for one that is not there."""
        return None if self.agent == ORACLE else self.hub.load(self.agent)

    @property
    def thinks(self) -> bool:
        """Whether the agent needs a brain from outside."""
        return self.spec is not None and self.spec.needs_model

    def check(self, tasks: Sequence[BatchTask]) -> None:
        """Raises SandboxError for what is wrong before anything begins."""
        if self.workers < 1:
            raise bad_input(f"--workers is {self.workers}.", "Give 1 or more.")
        if self.network not in ("none", "task", "open"):
            raise bad_input(
                f"--network {self.network!r} is not known.", "Use none, task (what each task asks for) or open."
            )
        if self.thinks and not all(task.script for task in tasks):
            brain_of(self.model, self.script, self.budget)
        for task in tasks:
            if self.spec is not None:
                check_inputs(self.spec, self.inputs_for(self.spec, task))

    @staticmethod
    def inputs_for(spec: AgentSpec, task: BatchTask) -> dict[str, Any]:
        """What the agent is given for a task; the task itself is its input of that name, where it has one."""
        own = {"task": task.task} if "task" in spec.inputs.get("properties", {}) else {}
        return {**own, **task.inputs}

    def make_brain(self, task: BatchTask) -> Brain:
        """The brain of one task. Raises SandboxError."""
        if not self.thinks:
            return ScriptedModel([])
        if task.script is not None:
            return brain_of(None, task.script, self.budget)
        return brain_of(self.model, self.script, self.budget)

    def make_agent(self, task: BatchTask, environment: Environment, brain: Brain, budget: Budget) -> Agent:
        """The agent of one task. Raises SandboxError."""
        if self.spec is None:
            return oracle_agent(task, environment, budget)
        inputs = self.inputs_for(self.spec, task)
        return build(
            self.spec, Setting(environment=environment, hub=self.hub, brain=brain, budget=budget, inputs=inputs)
        )

    def open_environment(self, task: BatchTask, folder: Path) -> Environment:
        """The sandbox of one task, around a copy of ``folder``. Raises SandboxError."""
        asked = task.network if self.network == "task" else self.network
        if self.local and task.verifier is not None:
            why = f"The task {task.id} cannot be run with --local: its verifier works as root at /tests."
            raise bad_input(why, "Leave --local out.")
        if self.local:  # it works in the folder it is given, and ours must stay as it is: the diff is made against it
            folder = Path(shutil.copytree(folder, folder.with_name(f"{folder.name}-local"), symlinks=True))
        return sandbox_of(
            task.image or self.image or (self.spec and self.spec.image) or DEFAULT_IMAGE, folder,
            None if asked == "allow" else asked, task.memory or self.memory, task.cpus or self.cpus, self.local,
            allow=task.allow if asked == "allow" else (), profile=task.profile,
        )  # fmt: skip


def run(options: Options) -> int:
    """The command; returns its exit code. Raises SandboxError for bad input."""
    tasks = load_tasks(options.tasks)
    options.check(tasks)
    parts = Parts(
        open_environment=options.open_environment, make_agent=options.make_agent, make_brain=options.make_brain,
        budget=options.budget, agent=options.agent, model=options.model or "",
    )  # fmt: skip
    batch = Batch(tasks=tasks, out=options.out, parts=parts, workers=options.workers, retry=options.retry)
    progress = Progress(len(tasks))
    try:
        results, complete = run_batch(batch, progress.tell)
    finally:
        progress.close()
    if options.as_json:
        print_json({"complete": complete, "results": [result.to_dict() for result in results]})
    else:
        sys.stdout.write(shown(table(results, len(tasks))))
    return exit_code(results, len(tasks), complete)


class Progress:
    """A line for each result as it comes, and on a terminal a bar below."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0
        self.screen = Screen()
        self._bar: Any = None
        if self.screen.stream.isatty():
            from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn
            from rich.progress import Progress as Bars

            self._bar = Bars(
                BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), transient=True, console=self.screen.console
            )
            self._bar.add_task("tasks", total=total)
            self._bar.start()

    def tell(self, result: Result, earlier: bool) -> None:
        """A result has come."""
        self.done += 1
        style = {State.value: "green", State.not_verified: ""}.get(result.state, "red")
        self.screen.line(
            f"[{self.done}/{self.total}] {result.id}: {'done before, ' if earlier else ''}{outcome(result)}", style
        )
        if self._bar is not None:
            self._bar.advance(0)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()


def outcome(result: Result) -> str:
    """What came of a task, in one line."""
    rewards = " ".join(f"{name}={value:g}" for name, value in sorted(result.rewards.items()))
    parts = [result.state.value, rewards, result.status, result.error, f"{result.seconds:.1f} s"]
    return ", ".join(part for part in parts if part)


def table(results: Sequence[Result], total: int) -> list[list[str]]:
    """The table at the end, its head first and its sums last."""
    rows = [["task", "state", "reward", "run", "steps", "seconds", "cost"]]
    for each in results:
        reward = " ".join(
            f"{value:g}" if name == "reward" else f"{name}={value:g}" for name, value in sorted(each.rewards.items())
        )
        cost = "" if not each.calls else "unknown" if each.cost_usd is None else f"${each.cost_usd:.4f}"
        rows.append([each.id, each.state.value, reward, each.status, str(each.steps), f"{each.seconds:.1f}", cost])
    scored = [each.rewards["reward"] for each in results if each.state is State.value and "reward" in each.rewards]
    mean = f"mean {sum(scored) / len(scored):.3f} of {len(scored)}" if scored else ""
    cost_sum = sum(each.cost_usd or 0.0 for each in results)
    seconds = sum(each.seconds for each in results)
    rows.append(
        [
            f"{len(results)} of {total}",
            "",
            mean,
            "",
            str(sum(e.steps for e in results)),
            f"{seconds:.1f}",
            f"${cost_sum:.4f}",
        ]
    )
    return rows


def shown(rows: Sequence[Sequence[str]]) -> str:
    """The table as plain text."""
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n" for row in rows
    )


def exit_code(results: Sequence[Result], total: int, complete: bool) -> int:
    """0: every task has an outcome; 1: one has none; 130: it was interrupted."""
    if not complete:
        return 130
    known = [each for each in results if each.state in (State.value, State.not_verified)]
    return 0 if len(known) == total else 1
