"""A collector of OpenTelemetry on 127.0.0.1: it takes OTLP over HTTP as protobuf, and keeps the spans."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

KINDS = {1: "INTERNAL", 2: "SERVER", 3: "CLIENT"}


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as it arrived. ``failed`` is whether its status is an error."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    failed: bool
    attributes: Mapping[str, Any]
    resource: Mapping[str, Any]


class Collector:
    """Context manager. ``spans`` has what arrived so far; with ``status`` other than 200 every request is refused."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.spans: list[ReceivedSpan] = []
        self.headers: list[Mapping[str, str]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                known = self.path == "/v1/traces" and self.headers["Content-Type"] == "application/x-protobuf"
                status = collector.status if known else 404
                collector.headers.append(dict(self.headers))
                if status == 200:
                    collector.receive(ExportTraceServiceRequest.FromString(body))
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(status)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the base class
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def receive(self, request: ExportTraceServiceRequest) -> None:
        for group in request.resource_spans:
            resource = _attributes(group.resource.attributes)
            for scope in group.scope_spans:
                for span in scope.spans:
                    self.spans.append(
                        ReceivedSpan(
                            span.name,
                            KINDS[span.kind],
                            span.trace_id.hex(),
                            span.span_id.hex(),
                            span.parent_span_id.hex(),
                            span.status.code == 2,
                            _attributes(span.attributes),
                            resource,
                        )
                    )

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)
