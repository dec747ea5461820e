"""The outermost layer of the application: when a request is over, it says so to the log, the audit, the metrics and the trace."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandbox.service.clock import now
from sandbox.service.store.tables.audit import AuditEntry

from .facts import PORT_ROUTE, Facts, facts_of
from .logs import current_request, log_event

log = logging.getLogger("sandbox.service.requests")

# Requests of monitors, which come every few seconds: they are logged if they fail.
_OF_MONITORS = frozenset({"/healthz", "/readyz", "/metrics"})
# The client has left before the answer: as nginx counts it.
LEFT = 499
# Wrong keys are of no tenant, and locked out after a while; a caller that is locked out is no news any more.
_DENIED = (401, 403)

Watcher = Callable[[Facts], None]
# Is entered with the scope before a request, and called with what became of it.
Span = Callable[[Scope], AbstractContextManager[Callable[[Facts], None]]]


class Observer:
    """Passes requests on and tells the ``watchers`` of each that is over."""

    def __init__(self, app: ASGIApp, watchers: Sequence[Watcher], span: Span | None = None) -> None:
        self._app, self._watchers, self._span = app, watchers, span or _no_span

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        answered: tuple[int, str] = (0, "")

        async def noting_send(message: Message) -> None:
            nonlocal answered
            kind = message["type"]
            if kind in ("http.response.start", "websocket.http.response.start"):
                headers = dict(message.get("headers") or ())
                answered = (message["status"], headers.get(b"location", b"").decode("latin-1"))
            elif kind == "websocket.accept":
                answered = (101, "")
            elif kind == "websocket.close" and not answered[0]:
                answered = (403, "")
            await send(message)

        state = scope.setdefault("state", {})
        token = current_request.set(state)
        try:
            with self._span(scope) as tell:
                try:
                    await self._app(scope, receive, noting_send)
                except Exception:
                    answered = answered if answered[0] else (500, "")
                    state.setdefault("code", "internal_error")
                    raise
                except asyncio.CancelledError:
                    state.setdefault("code", "cancelled")
                    raise
                finally:
                    status, location = answered
                    facts = facts_of(scope, status or LEFT, location, time.monotonic() - began)
                    tell(facts)
                    for watcher in self._watchers:
                        watcher(facts)
        finally:
            current_request.reset(token)


def _no_span(scope: Scope) -> AbstractContextManager[Callable[[Facts], None]]:  # noqa: ARG001
    return nullcontext(lambda facts: None)  # noqa: ARG005


def log_request(facts: Facts) -> None:
    """Write the line of a request."""
    level = logging.INFO
    if facts.failed and facts.route != PORT_ROUTE and facts.code not in ("draining", "capacity", "unavailable"):
        level = logging.ERROR
    elif facts.route in _OF_MONITORS and facts.status < 400:
        level = logging.DEBUG
    if log.isEnabledFor(level):
        log_event(
            log,
            level,
            "request",
            request_id=facts.request_id,
            tenant=facts.tenant,
            key_id=facts.key,
            address=facts.address,
            method=facts.method,
            route=facts.route,
            operation=facts.operation,
            target=facts.target,
            status=facts.status,
            code=facts.code,
            ms=round(facts.seconds * 1000, 1),
            trace_id=facts.trace,
        )


def audit_with(note: Callable[[AuditEntry], None], *, operations: bool) -> Watcher:
    """Return what notes the requests that an audit is about: those that change something, and those that were denied."""

    def watch(facts: Facts) -> None:
        if facts.route == PORT_ROUTE:  # a server in a sandbox denies what it likes, as often as strangers ask
            return
        denied = facts.status in _DENIED
        if not denied and (not facts.tenant or not facts.changes or (facts.operation and not operations)):
            return
        entry = AuditEntry(
            at=now(),
            tenant=facts.tenant,
            key=facts.key,
            address=facts.address,
            action=facts.action,
            target=facts.target,
            status=facts.status,
            outcome=facts.code or ("ok" if facts.status < 400 else "failed"),
            request=facts.request_id,
        )
        note(entry)

    return watch
