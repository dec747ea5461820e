"""Words about refused connections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .wording import Wording, one_line

Fields = Mapping[str, Any]
NAME_CHARS = 120


def denied(f: Fields) -> Wording:
    """Of a page that could not be opened."""
    why = str(f.get("problem") or "").partition(" is refused by the sandbox: ")[2] or "this sandbox has no network"
    return Wording(
        f"{f.get('host') or f.get('url')!r} cannot be reached: {why}.",
        "Do without, or ask the user to open that host; servers inside the sandbox answer, as http://127.0.0.1:PORT/.",
    )


def refusal(f: Fields) -> tuple[str, str]:
    """The notice of a refused connection: (message, hint)."""
    host, port = one_line(str(f.get("host")))[:NAME_CHARS], f.get("port")
    shown = f"[{host}]" if ":" in host else host
    whose = f" to {f.get('id')}, which runs by itself" if f.get("elsewhere") else ""
    if not f.get("certain"):
        whose = f" (asked for by {f.get('id')} or another command that runs)"
    count = f.get("count")
    times = f", {count} times" if isinstance(count, int) and count > 1 else ""
    return (
        f"A connection to {shown}:{port} was refused{times}{whose}: {one_line(str(f.get('why')))}.",
        _what_helps(f, shown, port),
    )


def _what_helps(f: Fields, host: str, port: Any) -> str:
    about = one_line(str(f.get("about") or ""))[: 2 * NAME_CHARS]
    kind = f.get("kind")
    if kind == "limit" and about == "network_bytes":
        return "Do without it, or ask the user for a sandbox with more in Limits(network_bytes=...); trying again does not help."
    if kind == "limit":
        more = f", or ask the user for a sandbox with more in Limits({about}=...)" if about else ""
        return f"Open fewer connections at once, and try again when others have ended{more}; no rule changes that."
    if kind == "service_port":
        return f"Use port {about} of it; no rule opens another one."
    if kind == "no_host":
        return "Give the name of a host or an address."
    if kind == "closed_by":
        return (
            f"The user has closed it. Do without it, or ask the user to lift that with env.allow({about!r}); "
            "trying again does not help."
        )
    rule = host if port in (80, 443) else f"{host}:{port}"
    if kind == "closed_address" and about:
        rule = f"[{about}]:{port}" if ":" in about else f"{about}:{port}"
    return f"Do without it, or ask the user to open it with env.allow({rule!r}); trying again does not help."
