"""What ``gamebox batch`` does once its options are read: the parts of trials, progress and the table at the end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent.budget import Budget
from agent.coding import coding_agent
from agent.commands import brain_of
from agent.hub import Hub, Setting, build
from agent.loop import Agent
from agent.model.brain import Brain
from agent.model.scripted import ScriptedModel
from agent.show import Screen
from sandbox.cli import bad_input, sandbox_of
from sandbox.environment import Environment

from .oracle import oracle_agent
from .results import Result, State
from .tasks import BatchTask
from .trial import Parts

ORACLE = "oracle"


def parts_of(
    *, agent: str | None, hub: Hub, model: str | None, script: Path | None, budget: Budget, image: str, memory: str, cpus: float,
    network: str, local: bool, tasks: Sequence[BatchTask],
) -> Parts:  # fmt: skip
    """What trials are made of. Raises SandboxError for options that are no good."""
    if network not in ("none", "task", "open"):
        raise bad_input(f"--network {network!r} is not known.", "Use none, task (what each task asks for) or open.")
    spec = None if agent in (None, ORACLE) else hub.load(agent)
    thinks = agent != ORACLE and (spec is None or spec.needs_model)
    if thinks and not all(task.script for task in tasks):
        brain_of(model, script, budget)  # what is wrong with it is said before anything begins

    def make_brain(task: BatchTask) -> Brain:
        if not thinks:
            return ScriptedModel([])
        return brain_of(None, task.script, budget) if task.script is not None else brain_of(model, script, budget)

    def make_agent(task: BatchTask, environment: Environment, brain: Brain, budget: Budget) -> Agent:
        if agent == ORACLE:
            return oracle_agent(task, environment, budget)
        if spec is None:
            return coding_agent(brain, environment, budget=budget)
        return build(spec, Setting(environment=environment, hub=hub, brain=brain, budget=budget, inputs=task.inputs))

    def open_environment(task: BatchTask, folder: Path) -> Environment:
        asked = task.network if network == "task" else network
        allow = task.allow if asked == "allow" else ()
        if local and task.verifier is not None:
            raise bad_input(
                f"The task {task.id} cannot be run with --local: its verifier works as root at /tests.", "Leave it out."
            )
        return sandbox_of(
            task.image or image, folder, None if asked == "allow" else asked, task.memory or memory, task.cpus or cpus, local,
            allow=allow, profile=task.profile,
        )  # fmt: skip

    return Parts(
        open_environment=open_environment, make_agent=make_agent, make_brain=make_brain, budget=budget, agent=agent or "coding",
        model=model or "",
    )  # fmt: skip


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
