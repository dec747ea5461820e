"""The host's processor time for a step of an agent whose model and tools cost nothing: the loop, recording, languages, spans."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from agent import (
    Action,
    ActionRegistry,
    Agent,
    Budget,
    Environment,
    FunctionCallingLanguage,
    Goal,
    JsonLanguage,
    Layer,
    Response,
    ScriptedModel,
    ToolCall,
    Tracing,
)
from agent.record.resume import execute_recorded
from agent.record.store import EventLog
from agent.tools import finish_action
from benchmarks.measuring import Options, Row, take_turns

TRACED_STEPS = 100
STEPS = (20, 200)
CALL = {"tool": "look", "args": {"path": "a.py"}}


def agent_of(language: Any, steps: int, replies: list[Any], standing: bool = False) -> Agent:
    """Return an agent of so many steps, with its standing layers (budget line, stuck notices) or none."""
    schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    look = Action("look", lambda path: {"text": f"contents of {path}"}, "Look at a file.", schema)
    options: dict[str, Any] = {} if standing else {"layers": ()}
    return Agent(
        [Goal("g")],
        language,
        ActionRegistry([look, finish_action()]),
        ScriptedModel(replies),
        Environment(),
        budget=Budget(max_iterations=steps),
        **options,
    )


def plain(steps: int) -> float:
    """Return the seconds of a run with native calls."""
    return timed(agent_of(FunctionCallingLanguage(), steps, [CALL] * steps).execute)


def standing(steps: int) -> float:
    """Return the seconds of a run with native calls, each another one, and the standing layers."""
    calls = [{"tool": "look", "args": {"path": f"{number}.py"}} for number in range(steps)]
    return timed(agent_of(FunctionCallingLanguage(), steps, calls, standing=True).execute)


def text(steps: int) -> float:
    """Return the seconds of a run with a text language."""
    return timed(agent_of(JsonLanguage(), steps, [json.dumps(CALL)] * steps).execute)


def recorded(steps: int) -> float:
    """Return the seconds of a recorded run."""
    with tempfile.TemporaryDirectory() as folder, EventLog(Path(folder, "runs.db")) as log:
        agent = agent_of(FunctionCallingLanguage(), steps, [CALL] * steps)
        return timed(lambda task: execute_recorded(agent, task, log))


def timed(run: Callable[[str], Any]) -> float:
    """Return the seconds of processor time that the run took."""
    started = time.process_time()
    run("task")
    return time.process_time() - started


def agent_steps(options: Options) -> Iterator[Row]:
    """Measure short and long runs of each kind, in turns with the plain one."""
    ways = {"plain": plain, "standing layers": standing, "a text language": text, "recorded": recorded}
    for steps in STEPS:
        calls = {name: lambda run=run, steps=steps: run(steps) / steps * 1000 for name, run in ways.items()}
        turns = take_turns(calls, options.rounds(5))
        for name in ways:
            yield turns.row(name, "plain", name=f"a step of {steps}: {name}")


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
    calls = [ToolCall("add", '{"a": 1, "b": 2}', f"call-{n}") for n in range(TRACED_STEPS - 1)]
    brain = ScriptedModel([Response(tool_calls=(call,)) for call in (*calls, ToolCall("finish", "{}", "last"))])
    actions: list[Action | Callable[..., Any]] = [add, Action.of(finish, terminal=True)]
    agent = Agent(
        "Add.", action_registry=actions, generate_response=brain, layers=layers, budget=Budget(max_iterations=TRACED_STEPS)
    )
    began = time.process_time()
    run = agent.execute("x")
    if run.iterations != TRACED_STEPS:
        raise SystemExit(f"the run has {run.iterations} steps: {run.reason}")
    return (time.process_time() - began) / TRACED_STEPS


def tracing(options: Options) -> Iterator[Row]:
    """Measure spans that nobody receives, spans with the SDK, and with content, in turns with a run without any."""
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Discarding(), max_queue_size=100_000))
    ways: dict[str, tuple[Layer, ...]] = {
        "no Tracing": (),
        "Tracing, no provider set": (Tracing(),),
        "spans with the SDK": (Tracing(tracer_provider=provider),),
        "spans with content": (Tracing(tracer_provider=provider, capture_content=True),),
    }
    calls = {name: lambda layers=layers: seconds_per_step(layers) * 1000 for name, layers in ways.items()}
    turns = take_turns(calls, options.rounds(15))
    for name in ways:
        yield turns.row(name, "no Tracing")
