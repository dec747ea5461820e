"""The MCP servers that the user names: on the command line and in ``mcp.json``, beside those that an agent declares itself."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus, urlsplit

from agent.hub import AgentSpec
from agent.mcp.declaration import SERVER_NAME, check_address, shown_address
from sandbox.cli.errors import bad_input
from sandbox.frozen import dataclass
from sandbox.text.masking import LEAST_CHARS, credentials_of

from .mcp_config import is_secret, load_servers

KIT = "mcp"
_HEADER = re.compile(r"[A-Za-z0-9-]{1,100}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_EXAMPLES = "--mcp notes='python3 -m notes_server' or --mcp tracker=https://tracker.example.com/mcp"


@dataclass(frozen=True, kw_only=True)
class Servers:
    """Servers by name, as the kit ``mcp`` declares them.

    ``description`` has no value of a header or variable; ``secrets`` are such values, by the names of the variables that they are
    from. ``requested`` is whether the user named a server or a file for this run; a file for every run does not count.
    """

    declared: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    secrets: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    description: str = ""
    requested: bool = True

    @property
    def urls(self) -> tuple[str, ...]:
        """The addresses: the user named them, so they may be called from the host."""
        return tuple(str(each["url"]) for each in self.declared.values() if "url" in each)


def servers_of(
    commands: Sequence[str], headers: Sequence[str], environ: Mapping[str, str], config: Path | None = None
) -> Servers:
    """Parse ``commands`` (NAME=COMMAND or NAME=ADDRESS) and ``headers`` (NAME:HEADER=VARIABLE), and add the servers of ``config``.

    The command line takes precedence over the file. Raises SandboxError ``invalid_configuration``, without the value of a header.
    """
    declared: dict[str, dict[str, Any]] = {}
    for text in commands:
        name, declaration = _server(text)
        if name in declared:
            raise bad_input(f"--mcp names the server {name!r} twice.", "Give each server a name of its own.")
        declared[name] = declaration
    file = load_servers(config, environ)
    declared = {**file.declared, **declared}
    secrets = [*file.secrets, *_keys_in_addresses(declared)]
    for text in headers:
        variable, value = _add_header(text, declared, environ)
        secrets += [(variable, part) for part in credentials_of(value) if len(part) >= LEAST_CHARS]
    description = [*(shown_address(c) if "://" in c.split()[0] else c for c in sorted(commands)), *sorted(headers)]
    if file.declared:
        description.append(f"mcp.json {_digest(file.declared)}")
    return Servers(
        declared=declared,
        secrets=tuple(secrets),
        description="; ".join(description),
        requested=bool(commands or headers or config),
    )


def _keys_in_addresses(declared: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return the values in the queries of addresses that are secrets by their names, as they are sent and as they are meant."""
    queries = [query for each in declared.values() for query in urlsplit(str(each.get("url", ""))).query.split("&")]
    named = [(name, value) for name, _, value in (query.partition("=") for query in queries) if is_secret(name)]
    return [(name, form) for name, value in named for form in {value, unquote_plus(value)} if len(form) >= LEAST_CHARS]


def _digest(declared: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what tells one file from another; of headers and variables only the names count, for a value may be a secret."""
    public = {
        name: {key: sorted(value) if key in ("headers", "env") else value for key, value in each.items()}
        for name, each in declared.items()
    }
    return hashlib.sha256(json.dumps(public, sort_keys=True).encode()).hexdigest()[:16]


def with_servers(spec: AgentSpec, servers: Servers) -> AgentSpec:
    """Return ``spec`` with these servers. One that it declares with the same address keeps what else it declares of it.

    An agent that only reads gets none, because a server could write for it: raises SandboxError ``invalid_configuration`` if the
    user requested one. Servers that the user did not request are left out for such agents, and for those that use no model.
    """
    if not servers.declared or (not servers.requested and (spec.read_only or not spec.needs_model)):
        return spec
    if spec.read_only:
        raise bad_input(
            f"--mcp has no effect with the agent {spec.name}: it only reads, and a server could write for it.",
            "Choose an agent that may write, or leave --mcp and --mcp-config out.",
        )
    own = spec.kit_options.get(KIT, {}).get("servers") or {}
    merged = {**own, **{name: _merged(own.get(name), each) for name, each in servers.declared.items()}}
    options = {**spec.kit_options, KIT: {**spec.kit_options.get(KIT, {}), "servers": merged}}
    actions = spec.actions if KIT in spec.actions else (*spec.actions, KIT)
    return replace(spec, actions=actions, kit_options=options)


def _merged(own: Any, named: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(own, Mapping) or own.get("url") != named.get("url") or "url" not in named:
        return dict(named)
    return {**own, **named, "headers": {**(own.get("headers") or {}), **named.get("headers", {})}}


def _server(text: str) -> tuple[str, dict[str, Any]]:
    name, equals, what = text.partition("=")
    what = what.strip()
    if not equals or not what:
        raise bad_input(f"--mcp {text[:200]!r} is not NAME=COMMAND or NAME=ADDRESS.", f"Write it as in {_EXAMPLES}.")
    if not SERVER_NAME.fullmatch(name):
        raise bad_input(
            f"--mcp: {name[:80]!r} is not a valid name for a server.",
            f"Use lower-case letters, digits and -, at most 24, as in {_EXAMPLES}.",
        )
    if "://" not in what.split()[0]:
        return name, {"command": what}
    check_address(f"--mcp {name}", name, what)
    return name, {"url": what}


def _add_header(text: str, declared: Mapping[str, dict[str, Any]], environ: Mapping[str, str]) -> tuple[str, str]:
    form = "Write NAME:HEADER=VARIABLE, as in --mcp-header tracker:Authorization=TRACKER_TOKEN: the value stands in that variable."
    target, equals, variable = text.partition("=")
    name, colon, header = target.partition(":")
    header = header.strip()
    if not equals or not colon or not _HEADER.fullmatch(header):
        raise bad_input(f"--mcp-header {target[:80]!r}... does not name a server and a header.", form)
    if not _VARIABLE.fullmatch(variable):  # it may be the secret itself, so it is not quoted
        raise bad_input(f"--mcp-header {name}:{header} is given a value; it takes the name of a variable.", form)
    if name not in declared:
        known = ", ".join(declared) or "none"
        raise bad_input(
            f"--mcp-header {name}:{header} is for a server that --mcp does not name.", f"It names: {known}."
        )
    if "url" not in declared[name]:
        raise bad_input(
            f"--mcp-header {name}:{header}: the server {name} is a command, and gets no headers.",
            "Leave it out, or give the server's address.",
        )
    value = environ.get(variable, "")
    if not value.strip() or "\n" in value or "\r" in value:
        what = "is not set here" if not value.strip() else "has several lines"
        raise bad_input(f"--mcp-header {name}:{header}: the variable {variable} {what}.", f"Export {variable} first.")
    declared[name].setdefault("headers", {})[header] = value
    return variable, value
