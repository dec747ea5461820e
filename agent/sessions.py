"""An environment in which an agent has shell sessions of its own, in a sandbox that others work in, too."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from sandbox.envelope import Envelope
from sandbox.environment.base import ActionLike, Environment
from sandbox.environment.call_errors import check_request
from sandbox.operations import HostArguments, Request
from sandbox.pipe.watching import Watch

from .wrapped import WrappedEnvironment

_DEFAULT = "default"
_NAME_CHARS = 64
_NAMING = ("run", "open_session", "end_session")


class OwnSessions(WrappedEnvironment):
    """``inner``, where each session that is named, or left out, is one of this agent's own: folder and variables of the others'
    are neither seen nor changed. Its description tells who gave it its task. ``prefix`` begins their names in ``inner``, and
    is that of the session without a name.
    """

    def __init__(self, inner: Environment, prefix: str, above: str) -> None:
        super().__init__(inner)
        self.prefix = prefix
        self._above = above
        self._used: set[str] = set()

    def execute_action(self, action: ActionLike, args: Any) -> dict[str, Any]:
        """See the base class."""
        return self.inner.execute_action(action, self._own(getattr(action, "operation", None), args))

    def execute(self, operation: str, args: Mapping[str, Any], *, watch: Watch | None = None) -> Envelope[Any]:
        """See the base class."""
        return self.inner.execute(operation, self._own(operation, args), watch=watch)

    def perform(self, request: Request, watch: Watch | None = None) -> Envelope[Any]:
        """See the base class."""
        check_request(request, watch)
        own = self._own(request.operation, {"session": getattr(request, "session", None)})
        if request.operation in _NAMING:
            request = request.model_copy(update=own)
        return super().perform(request, watch)

    def describe(self) -> dict[str, str]:
        """What ``inner`` says, and whose task this is."""
        return {**self.inner.describe(), "delegation": f"The agent {self._above} gave you this task and reads how you end."}

    def used(self, action: ActionLike | None, args: Any) -> None:
        """Take the session of this call for one of the agent's own, used in an earlier process."""
        self._own(getattr(action, "operation", None), args)

    def end(self) -> None:
        """Forget the sessions that were used."""
        for name in sorted(self._used):
            self.inner.execute("end_session", {"session": name})
        self._used.clear()

    def _own(self, operation: Any, args: Any) -> Any:
        """The arguments with the session as it is called in ``inner``."""
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
