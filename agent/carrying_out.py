"""Handing an action to an environment, so that an envelope comes back whatever the environment does."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from sandbox.envelope import Failure, Success, jsonable
from sandbox.environment.base import Environment
from sandbox.environment.host_actions import failure_of_exception
from sandbox.errors import SandboxError

from .actions import Action
from .envelopes import Envelope

log = logging.getLogger(__name__)


def carry_out(environment: Environment, action: Action, args: Mapping[str, Any]) -> Envelope:
    """The envelope. Environments promise not to raise; one that does all the same is answered for here."""
    try:
        result: Any = environment.execute_action(action, dict(args))
    except SandboxError as error:
        return Failure[Any].of(error).to_dict()
    except Exception as error:
        log.warning("the environment raised on %s", action.name, exc_info=True)
        return failure_of_exception(action.name, error, 0.0, idempotent=False).to_dict()
    if isinstance(result, Mapping) and isinstance(result.get("tool_executed"), bool):
        return dict(result)
    return Success(jsonable(result)).to_dict()
