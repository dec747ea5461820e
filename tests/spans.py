"""The spans of a test, kept in memory."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agent.layers.tracing import Tracing


class Spans(InMemorySpanExporter):
    """The spans that ended, by name, and the layer that makes them."""

    def __init__(self) -> None:
        super().__init__()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self))

    def layer(self, **options: Any) -> Tracing:
        return Tracing(tracer_provider=self.provider, **options)

    @property
    def all(self) -> list[ReadableSpan]:
        return sorted(self.get_finished_spans(), key=lambda span: span.start_time or 0)

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.all]

    def one(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.all if span.name == name]
        return found

    def parent_of(self, span: ReadableSpan) -> str | None:
        if span.parent is None:
            return None
        (found,) = [each for each in self.all if each.context.span_id == span.parent.span_id]
        return found.name


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})
