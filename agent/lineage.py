"""Which run this is, and of which run it is a part: the runs of a tree told apart, for records of them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lineage:
    """One run of a tree. ``parent_id`` is None and ``depth`` 0 for the first."""

    run_id: str
    agent: str = ""
    parent_id: str | None = None
    depth: int = 0


_lineage: ContextVar[Lineage | None] = ContextVar("gamebox_lineage", default=None)


def current() -> Lineage | None:
    """The run around the caller; None outside of ``within``."""
    return _lineage.get()


@contextmanager
def within(agent: str, run_id: str | None = None) -> Iterator[Lineage]:
    """A run of ``agent``, a part of the run around the caller if there is one. An id is made up unless it is given."""
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
