"""The host's time for a step of the loop: without spans, with spans that nobody receives, with the SDK, and with content.

The ways take turns, and the model is a script: everything measured is our own work and that of OpenTelemetry.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from agent import Action, Agent, Budget, Layer, Response, ScriptedModel, ToolCall, Tracing

STEPS, ROUNDS = 100, 15


class Discarding(SpanExporter):
    """Takes spans, and does nothing with them."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:  # noqa: ARG002
        return SpanExportResult.SUCCESS


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def finish() -> str:
    """End the run."""
    return "done"


def seconds_per_step(layers: Sequence[Layer]) -> float:
    """Return the processor time of a step, measured over a run."""
    calls = [ToolCall("add", '{"a": 1, "b": 2}', f"call-{n}") for n in range(STEPS - 1)]
    brain = ScriptedModel([Response(tool_calls=(call,)) for call in (*calls, ToolCall("finish", "{}", "last"))])
    actions = [add, Action.of(finish, terminal=True)]
    agent = Agent(
        "Add.", action_registry=actions, generate_response=brain, layers=layers, budget=Budget(max_iterations=STEPS)
    )
    began = time.process_time()
    run = agent.execute("x")
    if run.iterations != STEPS:
        raise SystemExit(f"the run has {run.iterations} steps: {run.reason}")
    return (time.process_time() - began) / STEPS


def main() -> None:
    """Print the median of each way, and what it is of the first."""
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Discarding(), max_queue_size=100_000))
    ways: dict[str, tuple[Layer, ...]] = {
        "no Tracing": (),
        "no provider": (Tracing(),),
        "SDK": (Tracing(tracer_provider=provider),),
        "SDK, content": (Tracing(tracer_provider=provider, capture_content=True),),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, layers in ways.items():
            found[name].append(seconds_per_step(layers))
    first = statistics.median(found["no Tracing"])
    for name, times in found.items():
        median = statistics.median(times)
        print(f"{name:14} {median * 1e3:6.2f} ms  {median / first:4.2f} x  (least {min(times) * 1e3:.2f} ms)")


if __name__ == "__main__":
    main()
