"""Numbers for Prometheus. No label names a tenant, a sandbox or anything else that callers send."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sandbox.network.connections import Connection
from sandbox.service.fleet.watching import Ended

from .facts import Facts

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
STATES = ("creating", "running", "paused", "deleting", "ended", "lost")
_CREATE_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_RUN_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 15, 60, 300, 1800)
_REQUEST_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 15, 60)
# Problems that say that a tenant has had its share.
_OF_QUOTA = frozenset({"quota_exceeded", "rate_limited"})
_CREATED = ("sandboxes.create", "sandboxes.fork")


class Metrics:
    """The numbers of one service. ``sandboxes`` returns how many there are in each state."""

    def __init__(self, sandboxes: Callable[[], Mapping[str, int]], data: Path) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # when each counter began says nothing here
        self.registry = made = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=made)
        info = Gauge("gamebox_info", "The version that runs.", ["version"], registry=made)
        info.labels(version("gamebox")).set(1)
        self._create = Histogram(
            "gamebox_create_seconds", "From the request for sandboxes to its answer.", buckets=_CREATE_SECONDS, registry=made
        )
        self._run = Histogram(
            "gamebox_run_seconds",
            "Foreground commands. outcome: ok (exit code 0), failed, timeout, cancelled or error.",
            ["outcome"],
            buckets=_RUN_SECONDS,
            registry=made,
        )
        self._operations = Counter(
            "gamebox_operations", "Operations that ended, by the code of their envelope.", ["operation", "outcome"], registry=made
        )
        self._requests = Counter(
            "gamebox_api_requests", "HTTP requests that ended.", ["method", "route", "status"], registry=made
        )
        self._request_seconds = Histogram(
            "gamebox_api_request_seconds",
            "Duration of HTTP requests, with their streams.",
            ["route"],
            buckets=_REQUEST_SECONDS,
            registry=made,
        )
        self._problems = Counter("gamebox_api_problems", "Requests that were refused, by code.", ["code"], registry=made)
        self._quota = Counter("gamebox_quota_rejections", "Requests that were over a quota.", registry=made)
        self._egress = Counter("gamebox_egress_connections", "Connections of sandboxes.", ["outcome"], registry=made)
        self._denied = Counter("gamebox_egress_denied", "Connections that rules refused.", registry=made)
        self._sent = Counter("gamebox_egress_bytes", "Bytes of connections that ended.", ["direction"], registry=made)
        self.audit_lost = Counter("gamebox_audit_lost", "Entries that could not be written.", registry=made)
        self.store_errors = Counter("gamebox_store_errors", "Transactions that the store refused.", registry=made)
        made.register(_States(sandboxes, data))

    def text(self) -> bytes:
        """Return all numbers in the format of Prometheus."""
        return generate_latest(self.registry)

    def watch(self, facts: Facts) -> None:
        """Count a request that is over."""
        self._requests.labels(facts.method, facts.route, str(facts.status)).inc()
        self._request_seconds.labels(facts.route).observe(facts.seconds)
        if facts.status >= 400 and facts.code:
            self._problems.labels(facts.code).inc()
        if facts.code in _OF_QUOTA:
            self._quota.inc()
        if facts.action in _CREATED and facts.status == 201:
            self._create.observe(facts.seconds)

    def count_operation(self, ended: Ended) -> None:
        """Count an operation that ended."""
        self._operations.labels(ended.operation, ended.code or "ok").inc()
        if ended.operation == "run" and (outcome := _outcome(ended)) is not None:
            self._run.labels(outcome).observe(ended.seconds)

    def count_connection(self, connection: Connection) -> None:
        """Count a connection that ended or was refused. From any thread."""
        self._egress.labels(connection.outcome).inc()
        if connection.outcome == "denied":
            self._denied.inc()
        self._sent.labels("sent").inc(connection.sent_bytes)
        self._sent.labels("received").inc(connection.received_bytes)


def _outcome(ended: Ended) -> str | None:
    """Return the outcome of a command; None for one that goes on in the background."""
    if ended.code:
        return ended.code if ended.code in ("timeout", "cancelled") else "error"
    if getattr(ended.result, "running", False):
        return None
    return "ok" if getattr(ended.result, "exit_code", None) == 0 else "failed"


class _States(Collector):
    """What is looked at when somebody asks."""

    def __init__(self, sandboxes: Callable[[], Mapping[str, int]], data: Path) -> None:
        self._sandboxes, self._data = sandboxes, data

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the registry need not collect to know the names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the numbers of now."""
        states = GaugeMetricFamily("gamebox_sandboxes", "Sandboxes by state.", labels=["state"])
        counts = self._sandboxes()
        for state in STATES:
            states.add_metric([state], counts.get(state, 0))
        yield states
        try:
            found = os.statvfs(self._data)
        except OSError:
            return
        yield GaugeMetricFamily("gamebox_data_free_bytes", "Free space for the folder of data.", found.f_bavail * found.f_frsize)


