"""Tool calls: carrying one out so that an envelope always comes back, and which calls of one reply may run side by side."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent.core.actions import carried_out_in
from agent.core.envelopes import Envelope
from sandbox.envelope import Failure, Success, jsonable
from sandbox.environment.base import ActionLike, Environment
from sandbox.environment.host_actions import failure_of_exception
from sandbox.errors import SandboxError
from sandbox.operations import OPERATIONS

from .turns import Call

log = logging.getLogger(__name__)


def carry_out(environment: Environment, action: ActionLike, args: Mapping[str, Any]) -> Envelope:
    """Have the environment carry out an action; returns its envelope.

    Environments promise not to raise. What one raises all the same becomes a failure here.
    """
    try:
        with carried_out_in(environment):
            result: Any = environment.execute_action(action, dict(args))
    except SandboxError as error:
        return Failure[Any].of(error).to_dict()
    except Exception as error:
        log.warning("the environment raised on %s", action.name, exc_info=True)
        return failure_of_exception(action.name, error, 0.0, idempotent=False).to_dict()
    if isinstance(result, Mapping) and isinstance(result.get("tool_executed"), bool):
        return dict(result)
    return Success(jsonable(result)).to_dict()


def is_terminal(call: Call) -> bool:
    """Whether the call ends the run if it succeeds."""
    return call.action is not None and bool(call.action.terminal)


def runs_beside_others(call: Call) -> bool:
    """Whether the call may run at the same time as its neighbours: a repeatable operation that neither changes files nor starts a
    process, and whose place does not matter.
    """
    operation = OPERATIONS.get(str(getattr(call.action, "operation", None)))
    if operation is None or operation.ordered:
        return False
    return operation.repeatable and not (operation.changes_files or operation.starts_process)


def groups(calls: Sequence[Call]) -> Iterator[tuple[Call, ...]]:
    """The calls of a reply in the order in which they are carried out; those of one group run side by side.

    Terminal calls come last, each alone.
    """
    group: list[Call] = []
    for call in sorted(calls, key=is_terminal):
        if group and not (runs_beside_others(call) and runs_beside_others(group[-1])):
            yield tuple(group)
            group = []
        group.append(call)
    if group:
        yield tuple(group)


def with_notices(envelope: Mapping[str, Any], notices: Sequence[Mapping[str, Any]]) -> Envelope:
    """The envelope with further notices."""
    return {**envelope, "notices": [*envelope.get("notices", ()), *notices]} if notices else dict(envelope)
