"""Word refused and cut connections, and services that refused or failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandbox.guest.protocol.constants import REFUSED
from sandbox.readers import Hint, Phrase, limit, opened, phrased
from sandbox.text.wording import Wording, one_line

Fields = Mapping[str, Any]
NAME_CHARS = 120
# A model cannot ask anybody during a run; what it could not reach belongs in its final answer.
WITHOUT = (
    "Do without it: trying again does not help, and only the user can open it. If the task needs it, say so at the end."
)

_NOTHING_HELPS = {
    "asked": "Do without it: the user was asked about it, and has not opened it; asking again does not help.",
    "no_host": "Give the name of a host, or an address without a zone (as in fe80::1%eth0); no rule opens this.",
    "ceiling": "Do without it: the operator does not allow it, and no rule opens it. If the task needs it, say so at the end.",
}


def denied(f: Fields) -> Wording:
    """Word a page that could not be opened."""
    why = str(f.get("problem") or "").partition(REFUSED)[2] or "this sandbox has no network"
    return Wording(
        f"{f.get('host') or f.get('url')!r} cannot be reached: {why}.",
        Hint(
            f"{WITHOUT} Servers inside the sandbox do answer, at http://127.0.0.1:PORT/.",
            "Give the host with --allow; servers inside the sandbox answer at http://127.0.0.1:PORT/.",
            "Open the host with env.allow(...); servers inside the sandbox answer at http://127.0.0.1:PORT/.",
        ),
    )


def cut(f: Fields) -> tuple[str, str]:
    """Word the notice of a connection that was cut: (message, hint)."""
    address, port, whose, times = _whose(f)
    hint = (
        Hint(
            "Connect again, and send something more often than that (a keep-alive).",
            host="Connect again, and send something more often than that, or raise Limits(network_silent_seconds=...).",
        )
        if f.get("kind") == "silent"
        else _what_helps(f, address, port)
    )
    return f"The connection to {address}:{port} was cut{times}{whose}: {_field(f, 'why')}.", hint


def service_refused(f: Fields) -> tuple[str, str]:
    """Word the notice of a request that a service of the host does not allow: (message, hint)."""
    host, _, whose, times = _whose(f)
    listed = _field(f, "about")
    hints = {
        "method": (
            f"Use only {listed}, or say at the end that the task needs more"
            if listed
            else "Use GET, POST or another method that asks for something"
        ),
        "path": f"Ask for {listed}",
    }
    hint = hints.get(
        str(f.get("kind")),
        "Send a plain request: one path that begins with '/', without '..' or '#', and plain headers",
    )
    more = {"method": "methods", "path": "paths"}.get(str(f.get("kind")), "")
    asked = f", or open more in Service({more}=...)" if more and listed else ""
    return (
        f"{host} refused {_field(f, 'what')}{times}{whose}: {_field(f, 'why')}.",
        Hint(
            f"{hint}; asking again does not help.",
            host=f"{hint}{asked}; asking again does not help.",
        ),
    )


def service_failed(f: Fields) -> tuple[str, str]:
    """Word the notice of a service that is allowed and could not answer: (message, hint)."""
    host, port, whose, times = _whose(f)
    what = _field(f, "what") or f"a connection to its port {port}"
    hint = (
        "Send fewer requests at once, and try again when some have been answered."
        if f.get("kind") == "busy"
        else "This is not a matter of permission. Try again later, or do without it and say so at the end."
    )
    return f"{host} could not serve {what}{times}{whose}: {_field(f, 'why')}.", hint


def _field(f: Fields, name: str) -> str:
    return one_line(str(f.get(name) or ""))[: 2 * NAME_CHARS]


def _whose(f: Fields) -> tuple[str, Any, str, str]:
    """Return host, port, which command's connection it was, and how often."""
    host, port = one_line(str(f.get("host")))[:NAME_CHARS], f.get("port")
    whose = f" (from the command {f.get('id')})" if f.get("elsewhere") else ""
    if f.get("id") == "browser":
        whose = " (from a page in the browser)"
    if not f.get("certain"):
        whose = f" (from {f.get('id')} or another running command)"
    count = f.get("count")
    times = f", {count} times" if isinstance(count, int) and count > 1 else ""
    return f"[{host}]" if ":" in host else host, port, whose, times


def refusal(f: Fields) -> tuple[str, str]:
    """Word the notice of a refused connection: (message, hint)."""
    address, port, whose, times = _whose(f)
    return (
        f"A connection to {address}:{port} was refused{times}{whose}: {_field(f, 'why')}.",
        _what_helps(f, address, port),
    )


def _what_helps(f: Fields, host: str, port: Any) -> str:
    about = _field(f, "about")
    kind = f.get("kind")
    if kind == "limit" and about == "network_bytes":
        return _only_user("raise {what}", limit("network_bytes"))
    if kind == "limit" and about == "network_questions":
        return _only_user("open what is needed beforehand with {what}; no more questions are asked", opened())
    if kind == "limit":
        fewer = "Open fewer connections at once, and try again when others have ended"
        return phrased(f"{fewer}{{more}}.", more=Phrase("", "", f", or raise Limits({about}=...)" if about else ""))
    if kind == "service_port":
        return f"Use port {about} of it; no rule opens another one."
    if kind == "not_brought":
        return Hint(WITHOUT, host=f"Bring it along with attach({about}=...); no rule opens it.")
    if kind in _NOTHING_HELPS:
        return _NOTHING_HELPS[kind]
    if kind == "closed_by":
        return _only_user("lift that with {what}", opened(about))
    rule = host if port in (80, 443) else f"{host}:{port}"
    if kind == "closed_address" and about:
        rule = f"[{about}]:{port}" if ":" in about else f"{about}:{port}"
    return _only_user("open it with {what}", opened(rule))


def _only_user(how: str, what: Phrase) -> Hint:
    """Return advice that only a person can follow; a model, which cannot ask anybody during a run, is advised to go on without."""
    cli, host = (how.format(what=words) for words in (what.cli, what.host))
    more = "trying again without that does not help."
    return Hint(WITHOUT, f"To allow it, {cli}; {more}", f"To allow it, {host}; {more}")
