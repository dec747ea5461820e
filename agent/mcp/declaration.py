"""What a declaration of a server may be: its name, its keys and its address."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from sandbox.errors import ErrorCode, SandboxError

SERVER_NAME = re.compile(r"[a-z][a-z0-9-]{0,23}")
NAME_RULE = "lower-case letters, digits and -, at most 24, beginning with a letter"
KEYS = {"command", "cwd", "env", "url", "headers", "tools", "timeout_seconds", "optional"}
_EXAMPLE = "https://tracker.example.com/mcp"


def server_name(name: str) -> str:
    """Return the name that is nearest to ``name`` as another client has it; empty if there is none."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:24].rstrip("-")
    return plain if SERVER_NAME.fullmatch(plain) else ""


def shown_address(url: str) -> str:
    """Return ``url`` without its query, in which some servers take a key."""
    return url.partition("?")[0]


def check_address(where: str, name: str, url: str) -> None:
    """Raise SandboxError ``invalid_configuration`` unless ``url`` is an address of http or https without a password."""
    try:
        parts = urlsplit(url)
        host, has_credentials = parts.hostname, parts.username is not None or parts.password is not None
    except ValueError:
        host, has_credentials, parts = None, False, urlsplit("")
    if has_credentials:
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"{where}: the address has a user or a password in it, which everybody on this host could read.",
            f"Put it into a variable, and send it with --mcp-header {name}:Authorization=VARIABLE.",
        )
    if parts.scheme not in ("http", "https") or not host or re.search(r"\s", url):
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"{where}: {url[:200]!r} is not an http or https address.",
            f"Write it as in {_EXAMPLE}.",
        )


def require_sdk() -> None:
    """Raise SandboxError ``invalid_configuration`` without the SDK, which is an extra."""
    try:
        import mcp.types.version  # noqa: F401 - missing in the SDK before 2.0
    except ImportError as error:
        raise SandboxError(
            ErrorCode.invalid_configuration,
            "MCP servers need the package mcp, 2.3 or newer, which is not installed.",
            "Install it: pip install 'gamebox[mcp]'.",
        ) from error
