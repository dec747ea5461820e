"""``gamebox batch``. Nothing heavy is imported before it is run."""

from __future__ import annotations

from pathlib import Path

import typer

from sandbox.cli import DEFAULT_CPUS, DEFAULT_MEMORY

EPILOG = """Examples:

  gamebox batch tasks.jsonl --workers 4 --model provider/name --max-cost 0.50 -o results

  gamebox batch ./harbor-tasks --agent oracle -o results
"""


def batch(
    tasks: Path = typer.Argument(..., help="A .jsonl file, a folder of tasks in Harbor's form, or one such task."),
    output: Path = typer.Option(
        Path("batch"), "-o", "--output", help="Folder of the results; what is done there is skipped."
    ),
    workers: int = typer.Option(1, "--workers", "-n", help="Tasks at a time."),
    agent: str = typer.Option("coding", help="Agent by name; oracle runs the solutions that the tasks bring."),
    model: str | None = typer.Option(None, help="Model as provider/name; its key comes from the environment."),
    script: Path | None = typer.Option(None, help="A JSON file of replies to follow instead of a model."),
    image: str | None = typer.Option(None, help="Image of tasks that name none, instead of the agent's own."),
    max_iterations: int = typer.Option(50, help="Steps at most, for each task."),
    max_cost: float | None = typer.Option(None, help="US dollars at most, for each task."),
    max_seconds: float = typer.Option(3600.0, help="Seconds at most, for each task; a task may say less."),
    max_tokens: int | None = typer.Option(None, help="Tokens at most, for each task."),
    memory: str = typer.Option(DEFAULT_MEMORY, help="Memory limit of sandboxes of tasks that name none."),
    cpus: float = typer.Option(DEFAULT_CPUS, help="Processors of sandboxes of tasks that name none."),
    network: str = typer.Option("none", help="none, task (what each task asks for) or open."),
    local: bool = typer.Option(False, "--local", help="Run on this host WITHOUT isolation."),
    retry: bool = typer.Option(False, "--retry", help="Do tasks again whose verifier failed."),
    as_json: bool = typer.Option(False, "--json", help="Print the results as JSON instead of a table."),
) -> None:
    """Run many tasks. Exit code 0: all have an outcome, 1: some have none."""
    from .batch.command import Options, run
    from .options import budget_of

    options = Options(
        tasks=tasks, out=output, agent=agent, model=model, script=script, image=image, memory=memory, cpus=cpus, network=network,
        budget=budget_of(max_iterations, max_seconds, max_tokens, max_cost), workers=workers, local=local, retry=retry,
        as_json=as_json,
    )  # fmt: skip
    raise typer.Exit(run(options))
