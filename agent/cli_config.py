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

import os
import stat
from pathlib import Path
from typing import Any

_MOST_BYTES = 1 << 20


def config_file() -> Path:
    """Return the path of the file, whether it exists or not."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".config") / "gamebox" / "config.toml"


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
    """Return what is in the file; None without one. The file is checked as it was opened, and opening it does not wait."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _invalid(f"{path} cannot be read: {error.strerror}.", "Correct its permissions, or move it away.") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise _invalid(f"{path} is not a regular file.", "Put a file there, or move it away.")
        if found.st_uid not in (0, os.geteuid()) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise _invalid(
                f"{path} is not read: other users can write it, or it belongs to another user.",
                "Look at what is in it, then take it over: chown it to yourself, and chmod go-w.",
            )
        if found.st_size > _MOST_BYTES:
            raise _invalid(f"{path} has more than {_MOST_BYTES >> 20} MiB.", "Shorten the file, or move it away.")
        return os.read(descriptor, _MOST_BYTES)
    finally:
        os.close(descriptor)


def _defaults_of(group: Any, tables: dict[str, Any], path: Path, prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, table in tables.items():
        command = group.commands.get(name)
        where = f"[{prefix}{name}]"
        if command is None or not isinstance(table, dict):
            known = ", ".join(sorted(group.commands))
            raise _invalid(f"{path}: {where} does not name a command.", f"Use one of: {known}.")
        inner = getattr(command, "commands", None)
        found[name] = (
            _options_of(command, table, path, where)
            if inner is None
            else _defaults_of(command, table, path, f"{name}.")
        )
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
