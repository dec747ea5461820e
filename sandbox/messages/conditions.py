"""Words about what is waited for: the condition as a clause, and why it did not come true."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sandbox.errors import ErrorCode
from sandbox.text.wording import Wording, duration

from .waiting import cannot_send, how_it_ended

Fields = Mapping[str, Any]


def unmet(f: Fields, still: str = "") -> str:
    """What has not come true, from the fields of a fault: "port 8000 is not open"; ``still`` is "still " or ""."""
    if f.get("port") is not None:
        at = f" at {f['host']}" if f.get("host") else ""
        return f"port {f['port']} is {still}not open{at}"
    if f.get("log") is not None:
        return f"{still}no line of its output {'contains' if f.get('literal') else 'matches'} {f['log']!r}"
    if f.get("file") is not None:
        return f"{f['file']} {still}does not " + (f"contain {f['contains']!r}" if f.get("contains") else "exist")
    return f"{f['id']} is still running" if f.get("id") else f"it is {still}not ready"


def not_ready(f: Fields) -> Wording:
    """The wording of a wait whose time was over."""
    waited = f.get("waited")
    after = f"After {duration(round(waited, 1))}" if isinstance(waited, int | float) else "After the wait"
    ident = f.get("id")
    if ident is None:
        hint = (
            "See with processes what runs. Give wait_for the id of the command that should do it, and its output is shown here."
        )
    elif f.get("running"):
        hint = f"{ident} is still running. Call wait_for again, or end it with kill(id={ident!r})."
    else:
        hint = "The command has ended. What it left running may still do it: wait again, or look with processes."
    return Wording(f"{after} {unmet(f, 'still ')}.", hint, "processes" if ident is None else None, True)


def ended_first(f: Fields) -> Wording:
    """The wording of a wait that the end of its command ended."""
    return Wording(
        f"{f.get('id', 'The command')} {how_it_ended(f)}, and {unmet(f)}.",
        "Its last output says why it ended. Correct that, then run it again.",
        "run",
    )


FAULTS: dict[ErrorCode, Callable[[Fields], Wording]] = {
    ErrorCode.not_ready: not_ready,
    ErrorCode.command_ended: lambda f: ended_first(f) if f.get("operation") == "wait_for" else cannot_send(f),
}
