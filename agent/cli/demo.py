"""``gamebox demo``."""

from __future__ import annotations

import typer

from sandbox.docker.spec import DEFAULT_IMAGE


def demo(
    model: str | None = typer.Option(None, help="Use a real model, given as provider/name."),
    image: str = typer.Option(DEFAULT_IMAGE, help="Image of the sandbox."),
) -> None:
    """Watch an agent find and fix a real bug in a real library, in a sandbox without a network."""
    from agent.demo.run import run_demo

    raise typer.Exit(run_demo(model, image))
