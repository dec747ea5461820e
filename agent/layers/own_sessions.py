"""Shell sessions of an agent's own, in a sandbox that it shares with other agents."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from agent.core.environment_wrapper import WrappedEnvironment
from sandbox.envelope import Envelope
from sandbox.environment.base import ActionLike, Environment
from sandbox.environment.call_errors import check_request
from sandbox.operations import HostArguments, Request
from sandbox.pipe.watching import Watch

_DEFAULT = "default"
_NAME_CHARS = 64
_NAMING = ("run", "open_session", "end_session")


class OwnSessions(WrappedEnvironment):
    """Forwards to ``inner``, with each session replaced by one of this agent's own: agents do not see or change each other's
    folder and variables. In ``inner`` their names begin with ``prefix``, which is also the name of the session without
    one. ``describe`` says who gave the agent its task (``above``).
    """

    def __init__(self, inner: Environment, prefix: str, above: str) -> None:
        super().__init__(inner)
        self.prefix = prefix
        self._above = above
        self._used: set[str] = set()

    def execute_action(self, action: ActionLike, args: Any) -> dict[str, Any]:
        return self.inner.execute_action(action, self._own(getattr(action, "operation", None), args))

    def execute(self, operation: str, args: Mapping[str, Any], *, watch: Watch | None = None) -> Envelope[Any]:
        return self.inner.execute(operation, self._own(operation, args), watch=watch)

    def perform(self, request: Request, watch: Watch | None = None) -> Envelope[Any]:
        check_request(request, watch)
        own = self._own(request.operation, {"session": getattr(request, "session", None)})
        if request.operation in _NAMING:
            request = request.model_copy(update=own)
        return super().perform(request, watch)

    def describe(self) -> dict[str, str]:
        """Return the sections of ``inner``, and whose task this is."""
        return {**self.inner.describe(), "delegation": f"The agent {self._above} gave you this task and will read your result."}

    def used(self, action: ActionLike | None, args: Any) -> None:
        """Note the session of a call from an earlier process as one of the agent's own."""
        self._own(getattr(action, "operation", None), args)

    def end(self) -> None:
        """End the sessions that were used."""
        for name in sorted(self._used):
            self.inner.execute("end_session", {"session": name})
        self._used.clear()

    def _own(self, operation: Any, args: Any) -> Any:
        """Return the arguments with the name that the session has in ``inner``."""
        if operation not in _NAMING or not isinstance(args, Mapping):
            return args
        name = args.get("session", _DEFAULT if operation == "run" else None)
        if not isinstance(name, str) or not name:
            return args
        if len(name) > _NAME_CHARS:
            return args  # which is refused
        own = f"{self.prefix}.{name}" if name != _DEFAULT else self.prefix
        if len(own) > _NAME_CHARS:
            own = f"{self.prefix}.{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"
        self._used.add(own)
        replaced = {**args, "session": own}
        return HostArguments(replaced) if isinstance(args, HostArguments) else replaced
