"""The file ``mcp.json``, as other clients of MCP read it, too: the user's own servers. A repository's files are never read.

::

    {"mcpServers": {"notes": {"command": "npx", "args": ["-y", "notes-server"], "env": {"NOTES_TOKEN": "${NOTES_TOKEN}"}},
                    "tracker": {"url": "https://tracker.example.com/mcp", "headers": {"Authorization": "Bearer ${TRACKER_TOKEN}"}}}}

A command runs in the sandbox, with its ``env``; an address is called from this host. Keys of other clients are ignored.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.mcp.declaration import check_address, server_name
from agent.own_files import NAMED, SETTINGS, OwnFileError, config_folder, read_own_file
from sandbox.cli.errors import bad_input
from sandbox.errors import SandboxError
from sandbox.text.masking import LEAST_CHARS, credentials_of

MAX_BYTES = 1 << 20
MAX_SERVERS = 20
# Keys that mean the same for the kit ``mcp``.
_OWN = ("cwd", "tools", "timeout_seconds", "optional")
_TYPES = {
    "stdio": "command",
    "local": "command",
    "http": "url",
    "streamable-http": "url",
    "streamableHttp": "url",
    "remote": "url",
}
_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_IS_SECRET = re.compile(r"(?i)token|key|secret|pass|cred|auth|dsn|cookie|signature|(?:^|_)(?:pat|pw|pwd|pin|jwt|sas)(?:_|$)")


@dataclass
class ConfigServers:
    """The servers of a file, as the kit ``mcp`` declares them, and the values in it that must not be shown."""

    declared: dict[str, dict[str, Any]] = field(default_factory=dict)
    secrets: list[tuple[str, str]] = field(default_factory=list, repr=False)


def is_secret(name: str) -> bool:
    """Return whether the value of a variable, or of a part of an address, is a secret by its name."""
    return _IS_SECRET.search(name) is not None


def config_file() -> Path:
    """Return the path of the user's own file, whether it exists or not: ``mcp.json`` beside ``config.toml``."""
    return config_folder() / "mcp.json"


def load_servers(path: Path | None, environ: Mapping[str, str]) -> ConfigServers:
    """Read the servers of the file at ``path``; with None those of the user's own file, if there is one. /dev/null has none.

    A server of the user's own file is optional: it is for any agent and any image, and may not run in this one.

    Raises SandboxError ``invalid_configuration`` for a file that cannot be read, that another user could have written, or whose
    content is not valid; the message never quotes a value.
    """
    if path is not None and str(path) == os.devnull:
        return ConfigServers()
    content = _read(path or config_file(), required=path is not None)
    if content is None:
        return ConfigServers()
    where = path or config_file()
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        line = f" in line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise bad_input(f"{where} is not JSON{line}.", "Correct the file.") from None
    servers = data.get("mcpServers", data.get("servers")) if isinstance(data, dict) else None
    if not isinstance(servers, dict) or len(servers) > MAX_SERVERS:
        raise bad_input(
            f'{where} needs an object "mcpServers" with at most {MAX_SERVERS} servers by name.',
            'Write it as in {"mcpServers": {"notes": {"command": "npx", "args": ["-y", "notes-server"]}}}.',
        )
    found = ConfigServers()
    for name, entry in servers.items():
        _add(name, entry, found, _Reader(where, name, environ, found.secrets), is_optional=path is None)
    return found


def _add(name: str, entry: Any, found: ConfigServers, reader: _Reader, *, is_optional: bool) -> None:
    if not isinstance(entry, dict):
        raise reader.invalid("is not an object")
    if entry.get("disabled") is True or entry.get("enabled") is False:
        return
    own = server_name(name)
    if not own:
        raise reader.invalid("needs a name that begins with a letter")
    if own in found.declared:
        raise reader.invalid(f"has the same name as another one, {own}")
    declared = reader.declaration(entry)
    declared.update({key: entry[key] for key in _OWN if key in entry})
    if is_optional:
        declared.setdefault("optional", True)
    found.declared[own] = declared


class _Reader:
    """Reads the values of one server, with variables replaced; secrets among them are added to ``secrets``."""

    def __init__(self, where: Path, name: str, environ: Mapping[str, str], secrets: list[tuple[str, str]]) -> None:
        self._where = where
        self._name = name
        self._environ = environ
        self._secrets = secrets

    def invalid(self, what: str) -> SandboxError:
        """Return the error for this server."""
        return bad_input(f"{self._where}: the server {self._name[:80]!r} {what}.", "Correct the file.")

    def declaration(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """Return the declaration for the kit. Raises SandboxError."""
        kind = entry.get("type")
        if kind is not None and (not isinstance(kind, str) or kind not in _TYPES):
            raise self.invalid(
                f"has the type {str(kind)[:40]!r}; Gamebox takes stdio and http (streamable HTTP, the successor of sse)"
            )
        wanted = _TYPES.get(kind) if isinstance(kind, str) else None
        if ("command" in entry) == ("url" in entry) or (wanted is not None and wanted not in entry):
            raise self.invalid("needs either a command or a url")
        if "command" in entry:
            return {"command": self._command(entry), "env": self._texts(entry, "env")}
        url = self._text(entry["url"], "url")
        check_address(f"{self._where}: {self._name[:80]}", self._name[:80], url)
        return {"url": url, "headers": self._texts(entry, "headers")}

    def _command(self, entry: Mapping[str, Any]) -> str:
        program = self._text(entry["command"], "command")
        args = entry.get("args", [])
        if not isinstance(args, list) or not program.strip():
            raise self.invalid("needs a command, and args that are a list of texts")
        words = [self._text(each, "args") for each in args]
        if not words and " " in program:  # a whole command line, as --mcp takes it
            return program
        return f"exec {shlex.join([program, *words])}"

    def _texts(self, entry: Mapping[str, Any], key: str) -> dict[str, str]:
        entries = entry.get(key) or {}
        if not isinstance(entries, dict):
            raise self.invalid(f"needs {key} that are an object of texts")
        texts = {name: self._text(value, key) for name, value in entries.items()}
        for name, text in texts.items():
            if "\n" in text or "\r" in text:
                raise self.invalid(f"has several lines in {key}: {name[:80]}")
            if key == "headers" or is_secret(name):
                self._hide(name, text)
        return texts

    def _text(self, value: Any, key: str) -> str:
        if not isinstance(value, str):
            raise self.invalid(f"has a value in {key} that is not a text")

        def variable(found: re.Match[str]) -> str:
            name, default = found[1], found[2]
            if name in self._environ:
                if is_secret(name):  # HOME and the like must stay readable
                    self._hide(name, self._environ[name])
                return self._environ[name]
            if default is None:
                raise self.invalid(f"uses the variable {name}, which is not set here")
            return default

        return _VARIABLE.sub(variable, value)

    def _hide(self, name: str, value: str) -> None:
        self._secrets.extend((name, part) for part in credentials_of(value) if len(part) >= LEAST_CHARS)


def _read(path: Path, *, required: bool) -> bytes | None:
    """Return the content; None if the file is missing and not ``required``."""
    try:
        content = read_own_file(path, MAX_BYTES, NAMED if required else SETTINGS)
    except OwnFileError as error:
        raise bad_input(f"{path} {error}.", error.hint) from error
    if content is None and required:
        raise bad_input(f"--mcp-config: there is no file {path}.", "Name a file in the format of mcp.json.")
    return content
