"""The user's own defaults for options, in ``$XDG_CONFIG_HOME/gamebox/config.toml`` (``~/.config`` without it).

A table per command, an entry per option::

    [agent]
    model = "provider/name"
    max-cost = 2.0

    [runs.ls]
    json = true

The command line wins over an environment variable of the option, and that over the file. A repository's files are never read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agent.own_files import SETTINGS, OwnFileError, config_folder, read_own_file

_MOST_BYTES = 1 << 20


def config_file() -> Path:
    """Return the path of the file, whether it exists or not."""
    return config_folder() / "config.toml"


def load_defaults(group: Any) -> dict[str, Any]:
    """Read the file as click's ``default_map`` of ``group``; an empty one without a file.

    Raises SandboxError ``invalid_configuration`` for a file that cannot be read, that another user could have written, that has
    more than 1 MiB, or that names an unknown command or option.
    """
    path = config_file()
    content = _read(path)
    if content is None:
        return {}
    import tomllib

    try:
        tables = tomllib.loads(content.decode())
    except ValueError as error:
        raise _invalid(f"{path} cannot be read: {error}.", "Correct the file, or move it away.") from error
    return _defaults_of(group, tables, path, "")


def _read(path: Path) -> bytes | None:
    try:
        return read_own_file(path, _MOST_BYTES, SETTINGS)
    except OwnFileError as error:
        raise _invalid(f"{path} {error}.", error.hint) from error


def _defaults_of(group: Any, tables: dict[str, Any], path: Path, prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, table in tables.items():
        command = group.commands.get(name)
        where = f"[{prefix}{name}]"
        if command is None or not isinstance(table, dict):
            known = ", ".join(sorted(group.commands))
            raise _invalid(f"{path}: {where} does not name a command.", f"Use one of: {known}.")
        inner = getattr(command, "commands", None)
        if inner is None:
            found[name] = _options_of(command, table, path, where)
            continue
        of_commands = {key: value for key, value in table.items() if isinstance(value, dict) or not command.invoke_without_command}
        own = {key: value for key, value in table.items() if key not in of_commands}  # as of gamebox serve
        found[name] = {**_options_of(command, own, path, where), **_defaults_of(command, of_commands, path, f"{name}.")}
    return found


def _options_of(command: Any, table: dict[str, Any], path: Path, where: str) -> dict[str, Any]:
    names = {
        option.removeprefix("--"): param.name
        for param in command.params
        for option in param.opts
        if option.startswith("--")
    }
    unknown = next((name for name in table if name not in names), None)
    if unknown is not None:
        raise _invalid(
            f"{path}: {where} has no option {unknown!r}.",
            f"Its options are listed by: gamebox {where[1:-1].replace('.', ' ')} --help.",
        )
    return {names[name]: value for name, value in table.items()}


def _invalid(message: str, hint: str) -> Exception:
    from sandbox.errors import ErrorCode, SandboxError

    return SandboxError(ErrorCode.invalid_configuration, message, hint)
