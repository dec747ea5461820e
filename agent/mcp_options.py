"""MCP servers as a command line names them, beside those that an agent declares itself."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from sandbox.cli.errors import bad_input
from sandbox.text.masking import LEAST_CHARS, credentials_of

from .hub import AgentSpec

KIT = "mcp"
_NAME = re.compile(r"[a-z][a-z0-9-]{0,23}")
_HEADER = re.compile(r"[A-Za-z0-9-]{1,100}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_EXAMPLES = "--mcp notes='python3 -m notes_server' or --mcp tracker=https://tracker.example.com/mcp"


@dataclass(frozen=True, kw_only=True)
class Servers:
    """Declarations by name, as the kit ``mcp`` has them. ``told`` is what they are in words, without any value of a header;
    ``secrets`` are such values, by the names of the variables that they are from.
    """

    declared: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    secrets: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    told: str = ""

    @property
    def urls(self) -> tuple[str, ...]:
        """The addresses: the user has named them."""
        return tuple(str(each["url"]) for each in self.declared.values() if "url" in each)


def servers_of(given: Sequence[str], headers: Sequence[str], environ: Mapping[str, str]) -> Servers:
    """The servers of NAME=COMMAND or NAME=ADDRESS each, with headers of NAME:HEADER=VARIABLE each, whose values are in ``environ``.

    Raises SandboxError ``invalid_configuration``; it never has the value of a header in it.
    """
    declared: dict[str, dict[str, Any]] = {}
    for text in given:
        name, declaration = _server(text)
        if name in declared:
            raise bad_input(f"--mcp names the server {name!r} twice.", "Give each server a name of its own.")
        declared[name] = declaration
    secrets: list[tuple[str, str]] = []
    for text in headers:
        variable, value = _add_header(text, declared, environ)
        secrets += [(variable, part) for part in credentials_of(value) if len(part) >= LEAST_CHARS]
    return Servers(declared=declared, secrets=tuple(secrets), told="; ".join([*sorted(given), *sorted(headers)]))


def with_servers(spec: AgentSpec, servers: Servers) -> AgentSpec:
    """``spec`` with these servers. One that it declares with the same address keeps what else is declared of it.

    Raises SandboxError ``invalid_configuration`` for an agent that only reads: a server could write for it.
    """
    if not servers.declared:
        return spec
    if spec.read_only:
        raise bad_input(
            f"--mcp has no effect with the agent {spec.name}: it only reads, and a server could write for it.",
            "Choose an agent that may write, or leave --mcp out.",
        )
    own = spec.kit_options.get(KIT, {}).get("servers") or {}
    merged = {**own, **{name: _merged(own.get(name), each) for name, each in servers.declared.items()}}
    options = {**spec.kit_options, KIT: {**spec.kit_options.get(KIT, {}), "servers": merged}}
    actions = spec.actions if KIT in spec.actions else (*spec.actions, KIT)
    return replace(spec, actions=actions, kit_options=options)


def _merged(own: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(own, Mapping) or own.get("url") != given.get("url") or "url" not in given:
        return dict(given)
    return {**own, **given, "headers": {**(own.get("headers") or {}), **given.get("headers", {})}}


def _server(text: str) -> tuple[str, dict[str, Any]]:
    name, equals, what = text.partition("=")
    what = what.strip()
    if not equals or not what:
        raise bad_input(f"--mcp {text[:200]!r} is not NAME=COMMAND or NAME=ADDRESS.", f"Write it as in {_EXAMPLES}.")
    if not _NAME.fullmatch(name):
        raise bad_input(
            f"--mcp: {name[:80]!r} is no name for a server.",
            f"Use small letters, digits and -, at most 24, as in {_EXAMPLES}.",
        )
    if "://" not in what.split()[0]:
        return name, {"command": what}
    _check_address(name, what)
    return name, {"url": what}


def _check_address(name: str, url: str) -> None:
    try:
        parts = urlsplit(url)
        host, has_credentials = parts.hostname, parts.username is not None or parts.password is not None
    except ValueError:
        host, has_credentials, parts = None, False, urlsplit("")
    if has_credentials:
        raise bad_input(
            f"--mcp {name}: the address has a user or a password in it, which everybody on this host could read.",
            f"Put it into a variable, and send it with --mcp-header {name}:Authorization=VARIABLE.",
        )
    if parts.scheme not in ("http", "https") or not host or re.search(r"\s", url):
        raise bad_input(f"--mcp {name}: {url[:200]!r} is no address of http or https.", f"Write it as in {_EXAMPLES}.")


def _add_header(text: str, declared: Mapping[str, dict[str, Any]], environ: Mapping[str, str]) -> tuple[str, str]:
    form = "Write NAME:HEADER=VARIABLE, as in --mcp-header tracker:Authorization=TRACKER_TOKEN: the value stands in that variable."
    target, equals, variable = text.partition("=")
    name, colon, header = target.partition(":")
    header = header.strip()
    if not equals or not colon or not _HEADER.fullmatch(header):
        raise bad_input(f"--mcp-header {target[:80]!r}... names no server and header.", form)
    if not _VARIABLE.fullmatch(variable):  # what stands there may be the secret itself: it is not shown
        raise bad_input(f"--mcp-header {name}:{header} is given a value; it takes the name of a variable.", form)
    if name not in declared:
        known = ", ".join(declared) or "none"
        raise bad_input(f"--mcp-header {name}:{header} is for a server that --mcp does not name.", f"It names: {known}.")
    if "url" not in declared[name]:
        raise bad_input(
            f"--mcp-header {name}:{header}: the server {name} is a command, and gets no headers.",
            "Leave it out, or give the server's address.",
        )
    value = environ.get(variable, "")
    if not value.strip() or "\n" in value or "\r" in value:
        what = "is not set here" if not value.strip() else "holds several lines"
        raise bad_input(f"--mcp-header {name}:{header}: the variable {variable} {what}.", f"Export {variable} first.")
    declared[name].setdefault("headers", {})[header] = value
    return variable, value


