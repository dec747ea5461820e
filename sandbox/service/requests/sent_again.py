"""Which requests are sent again whose answers are not kept, mostly of a service before this one: those that are not done twice."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

from sandbox.envelope import Failure
from sandbox.errors import ErrorCode
from sandbox.operations import OPERATIONS, Change
from sandbox.service.store.tables.requests import KnownRequest

# The guest knows the ids of this many requests for sure, and refuses to carry one of them out again.
MOST_LATER = 4000
# A second one finds it done, or makes the same of it; a checkpoint is known by its request.
_SAME_TWICE = frozenset({"mark", "checkpoint", "delete_checkpoint"})


def is_safe(connection: sqlite3.Connection, sandbox: str, known: KnownRequest, args: Mapping[str, Any]) -> bool:
    """Return whether to send a request again. A rollback is, unless anything else that changes the sandbox was sent after it."""
    later = connection.execute(
        "SELECT count(*) FROM requests WHERE sandbox = ? AND sent_at > ?", (sandbox, known.sent_at)
    ).fetchone()[0]
    kind = OPERATIONS.get(known.operation)
    if kind is not None and issubclass(kind, Change):
        return bool(later < MOST_LATER)
    if known.operation == "rollback":
        return not later
    return known.operation in _SAME_TWICE or (known.operation == "kill" and args.get("signal") is None)


def unknown_effects() -> Failure[Any]:
    """Return the answer to a request that is not sent again."""
    return Failure(
        ErrorCode.transfer_incomplete,
        "The request was sent before, by a service that has ended or long ago, and what became of it is not known.",
        "Look at what it should have changed before you send it again, with another request id.",
        effects="unknown",
    )
