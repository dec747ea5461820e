"""Forget what is old, a little at a time: who waits for the store waits for one piece of that, and not for all of it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable
from functools import partial

from .database import Database
from .tables import requests, sandboxes

# Rows that are forgotten at once, in 2 ms, and the time between.
PIECE, PAUSE_SECONDS = 500, 0.02
# Creations, events and requests without an answer of longer ago are forgotten; of those with one there are many more.
REMEMBERED_SECONDS, ANSWERED_SECONDS = 86400.0, 900.0


async def in_pieces(database: Database, forget: Callable[[sqlite3.Connection, int], int]) -> None:
    """Have ``forget(connection, most)``, which returns how much it did, called until it does less than ``most``."""
    while await database.call(lambda connection: forget(connection, PIECE)) >= PIECE:  # noqa: ASYNC110
        await asyncio.sleep(PAUSE_SECONDS)


async def forget_old(database: Database, idents: Iterable[str], at: float) -> None:
    """Forget what is too old at that time: requests to the sandboxes, creations and events. Raises SandboxError."""
    before, answered_before = at - REMEMBERED_SECONDS, at - ANSWERED_SECONDS
    for ident in idents:
        await in_pieces(database, partial(_forget_requests, ident, before, answered_before))
    await database.call(lambda connection: requests.forget_creations(connection, before))
    await database.call(lambda connection: sandboxes.forget_events(connection, before))


def _forget_requests(ident: str, before: float, answered_before: float, connection: sqlite3.Connection, piece: int) -> int:
    return requests.forget(connection, ident, before, answered_before, piece)
