"""Count every request of a tenant and the bytes of its bodies, and say in the answer what is left."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandbox.service.places import Places

from .account import Account
from .ledger import Ledger
from .pace import Pace

_KEY = "visit"


class Visit:
    """A request on its way. It has no account until its key was read."""

    account: Account | None = None
    ledger: Ledger | None = None
    _held: ExitStack | None = None
    grow_up: Callable[[], None] | None = None
    """Ends what ``Pace.enter`` has begun."""

    def enter(self, account: Account, ledger: Ledger, keys: Places, key: str) -> None:
        """Count the request for a tenant and its key, once. Raises Problem if that is one too many."""
        if self.account is not None:
            return
        with ExitStack() as held:
            held.enter_context(keys.held(key, "This key"))
            account.enter()
            self.account, self.ledger, self._held = account, ledger, held.pop_all()

    def leave(self) -> None:
        """Count that the request has ended."""
        if self.account is not None:
            self.account.leave()
        if self._held is not None:
            self._held.close()
        if self.grow_up is not None:
            self.grow_up()

    async def wait(self, pace: Pace) -> None:
        """Wait until the request may go on, once."""
        if self.account is not None and self.grow_up is None:
            self.grow_up = await pace.enter(self.account.id)

    def count(self, data: bytes | str, *, may_refuse: bool = True) -> None:
        """Count bytes of a body. Raises Problem if they are too many, and more of them follow."""
        if self.account is not None and data and (over := self.account.transfer(len(data))) is not None and may_refuse:
            raise over

    def add_headers(self, message: Message) -> None:
        """Add what is left to the head of an answer."""
        if self.account is not None and self.ledger is not None:
            left = ((name.lower().encode(), value.encode()) for name, value in self.account.headers(self.ledger))
            message["headers"] = [*message.get("headers", ()), *left]


class Metering:
    """ASGI middleware. A body that goes over the quota of transfers is broken off: what follows would be a lie."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        visit = Visit()
        scope.setdefault("state", {})[_KEY] = visit

        async def counted_receive() -> Message:
            message = await receive()
            visit.count(_data(message))
            return message

        async def counted_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                visit.add_headers(message)
            else:
                visit.count(_data(message), may_refuse=bool(message.get("more_body")))
            await send(message)

        try:
            await self._app(scope, counted_receive, counted_send)
        finally:
            visit.leave()


def _data(message: Message) -> bytes | str:
    found: bytes | str = message.get("body") or message.get("bytes") or message.get("text") or b""
    return found


def visit_of(scope: Scope) -> Visit:
    """Return the visit of a request."""
    found: Visit = scope["state"][_KEY]
    return found
