"""Spans of requests and operations (OpenTelemetry): a trace of a client goes on through the service to the operation in a sandbox.

All names are in this file. Those of HTTP are stable: https://opentelemetry.io/docs/specs/semconv/http/http-spans/
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sandbox.service.fleet.watching import Ended

from .facts import Facts

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

METHOD = "http.request.method"
ROUTE = "http.route"
STATUS = "http.response.status_code"
CLIENT = "client.address"
ERROR_TYPE = "error.type"
EXIT_CODE = "process.exit.code"
# Ours.
TENANT = "gamebox.tenant"
SANDBOX = "gamebox.sandbox.id"
REQUEST = "gamebox.request.id"
OPERATION = "gamebox.operation"

# What a client may send of its own; the format has fewer.
MOST_BYTES = 4096
_HEADERS = (b"traceparent", b"tracestate")


class Tracing:
    """Makes the spans. Needs the extra ``otel``; without one, a service has none of this."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace, self._propagator = trace, TraceContextTextMapPropagator()
        self._tracer = provider.get_tracer("gamebox.service")

    @contextmanager
    def request(self, scope: Mapping[str, Any]) -> Iterator[Callable[[Facts], None]]:
        """Have a span around a request, below that of the client if it sent one. What is yielded ends it with the facts."""
        if scope["type"] != "http" or scope.get("path") in ("/healthz", "/readyz", "/metrics"):
            yield lambda facts: None  # noqa: ARG005
            return
        found = [(name, value) for name, value in scope["headers"] if name in _HEADERS and len(value) <= MOST_BYTES]
        carrier = {name.decode(): value.decode("latin-1") for name, value in found}
        parent = self._propagator.extract(carrier)
        kind = self._trace.SpanKind.SERVER
        with self._tracer.start_as_current_span(
            "request", parent, kind, record_exception=False, set_status_on_exception=False
        ) as span:
            scope["state"]["trace"] = format(span.get_span_context().trace_id, "032x")
            yield lambda facts: self._describe(span, facts)

    def _describe(self, span: Span, facts: Facts) -> None:
        span.update_name(f"{facts.method} {facts.route}")
        span.set_attributes(
            {
                METHOD: facts.method,
                ROUTE: facts.route,
                STATUS: facts.status,
                CLIENT: facts.address,
                TENANT: facts.tenant,
                REQUEST: facts.request_id,
            }
        )
        if facts.failed:
            self._fail(span, facts.code or str(facts.status))

    @contextmanager
    def operation(self, operation: Ended) -> Iterator[None]:
        """Have a span around an operation, below that of the request that began it."""
        attributes = {
            OPERATION: operation.operation,
            SANDBOX: operation.sandbox,
            TENANT: operation.tenant,
            REQUEST: operation.request,
        }
        with self._tracer.start_as_current_span(
            operation.operation, attributes=attributes, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield
            finally:
                if isinstance(code := getattr(operation.result, "exit_code", None), int):
                    span.set_attribute(EXIT_CODE, code)
                if operation.code:
                    self._fail(span, operation.code)

    def _fail(self, span: Span, code: str) -> None:
        span.set_attribute(ERROR_TYPE, code)
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR))
