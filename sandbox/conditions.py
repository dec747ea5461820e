"""Words about what is waited for: the condition as a clause, and why it did not come true."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .errors import ErrorCode
from .waits import cannot_send, how_it_ended
from .wording import Wording

Fields = Mapping[str, Any]


def clause(f: Fields) -> str:
    """What is waited for, from the fields of a fault: "port 8000 is open"."""
    if f.get("port") is not None:
        at = f" at {f['host']}" if f.get("host") else ""
        return f"port {f['port']} is open{at}"
    if f.get("log") is not None:
        return f"a line {'contains' if f.get('literal') else 'matches'} {f['log']!r}"
    if f.get("file") is not None:
        return f"{f['file']} contains {f['contains']!r}" if f.get("contains") else f"{f['file']} exists"
    return f"{f['id']} has ended" if f.get("id") else "it is ready"


def not_ready(f: Fields) -> Wording:
    """The wording of a wait whose time was over."""
    waited = f.get("waited")
    after = f"After {waited:.1f} s" if isinstance(waited, int | float) else "After the wait"
    ident = f.get("id")
    if ident is None:
        hint = "Give the id of the command that is to do it: then its output is shown here. Look at what runs with processes."
    elif f.get("running"):
        hint = f"See its last output in the result; wait on with wait_for, or end it with kill(id={ident!r})."
    else:
        hint = "The command has ended; what it left running may still do it: wait on, or look with processes."
    return Wording(f"{after} it is still not so that {clause(f)}.", hint, "processes" if ident is None else None, True)


def ended_first(f: Fields) -> Wording:
    """The wording of a wait that the end of its command ended."""
    return Wording(
        f"{f.get('id', 'The command')} {how_it_ended(f)} before {clause(f)}.",
        "Its last output is in the result: find out there why it ended, then run it again.",
        "run",
    )


FAULTS: dict[ErrorCode, Callable[[Fields], Wording]] = {
    ErrorCode.not_ready: not_ready,
    ErrorCode.command_ended: lambda f: ended_first(f) if f.get("operation") == "wait_for" else cannot_send(f),
}
