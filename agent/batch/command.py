"""The command ``gamebox batch``: what its options ask for, the progress of its tasks, and the table at the end."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from agent.hub import default
from agent.hub.finding import DEFAULT_AGENT
from agent.job.mcp_servers import servers_of
from agent.job.options import budget_of
from agent.job.telemetry import tracing
from agent.record.store import EventLog
from agent.views.screen import Screen
from sandbox.cli.run import print_json
from sandbox.cli.sandbox_options import FLAGS, variable_of
from sandbox.cli.table import write_table
from sandbox.text.invisible import visible

from .options import Options
from .results import Result, State
from .running import Batch, run_batch
from .tasks import BatchTask, load_tasks
from .trial import Parts


def run_command(values: Mapping[str, Any]) -> int:
    """Run the command with its options by name, and return its exit code. Raises SandboxError for invalid input."""
    limits = (values["max_iterations"], values["max_seconds"], values["max_tokens"], values["max_cost"])
    same = (
        "tasks",
        "model",
        "script",
        "image",
        "memory",
        "cpus",
        "network",
        "workers",
        "local",
        "retry",
        "redo_changed",
        "as_json",
        "language",
        "approve",
        "history",
        "devcontainer",
        "pull",
        "model_option",
        "fallback",
    )
    out: Path = values["output"]
    with tracing(values.get("otel"), lambda line: Screen().line(line, "dim")) as layers:
        return run(
            Options(
                **{name: values[name] for name in same},
                layers=layers,
                out=out,
                agent=values["agent"] or DEFAULT_AGENT,
                budget=budget_of(*limits),
                servers=servers_of(values["mcp"], values["mcp_header"], os.environ, values["mcp_config"]),
                agents_md=not values["no_agents_md"],
                env=dict(variable_of(text) for text in values["env"]),
                log=None if values["no_log"] else values["log"] or out / "runs.db",
                hub=default(values["agents"]),
                sandbox={
                    name: values[name]
                    for name, flag in FLAGS.items()
                    if name in values and name not in (*same, "env") and values[name] not in (None, [], flag.default)
                },
            )
        )


def run(options: Options) -> int:
    """Run a batch, and return the exit code. Raises SandboxError for invalid input."""
    tasks = load_tasks(options.tasks, options.env)
    options.check(tasks)
    identities = options.identities(tasks)
    progress = Progress(len(tasks))
    warn_about_images(options, tasks, progress.screen)
    for line in options.lines_about_images(tasks):
        progress.screen.line(line, "dim")
    with ExitStack() as stack:
        stack.callback(progress.close)
        log = None if options.log is None else stack.enter_context(EventLog(options.log))
        parts = Parts(
            open_environment=options.open_environment,
            make_agent=options.make_agent,
            make_brain=options.make_brain,
            budget=options.budget,
            agent=options.agent,
            model=options.model or "",
            identities=identities,
            log=log,
            approve=options.approve,
            workspace_bytes=options.workspace_bytes,
            history=options.history,
        )
        batch = Batch(
            tasks=tasks,
            out=options.out,
            parts=parts,
            workers=options.workers,
            retry=options.retry,
            redo_changed=options.redo_changed,
        )
        results, complete = run_batch(batch, progress.tell)
    if options.as_json:
        print_json({"complete": complete, "results": [result.to_dict() for result in results]})
    else:
        write_table(_COLUMNS, rows_of(results, len(tasks)), spare=("STEPS", "RUN", "SECONDS"))
    return exit_code(results, len(tasks), complete)


def warn_about_images(options: Options, tasks: Sequence[BatchTask], screen: Screen) -> None:
    """Say so if tasks run in other images than the agent's own, and so without the programs that it brings."""
    own = None if options.spec is None or options.local else options.spec.image
    other = [task for task in tasks if own is not None and options.image_of(task) != own]
    if other:
        where = f"{len(other)} of {len(tasks)} tasks run in other images than {own}"
        screen.line(f"{where}: {options.agent} has only what these contain", "dim")


class Progress:
    """Print a line for each result, and on a terminal a progress bar below."""

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
        """Print a result; ``earlier`` is true for that of an earlier batch."""
        self.done += 1
        style = {State.value: "green", State.not_verified: ""}.get(result.state, "red")
        self.screen.line(
            f"[{self.done}/{self.total}] {result.id}: {'done before, ' if earlier else ''}{outcome(result)}", style
        )
        if self._bar is not None:
            self._bar.advance(0)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()


def outcome(result: Result) -> str:
    """Return the outcome of a task as one line."""
    rewards = " ".join(f"{name}={value:g}" for name, value in sorted(result.rewards.items()))
    parts = [result.state.value, rewards, result.status, result.error, f"{result.seconds:.1f} s"]
    return ", ".join(part for part in parts if part)


_COLUMNS = ("TASK", "STATE", "REWARD", "RUN", "STEPS", "SECONDS", "COST", "WHY")


def rows_of(results: Sequence[Result], total: int) -> list[tuple[str, ...]]:
    """Return a row for each result, and their totals as the last row. WHY is what went wrong."""
    rows: list[tuple[str, ...]] = []
    for each in results:
        reward = " ".join(
            f"{value:g}" if name == "reward" else f"{name}={value:g}" for name, value in sorted(each.rewards.items())
        )
        cost = "" if not each.calls else "unknown" if each.cost_usd is None else f"${each.cost_usd:.4f}"
        why = visible(" ".join(each.error.split()))
        rows.append((each.id, each.state.value, reward, each.status, str(each.steps), f"{each.seconds:.1f}", cost, why))
    scored = [each.rewards["reward"] for each in results if each.state is State.value and "reward" in each.rewards]
    mean = f"mean {sum(scored) / len(scored):.3f} of {len(scored)}" if scored else ""
    priced = all(each.cost_usd is not None for each in results if each.calls)
    cost_sum = f"${sum(each.cost_usd or 0.0 for each in results):.4f}" if priced else "unknown"
    steps, seconds = sum(each.steps for each in results), sum(each.seconds for each in results)
    rows.append((f"{len(results)} of {total}", "", mean, "", str(steps), f"{seconds:.1f}", cost_sum, ""))
    return rows


def exit_code(results: Sequence[Result], total: int, complete: bool) -> int:
    """Return 0 if every task has an outcome, 1 if one has none, and 130 if the batch was interrupted."""
    if not complete:
        return 130
    known = [each for each in results if each.state in (State.value, State.not_verified)]
    return 0 if len(known) == total else 1
