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
    rule = shown if port in (80, 443) else f"{shown}:{port}"
    whose = "" if f.get("certain") else f" (asked for by {f.get('id')} or another command that runs)"
    count = f.get("count")
    times = f", {count} times" if isinstance(count, int) and count > 1 else ""
    return (
        f"A connection to {shown}:{port} was refused{times}{whose}: {one_line(str(f.get('why')))}.",
        f"Do without it, or ask the user to open it with env.allow({rule!r}); trying again does not help.",
    )
