"""Options of ``gamebox run`` that could only be ignored with others, and are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .errors import bad_input

if TYPE_CHECKING:
    import typer

    from .sandbox_options import Kept

# What `gamebox run --in` can do with a sandbox that is there; all else was settled when it was made.
_WITH_IN = frozenset(
    {"allow", "network", "cache", "command", "timeout", "env", "stdin", "as_json", "inside", "take_over", "forward",
     "network_log", "service", "service_header"}
)  # fmt: skip


def refuse_with_in(ctx: typer.Context, kept: Kept) -> None:
    """Raises SandboxError for an option that --in could only ignore, or that means nothing without it."""
    if kept.inside is None:
        if kept.take_over:
            raise bad_input("--take-over has no effect without --in.", "Name the sandbox with --in, or leave it out.")
        return
    for option in ctx.command.params:
        name = str(option.name)
        source = ctx.get_parameter_source(name)
        if name not in _WITH_IN and source is not None and source.name == "COMMANDLINE":
            raise bad_input(
                f"{option.opts[-1]} has no effect with --in: that sandbox already exists.",
                f"Leave out {option.opts[-1]}.",
            )


def refuse_with_local(options: Mapping[str, str | None], kept: Kept) -> None:
    """Raises SandboxError for an option that asks for what only a container has."""
    if kept.keep:
        raise bad_input("--local has no sandbox to keep.", "Leave out --keep and --name, or --local.")
    for name, value in options.items():
        if value is not None:
            raise bad_input(f"--{name} {value} has no effect with --local.", f"Leave out --local, or --{name}.")
