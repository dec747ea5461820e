"""The layout of ``gamebox --help``: whole sentences, arguments by their names, and examples that can be pasted. Help
texts that several commands share.
"""

from __future__ import annotations

import re
from typing import Any

import typer
import typer.core

DEVCONTAINER_HELP = (
    "Use the image or Dockerfile that the repository's devcontainer.json names. Its steps run in sandboxes, with the network of "
    "--network and --allow and the packages of --packages; commands that it would run are only shown."
)
AGENTS_HELP = "Folder of additional agents, which take precedence over all others; may be repeated."
LANGUAGE_HELP = "Language to use instead of the agent's own: function_calling, json, tags or fenced."
MODEL_OPTION_HELP = (
    "Option of the model, as in temperature=0 or reasoning_effort=high; a value may be JSON. May be repeated."
)
FALLBACK_HELP = "Model to ask when --model does not answer; may be repeated. The log says which model answered."
LOG_HELP = "Event log to use instead of $XDG_STATE_HOME/gamebox/runs.db."
MCP_HELP = (
    "MCP server whose tools the agent gets: a command, which runs in the sandbox, or an http or https address, which this host "
    "connects to; may be repeated."
)
MCP_CONFIG_HELP = (
    "File of MCP servers, in the format of mcp.json; by default gamebox/mcp.json in $XDG_CONFIG_HOME (~/.config), if there is one. "
    "/dev/null stands for no servers."
)
MCP_HEADER_HELP = (
    "Header for requests to an MCP server, as in tracker:Authorization=TRACKER_TOKEN; the value is read from the variable. "
    "May be repeated."
)
OTEL_HELP = (
    "Send OpenTelemetry spans to the endpoint that the variables OTEL_* name; without this option, spans are sent if "
    "OTEL_EXPORTER_OTLP_ENDPOINT is set."
)
_METAVARS = {
    "int": "N",
    "float": "N",
    "int | None": "N",
    "float | None": "N",
    "Path": "PATH",
    "pathlib.Path | None": "PATH",
}
_WIDE_COLUMNS = 72
_SENTENCE = re.compile(r"(?s)(.*?\.)(?:\s|$)")


_Context: Any = typer.core.TyperGroup.context_class  # typer exports it and the formatter nowhere else


class Formatter(_Context.formatter_class):  # type: ignore[misc]
    """Gives the explanations of options more room in a narrow terminal, where long words in them were broken."""

    def write_dl(self, rows: Any, col_max: int = 30, col_spacing: int = 2) -> None:
        """Write names and their explanations in two columns."""
        super().write_dl(rows, col_max if self.width >= _WIDE_COLUMNS else self.width // 3, col_spacing)


class HelpContext(_Context):  # type: ignore[misc]
    """A context whose help is written by Formatter."""

    formatter_class = Formatter


class HelpfulGroup(typer.core.TyperGroup):
    """A group whose list of commands has the whole first sentence of each, and whose arguments have no Python types."""

    context_class = HelpContext

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, with its arguments named plainly."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            command.context_class = HelpContext
        for param in () if command is None else command.params:
            if isinstance(param, typer.core.TyperArgument):
                _name_plainly(param)
            elif isinstance(param, typer.core.TyperOption) and param.metavar is None and not param.is_flag:
                param.metavar = _METAVARS.get(param.bare_type(), "TEXT")
        return command

    def help_of(self, name: str) -> str:
        """Return the help of one of the commands."""
        return self.commands[name].help or ""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands with the first sentence of their help, wrapped and not cut."""
        rows = [(name, _first_sentence(self.help_of(name))) for name in self.list_commands(ctx)]
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
