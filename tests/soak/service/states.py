"""The states of each action in which a service can be killed, as its store and the engine show them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_REQUESTED, _ACKNOWLEDGED = "asked for", "done, not yet answered"
_MADE = (_REQUESTED, "written down", "container there", "container runs", _ACKNOWLEDGED)
_COMMAND = (_REQUESTED, "written down", "command runs")
STATES: Mapping[str, tuple[str, ...]] = {
    "create": _MADE,
    "run": _COMMAND,
    "stream": _COMMAND,
    "background": _COMMAND,
    "upload": ("bytes on their way", "all bytes sent"),
    "pause": (_REQUESTED, "container paused", _ACKNOWLEDGED),
    "resume": (_REQUESTED, "container runs", _ACKNOWLEDGED),
    "checkpoint": (_REQUESTED, "written down", "kept"),
    "rollback": (_REQUESTED, "written down"),
    "fork": _MADE,
    "delete": (_REQUESTED, "written down", "container gone", _ACKNOWLEDGED),
}


@dataclass(slots=True)
class Doing:
    """A request that was sent: ``key`` is its id or idempotency key, ``box`` the sandbox, ``word`` what its command says."""

    action: str
    box: str = ""
    key: str = ""
    word: str = ""
    all_sent: bool = False


@dataclass(slots=True)
class Seen:
    """What the store has, and the engine, which is asked once."""

    store: sqlite3.Connection
    ask_engine: Callable[[], Mapping[str, str]]
    _containers: Mapping[str, str] | None = field(default=None)

    def container(self, ident: str) -> str | None:
        """Return the state of a container."""
        if self._containers is None:
            self._containers = self.ask_engine()
        return self._containers.get(ident)

    def row(self, query: str, *values: str) -> Any:
        """Return the first row of an answer of the store, or None."""
        return self.store.execute(query, values).fetchone()


def states_of(
    doing: list[Doing], store: Path, ask_engine: Callable[[], Mapping[str, str]]
) -> list[tuple[str, str]]:
    """Return action and state of each request."""
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True, timeout=5)) as connection:
        connection.row_factory = sqlite3.Row
        seen = Seen(connection, ask_engine)
        return [(each.action, _STATE[each.action](each, seen)) for each in doing if each.action in STATES]


def _of_creation(doing: Doing, seen: Seen) -> str:
    row = seen.row("SELECT answer, ident FROM creations JOIN sandboxes ON id = sandbox WHERE key = ?", doing.key)
    if row is None:
        return _REQUESTED
    if row["answer"] is not None:
        return _ACKNOWLEDGED
    container = seen.container(row["ident"])
    return "written down" if container is None else "container runs" if container == "running" else "container there"


def _of_request(doing: Doing, seen: Seen) -> str:
    row = seen.row("SELECT 1 FROM requests WHERE sandbox = ? AND id = ?", doing.box, doing.key)
    return _REQUESTED if row is None else "written down"


def _of_command(doing: Doing, seen: Seen) -> str:
    state = _of_request(doing, seen)
    return "command runs" if state != _REQUESTED and doing.word and _runs(doing.word.encode()) else state


def _runs(word: bytes) -> bool:
    """Return whether a process of this host has the word in its command."""
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word in place.read_bytes():
                return True
        except OSError:  # it has ended
            continue
    return False


def _of_checkpoint(doing: Doing, seen: Seen) -> str:
    kept = seen.row("SELECT 1 FROM checkpoints WHERE request = ?", doing.key) is not None
    return "kept" if kept else _of_request(doing, seen)


def _of_upload(doing: Doing, _: Seen) -> str:
    return "all bytes sent" if doing.all_sent else "bytes on their way"


def _of_pause(doing: Doing, seen: Seen) -> str:
    row = _sandbox(doing, seen)
    if row["state"] == "paused":
        return _ACKNOWLEDGED
    return "container paused" if seen.container(row["ident"]) == "paused" else _REQUESTED


def _of_resume(doing: Doing, seen: Seen) -> str:
    row = _sandbox(doing, seen)
    if row["state"] == "running":
        return _ACKNOWLEDGED
    return "container runs" if seen.container(row["ident"]) == "running" else _REQUESTED


def _of_deletion(doing: Doing, seen: Seen) -> str:
    row = _sandbox(doing, seen)
    if row is None:
        return _ACKNOWLEDGED
    if row["state"] != "deleting":
        return _REQUESTED
    return "container gone" if seen.container(row["ident"]) is None else "written down"


def _sandbox(doing: Doing, seen: Seen) -> Any:
    return seen.row("SELECT state, ident FROM sandboxes WHERE id = ?", doing.box)


_STATE: Mapping[str, Callable[[Doing, Seen], str]] = {
    "create": _of_creation,
    "run": _of_command,
    "stream": _of_command,
    "background": _of_command,
    "upload": _of_upload,
    "pause": _of_pause,
    "resume": _of_resume,
    "checkpoint": _of_checkpoint,
    "rollback": _of_request,
    "fork": _of_creation,
    "delete": _of_deletion,
}
