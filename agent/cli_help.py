"""How the help of ``gamebox`` is laid out: whole sentences, arguments by their names, and examples that can be pasted."""

from __future__ import annotations

import re
from typing import Any

import typer
import typer.core

_METAVARS = {
    "int": "N",
    "float": "N",
    "int | None": "N",
    "float | None": "N",
    "Path": "PATH",
    "pathlib.Path | None": "PATH",
}
_SENTENCE = re.compile(r"(?s)(.*?\.)(?:\s|$)")


class HelpfulGroup(typer.core.TyperGroup):
    """A group whose list of commands has the whole first sentence of each, and whose arguments have no Python types."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """See the base class."""
        command = super().get_command(ctx, cmd_name)
        for param in () if command is None else command.params:
            if isinstance(param, typer.core.TyperArgument):
                _name_plainly(param)
            elif isinstance(param, typer.core.TyperOption) and param.metavar is None and not param.is_flag:
                param.metavar = _METAVARS.get(param.bare_type(), "TEXT")
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands with the first sentence of their help, wrapped and not cut."""
        rows = [(name, _first_sentence(self.get_command(ctx, name).help or "")) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def keep_examples_whole(app: typer.Typer) -> None:
    """Mark each indented paragraph of the epilogs so that help never wraps it."""
    infos: list[Any] = [*app.registered_commands, app.info]
    for info in infos:
        if isinstance(info.epilog, str):
            parts = info.epilog.strip("\n").split("\n\n")
            info.epilog = "\n\n".join(f"\b\n{part}" if part.startswith("  ") else part for part in parts)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            keep_examples_whole(group.typer_instance)


def _first_sentence(text: str) -> str:
    found = _SENTENCE.match(text)
    return " ".join((found[1] if found else text).split())


def _name_plainly(argument: typer.core.TyperArgument) -> None:
    name = argument.metavar = argument.metavar or (argument.name or "").upper()
    usage = name if argument.required or name.startswith("[") else f"[{name}]"
    if argument.nargs != 1 and "..." not in usage:
        usage += "..."
    argument.display_type_rich = lambda ctx: None  # type: ignore[method-assign]  # noqa: ARG005
    argument.get_usage_pieces = lambda ctx: [usage]  # type: ignore[method-assign]  # noqa: ARG005
