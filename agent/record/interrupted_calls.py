"""Tool calls that were under way when a run was cut off: which may be carried out again, and the answers to the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent.errors import AgentErrorCode
from agent.record.store.run_record import CallRecord
from sandbox.envelope import Failure
from sandbox.environment.base import ActionLike
from sandbox.errors import ErrorCode
from sandbox.operations import OPERATIONS, Change

# Operations that change nothing, or to the same again: carried out once more they do no harm.
REPEATABLE = frozenset(name for name, request in OPERATIONS.items() if request.repeatable)


def is_repeatable(action: ActionLike) -> bool:
    """Return whether carrying out the action once more does no harm: it changes nothing, or resumes what it began."""
    metadata: Mapping[str, Any] = getattr(action, "metadata", None) or {}
    return bool(metadata.get("idempotent") or metadata.get("takes_up")) or getattr(action, "operation", None) in REPEATABLE


def request_id_of(action: ActionLike, run: str, step: int, index: int) -> str | None:
    """Return the id by which the sandbox recognizes the call if it comes again; None for calls that need none."""
    kind = OPERATIONS.get(str(getattr(action, "operation", None)))
    if kind is None or not issubclass(kind, Change):
        return None
    return f"{run}-{step}{f'.{index}' if index else ''}"[-64:]


def unknown(action: ActionLike) -> dict[str, Any]:
    """Return the answer to a call that may have been carried out."""
    return Failure[Any](
        AgentErrorCode.effects_unknown,
        f"The run was cut off during {action.name}: it is not known whether it was carried out, fully or in part.",
        "Find out first whether it was done; call it again only if it was not.",
        effects="unknown",
    ).to_dict()


def gone(action: ActionLike, before: CallRecord) -> dict[str, Any]:
    """Return the answer to a call of a sandbox that is gone."""
    began = before.started is not None
    return Failure[Any](
        AgentErrorCode.effects_unknown,
        f"The sandbox in which {action.name} {'was running' if began else 'was to run'} is gone; there is a new one.",
        "Look at the state of the new sandbox first: nothing that was done in the old one is there.",
        effects="unknown" if began else "none",
    ).to_dict()


def interrupted(tool: str) -> dict[str, Any]:
    """Return the answer to a call during which the run was interrupted."""
    return Failure[Any](
        ErrorCode.cancelled,
        f"The run was interrupted while {tool} was under way.",
        "Resume the run to see its outcome.",
        effects="unknown",
    ).to_dict()


def unrecorded(tool: str, reason: str) -> dict[str, Any]:
    """Return the answer to a call that was not carried out because it could not be recorded."""
    return Failure[Any](
        AgentErrorCode.log_unusable,
        f"{tool} was not carried out: {reason}",
        "Free some space or repair the log, then resume the run.",
    ).to_dict()
