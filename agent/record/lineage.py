"""The current run, and the run that it is a part of. Records use this to tell the runs of a tree apart."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from sandbox.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Lineage:
    """One run of a tree. For the first one, ``parent_id`` is None and ``depth`` is 0."""

    run_id: str
    agent: str = ""
    parent_id: str | None = None
    depth: int = 0


_lineage: ContextVar[Lineage | None] = ContextVar("gamebox_lineage", default=None)


def current() -> Lineage | None:
    """Return the run around the caller, or None outside of ``within``."""
    return _lineage.get()


@contextmanager
def within(agent: str, run_id: str | None = None) -> Iterator[Lineage]:
    """Enter a run of ``agent``, as a part of the run around the caller if there is one. Without ``run_id``, an id is made up."""
    parent = _lineage.get()
    made = Lineage(
        run_id or secrets.token_hex(8),
        agent,
        None if parent is None else parent.run_id,
        0 if parent is None else parent.depth + 1,
    )
    token = _lineage.set(made)
    try:
        yield made
    finally:
        _lineage.reset(token)
