"""How a run ends, and the signals that cross the loop."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass


class RunStatus(StrEnum):
    """Every way in which a run can end."""

    finished = "finished"  # a terminal action was carried out
    rejected = "rejected"  # the agent says that the task cannot be done
    stopped = "stopped"  # a hook asked for it
    max_iterations = "max_iterations"
    max_seconds = "max_seconds"
    max_tokens = "max_tokens"
    max_cost = "max_cost"
    no_valid_action = "no_valid_action"  # too many replies in a row from which no action could be carried out
    unexpected = "unexpected"  # an answer was not the one that the script expected
    paused = "paused"  # by the user, or for an answer; a recorded run can be resumed
    stuck = "stuck"  # it went in circles, and went on after a warning
    cancelled = "cancelled"
    model_failed = "model_failed"
    environment_lost = "environment_lost"
    failed = "failed"  # a part of the agent raised an unexpected exception


@dataclass(frozen=True, slots=True)
class End:
    """How and why a run ends; ``error`` is an exception of a part, if one ended the run."""

    reason: str
    status: RunStatus
    result: Any = None
    error: Exception | None = None


class StopRun(Exception):  # noqa: N818 - a signal, not an error
    """Raised by a hook or a brain to end the run with a status and a reason."""

    def __init__(self, reason: str, status: RunStatus = RunStatus.stopped, result: Any = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status
        self.result = result

    @property
    def end(self) -> End:
        """The end that this asks for; its error is the exception that this was raised from."""
        cause = self.__cause__
        return End(self.reason, self.status, self.result, cause if isinstance(cause, Exception) else None)


# In a LanguageError's hint; the loop, which knows the tools, says which they are.
END_TOOL = "the one that ends the run"


class LanguageError(SandboxError):
    """A reply without a readable action; the model gets it as the answer, and the run continues."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(ErrorCode.unparsable_response, message, hint, retryable=True)
