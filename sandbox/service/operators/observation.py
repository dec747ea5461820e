"""The parts that see what a service does, put together: metrics, audit, log and traces."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext

from sandbox.service.fleet.watching import Ended, Watching
from sandbox.service.settings import Settings
from sandbox.service.store.database import Database

from .audit import Audit
from .metrics import Metrics
from .observer import Span, Watcher, audit_with, log_request
from .tracing import Tracing


class Observation:
    """What is seen of one service. ``sandboxes`` returns how many there are in each state."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        sandboxes: Callable[[], Mapping[str, int]],
        tracing: Tracing | None = None,
    ) -> None:
        self.metrics = Metrics(sandboxes, settings.data)
        self.audit = Audit(database, settings, self.metrics.audit_lost.inc)
        self._tracing = tracing
        database.on_error = self.metrics.store_errors.inc

        note = audit_with(self.audit.note, operations=settings.audit_operations)
        self.watchers: tuple[Watcher, ...] = (self.metrics.watch, note, log_request)
        self.watching = Watching(self._around, self.metrics.count_connection)

    @property
    def span(self) -> Span | None:
        """What makes the span of a request; None without traces."""
        return None if self._tracing is None else self._tracing.request

    @contextmanager
    def _around(self, operation: Ended) -> Iterator[None]:
        began = time.monotonic()
        with nullcontext() if self._tracing is None else self._tracing.operation(operation):
            try:
                yield
            finally:
                operation.seconds = time.monotonic() - began
                self.metrics.count_operation(operation)
