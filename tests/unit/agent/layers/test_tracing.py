"""Spans of runs: their names and attributes, their tree, how they end, and what is not in them."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.trace import SpanKind, StatusCode

from agent import (
    Action,
    Agent,
    Budget,
    Hooks,
    Prompt,
    Response,
    RunStatus,
    ScriptedModel,
    StopRun,
    ToolCall,
    standard_registry,
)
from agent.core.loop.layers import Flow, Layer
from agent.core.loop.turns import Call
from agent.core.run import AgentRun
from agent.hub import Setting
from agent.layers import genai, tracing
from agent.layers.tracing import Tracing
from agent.record import lineage
from agent.record.resume import execute_recorded, resume
from agent.record.store import EventLog
from sandbox import LocalEnvironment
from sandbox.testing import FakeEnvironment
from tests.spans import Spans, attributes
from tests.unit.agent.record.delegating_runs import tree


@pytest.fixture
def spans() -> Iterator[Spans]:
    made = Spans()
    yield made
    made.provider.shutdown()


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def finish(summary: str) -> str:
    """End the run."""
    return summary


def asks(tool: str, ident: str = "", **args: Any) -> Response:
    return Response(tool_calls=(ToolCall(tool, json.dumps(args), ident),))


STEPS = (asks("add", "call-1", a=1, b=2), asks("finish", "call-2", summary="3"))


def agent_of(brain: Any, spans: Spans, *actions: Any, tracing: Tracing | None = None, **options: Any) -> Agent:
    layers = (tracing or spans.layer(agent_name="adder"), *options.pop("layers", ()))
    registry = [add, *actions, Action.of(finish, terminal=True)]
    return Agent("Add.", action_registry=registry, generate_response=brain, layers=layers, **options)


# --- the tree ------------------------------------------------------------------
def test_a_run_is_a_span_with_its_questions_and_calls_below(spans: Spans) -> None:
    agent_of(ScriptedModel(STEPS), spans).run("1 + 2")
    assert spans.names == ["invoke_agent adder", "chat", "execute_tool add", "chat", "execute_tool finish"]
    top = spans.all[0]
    assert top.parent is None
    assert {spans.parent_of(span) for span in spans.all[1:]} == {"invoke_agent adder"}
    assert [span.kind for span in spans.all[:3]] == [SpanKind.INTERNAL, SpanKind.CLIENT, SpanKind.INTERNAL]
    assert attributes(top)["gen_ai.operation.name"] == "invoke_agent"
    assert attributes(top)["gamebox.run.status"] == "finished"
    assert attributes(top)["gamebox.run.steps"] == 2
    called = attributes(spans.one("execute_tool add"))
    assert called["gen_ai.tool.name"] == "add"
    assert called["gen_ai.tool.call.id"] == "call-1"
    assert called["gen_ai.tool.description"] == "Add two numbers."
    assert attributes(spans.all[1])["gen_ai.response.finish_reasons"] == ("tool_call",)
    assert all(span.status.status_code is StatusCode.UNSET for span in spans.all)


def test_arun_makes_the_same_spans_also_of_coroutine_functions(spans: Spans) -> None:
    async def wait(seconds: float) -> str:
        """Wait."""
        with spans.provider.get_tracer("mine").start_as_current_span("of the tool"):
            await asyncio.sleep(seconds)
        return "ok"

    brain = ScriptedModel([asks("wait", seconds=0.01), STEPS[1]])
    asyncio.run(agent_of(brain, spans, wait).arun("wait"))
    assert spans.names == [
        "invoke_agent adder", "chat", "execute_tool wait", "of the tool", "chat", "execute_tool finish"
    ]  # fmt: skip
    assert spans.parent_of(spans.one("of the tool")) == "execute_tool wait"


def test_stream_and_astream_make_the_same_spans(spans: Spans) -> None:
    expected = ["invoke_agent adder", "chat", "execute_tool add", "chat", "execute_tool finish"]
    assert [*agent_of(ScriptedModel(STEPS), spans).stream("1 + 2")]
    assert spans.names == expected
    spans.clear()

    async def stream() -> None:
        assert [event async for event in agent_of(ScriptedModel(STEPS), spans).astream("1 + 2")]

    asyncio.run(stream())
    assert spans.names == expected


def test_a_stream_that_is_left_closes_all_spans(spans: Spans) -> None:
    events = agent_of(ScriptedModel(STEPS), spans).stream("1 + 2")
    next(events)
    events.close()  # type: ignore[attr-defined]
    assert spans.one("invoke_agent adder").end_time


def test_several_calls_of_a_reply_have_their_own_spans_and_ids(spans: Spans) -> None:
    reply = Response(tool_calls=tuple(ToolCall("add", json.dumps({"a": n, "b": 0}), f"call-{n}") for n in range(3)))
    agent_of(ScriptedModel([reply, STEPS[1]]), spans).run("x")
    calls = [span for span in spans.all if span.name == "execute_tool add"]
    assert [attributes(span)["gen_ai.tool.call.id"] for span in calls] == ["call-0", "call-1", "call-2"]
    assert {spans.parent_of(span) for span in calls} == {"invoke_agent adder"}


def test_calls_side_by_side_have_spans_at_the_same_time(spans: Spans) -> None:
    calls = tuple(ToolCall("read", json.dumps({"path": "a.txt"}), f"call-{n}") for n in range(2))
    brain = ScriptedModel([Response(tool_calls=calls), asks("finish", summary="done")])
    with LocalEnvironment() as environment:
        environment.write("a.txt", "x").unwrap()
        agent = Agent(
            "Look.",
            action_registry=standard_registry(),
            generate_response=brain,
            environment=environment,
            layers=(spans.layer(),),
        )
        assert asyncio.run(agent.aexecute("x")).ok
    first, second = [span for span in spans.all if span.name == "execute_tool read"]
    assert second.start_time is not None
    assert first.end_time is not None
    assert second.start_time < first.end_time
    assert {attributes(span)["gen_ai.tool.call.id"] for span in (first, second)} == {"call-0", "call-1"}


@pytest.mark.parametrize("way", ["run", "arun", "stream", "astream"])
def test_a_span_of_the_caller_is_the_parent_of_the_run(spans: Spans, way: str) -> None:
    agent = agent_of(ScriptedModel(STEPS), spans)

    async def work() -> None:
        if way == "arun":
            await agent.arun("1 + 2")
        else:
            assert [event async for event in agent.astream("1 + 2")]

    with spans.provider.get_tracer("mine").start_as_current_span("request"):
        if way == "run":
            agent.run("1 + 2")
        elif way == "stream":
            assert [*agent.stream("1 + 2")]
        else:
            asyncio.run(work())
    assert spans.parent_of(spans.one("invoke_agent adder")) == "request"


def test_a_run_within_a_tool_is_a_child_of_its_call(spans: Spans) -> None:
    tracing = spans.layer()

    def ask_below(task: str) -> str:
        """Ask another agent."""
        agent_of(ScriptedModel(STEPS), spans, tracing=spans.layer(agent_name="below")).run(task)
        return "done"

    brain = ScriptedModel([asks("ask_below", task="x"), STEPS[1]])
    agent_of(brain, spans, ask_below, tracing=tracing).run("x")
    assert spans.parent_of(spans.one("invoke_agent below")) == "execute_tool ask_below"
    assert spans.parent_of(spans.one("invoke_agent")) is None
    assert spans.parent_of(spans.one("execute_tool add")) == "invoke_agent below"


def test_delegated_agents_are_children_with_their_names_in_the_same_conversation(spans: Spans) -> None:
    tracing = spans.layer()

    def traced(agent: Agent, setting: Setting) -> None:
        agent.layers = (tracing, *agent.layers)

    with FakeEnvironment() as environment, lineage.within("boss", "run-7"):
        assert tree(environment, on_built=traced).execute("x").ok
    middle = spans.one("invoke_agent middle")
    assert spans.parent_of(middle) == "execute_tool delegate"
    assert spans.parent_of(spans.one("invoke_agent boss")) is None
    workers = [span for span in spans.all if span.name == "invoke_agent worker"]
    assert [spans.parent_of(span) for span in workers] == ["execute_tool delegate"] * 2
    above = {span.context.span_id: span for span in spans.all}
    assert [spans.parent_of(above[span.parent.span_id]) for span in workers if span.parent] == [
        "invoke_agent middle",
        "invoke_agent boss",
    ]
    assert {attributes(span)["gen_ai.conversation.id"] for span in spans.all} == {"run-7"}
    assert len({attributes(span)["gamebox.run.id"] for span in (middle, *workers)}) == 3
    calls = sum(span.name == "chat" for span in spans.all)
    assert attributes(spans.one("invoke_agent boss"))["gen_ai.usage.input_tokens"] == 10 * calls
    assert {attributes(span)["gen_ai.usage.input_tokens"] for span in spans.all if span.name == "chat"} == {10}


def test_one_layer_serves_agents_in_several_threads(spans: Spans) -> None:
    tracing, together = spans.layer(), threading.Barrier(4, timeout=20)

    def meet() -> str:
        """Wait for the others."""
        together.wait()
        return "here"

    def work(number: int) -> AgentRun:
        brain = ScriptedModel([asks("meet"), asks("finish", summary=str(number))])
        return agent_of(brain, spans, meet, tracing=tracing).execute("x")

    with ThreadPoolExecutor(4) as pool:
        assert all(run.ok for run in pool.map(work, range(4)))
    tops = [span for span in spans.all if span.name == "invoke_agent"]
    assert len({span.context.trace_id for span in tops}) == 4
    for top in tops:
        assert sum(span.context.trace_id == top.context.trace_id for span in spans.all) == 5


# --- how they end ------------------------------------------------------------------
def test_a_failed_call_has_the_code_of_its_envelope(spans: Spans) -> None:
    def fail() -> str:
        """Fail."""
        raise ValueError("the secret recipe")

    run = agent_of(ScriptedModel([asks("fail"), STEPS[1]]), spans, fail).execute("x")
    span = spans.one("execute_tool fail")
    assert span.status.status_code is StatusCode.ERROR
    assert attributes(span)["error.type"] == run.steps[0].envelope["code"]  # type: ignore[index]
    assert "recipe" not in str(span.to_json())
    assert spans.one("invoke_agent adder").status.status_code is StatusCode.UNSET


def test_a_model_that_fails_ends_its_span_and_that_of_the_run(spans: Spans) -> None:
    with pytest.raises(OSError, match="gone"):
        agent_of(ScriptedModel([OSError("gone")]), spans).run("x")
    assert attributes(spans.one("chat"))["error.type"] == "OSError"
    top = spans.one("invoke_agent adder")
    assert attributes(top)["error.type"] == "model_failed"
    assert top.status.status_code is StatusCode.ERROR


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, MemoryError])
def test_what_breaks_through_a_tool_closes_all_spans(spans: Spans, kind: type[BaseException]) -> None:
    class Breaking(Layer):
        def around_do(self, call: Call) -> Flow:
            yield from ()
            raise kind

    with pytest.raises(kind):
        agent_of(ScriptedModel(STEPS), spans, layers=(Breaking(),)).run("x")
    assert spans.names == ["invoke_agent adder", "chat", "execute_tool add"]
    assert attributes(spans.one("execute_tool add"))["error.type"] == kind.__name__
    assert spans.one("invoke_agent adder").status.status_code is StatusCode.ERROR


def test_a_cancelled_arun_closes_all_spans(spans: Spans) -> None:
    began = threading.Event()

    async def forever() -> None:
        """Wait."""
        began.set()
        await asyncio.sleep(0.5)  # a cancellation waits for the call under way

    async def cancelled() -> None:
        task = asyncio.create_task(agent_of(ScriptedModel([asks("forever")]), spans, forever).arun("x"))
        assert await asyncio.to_thread(began.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert spans.names == ["invoke_agent adder", "chat", "execute_tool forever"]
    assert attributes(spans.one("invoke_agent adder"))["error.type"] == "cancelled"


def test_a_hook_that_raises_at_the_end_does_not_leave_the_span_open(spans: Spans) -> None:
    class Raising(Hooks):
        def on_terminate(self, run: AgentRun) -> None:
            raise RuntimeError("at the end")

    with pytest.raises(RuntimeError, match="at the end"):
        agent_of(ScriptedModel(STEPS), spans, hooks=[Raising()]).run("x")
    assert "invoke_agent adder" in spans.names


def test_a_run_without_a_step_has_a_span(spans: Spans) -> None:
    class Stopping(Hooks):
        def on_step_start(self, step: Any, memory: Any) -> None:
            raise StopRun("no", RunStatus.stopped)

    agent_of(ScriptedModel([]), spans, hooks=[Stopping()]).run("x")
    top = spans.one("invoke_agent adder")
    assert attributes(top)["gamebox.run.status"] == "stopped"
    assert top.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize(
    ("budget", "status"),
    [(Budget(max_iterations=1), "max_iterations"), (Budget(max_invalid_replies=1), "no_valid_action")],
)
def test_a_limit_is_an_error_of_the_run(spans: Spans, budget: Budget, status: str) -> None:
    replies = [STEPS[0]] if status == "max_iterations" else ["no action"]
    agent_of(ScriptedModel(replies), spans, budget=budget).execute("x")
    assert attributes(spans.one("invoke_agent adder"))["error.type"] == status


def test_a_resumed_run_has_spans_of_what_it_does_itself(spans: Spans, tmp_path: Any) -> None:
    class Pausing(Hooks):
        def on_action(self, step: Any, memory: Any) -> None:
            raise StopRun("later", RunStatus.paused)

    with EventLog(tmp_path / "runs.db") as log:
        paused = agent_of(ScriptedModel([STEPS[0]]), spans, hooks=[Pausing()])
        assert execute_recorded(paused, "x", log, run="one").status is RunStatus.paused
        spans.clear()
        with log.begin("one") as writer:
            assert resume(agent_of(ScriptedModel([STEPS[1]]), spans), writer).ok
    assert spans.names == ["invoke_agent adder", "execute_tool add", "chat", "execute_tool finish"]
    assert attributes(spans.one("execute_tool add"))["gen_ai.tool.call.id"] == "call-1"


# --- models ------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "provider", "model"),
    [
        ("anthropic/claude-sonnet-4-5", "anthropic", "claude-sonnet-4-5"),
        ("gpt-4.1", "openai", "gpt-4.1"),
        ("o3", "openai", "o3"),
        ("claude-sonnet-4-5", "anthropic", "claude-sonnet-4-5"),
        ("bedrock/eu.model:0", "aws.bedrock", "eu.model:0"),
        ("openrouter/vendor/model", "openrouter", "vendor/model"),
        ("my-model", "gamebox", "my-model"),
        ("/", "gamebox", "/"),
        ("", "gamebox", ""),
    ],
)
def test_providers_have_the_names_of_the_conventions(name: str, provider: str, model: str) -> None:
    assert genai.provider_and_model(name) == (provider, model)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Response("x", cut=True), "length"),
        (Response(refusal="no"), "content_filter"),
        (STEPS[0], "tool_call"),
        (Response("x"), "stop"),
    ],
)
def test_finish_reasons(reply: Response, reason: str) -> None:
    assert genai.finish_reason(reply) == reason


# --- content ------------------------------------------------------------------
CONTENT = {
    genai.INPUT_MESSAGES,
    genai.OUTPUT_MESSAGES,
    genai.SYSTEM_INSTRUCTIONS,
    genai.TOOL_ARGUMENTS,
    genai.TOOL_RESULT,
}


def test_there_is_no_content_unless_it_is_asked_for(spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(genai.CAPTURE_VARIABLE, raising=False)
    brain = ScriptedModel([asks("add", a="canary-9", b=2), asks("add", a=1, b=2), OSError("canary-9")])
    agent_of(brain, spans).execute("canary-9")
    for span in spans.all:
        assert not CONTENT & attributes(span).keys()
        assert "canary" not in str(span.to_json())


@pytest.mark.parametrize("value", ["true", "SPAN_ONLY", "span_and_event", "1"])
def test_the_variable_of_the_conventions_asks_for_content(
    spans: Spans, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv(genai.CAPTURE_VARIABLE, value)
    agent_of(ScriptedModel(STEPS), spans).run("1 + 2")
    assert json.loads(attributes(spans.one("execute_tool add"))[genai.TOOL_ARGUMENTS]) == {"a": 1, "b": 2}
    assert json.loads(attributes(spans.one("execute_tool add"))[genai.TOOL_RESULT])["result"] == 3
    first, second = (attributes(span) for span in spans.all if span.name == "chat")
    assert json.loads(first[genai.INPUT_MESSAGES]) == [
        {"role": "user", "parts": [{"type": "text", "content": "1 + 2"}]}
    ]
    assert json.loads(first[genai.OUTPUT_MESSAGES]) == [
        {
            "role": "assistant",
            "parts": [{"type": "tool_call", "name": "add", "arguments": {"a": 1, "b": 2}, "id": "call-1"}],
            "finish_reason": "tool_call",
        }
    ]
    *_, answer = json.loads(second[genai.INPUT_MESSAGES])
    assert answer["role"] == "tool"
    assert answer["parts"][0]["type"] == "tool_call_response"
    assert answer["parts"][0]["id"] == "call-1"
    assert "Add." in json.loads(first[genai.SYSTEM_INSTRUCTIONS])[0]["content"]
    top = attributes(spans.one("invoke_agent adder"))
    assert json.loads(top[genai.INPUT_MESSAGES])[0]["parts"][0]["content"] == "1 + 2"
    assert json.loads(top[genai.OUTPUT_MESSAGES])[0]["parts"][0]["content"] == "3"


@pytest.mark.parametrize("value", ["", "false", "no_content", "event_only"])
def test_other_values_of_the_variable_do_not(value: str) -> None:
    assert not genai.is_capturing({genai.CAPTURE_VARIABLE: value})


def test_secrets_are_masked_wherever_they_stand(spans: Spans) -> None:
    secret = "s3cr3t-t0k3n-of-the-test"

    def echo(text: str) -> str:
        """Echo."""
        if text == "fail":
            raise ValueError(f"no {secret}")
        return f"{text} {secret}"

    brain = ScriptedModel(
        [
            asks("echo", text=secret),
            Response(f"I know {secret}", (ToolCall("echo", json.dumps({"text": "fail"}), secret),)),
            asks("finish", summary=f"it is {secret}"),
        ]
    )
    with LocalEnvironment() as environment:
        environment.secret("TOKEN", secret)
        run = agent_of(brain, spans, echo, tracing=spans.layer(capture_content=True), environment=environment).execute(
            f"use {secret}"
        )
    assert run.iterations == 3
    text = "".join(str(span.to_json()) for span in spans.all)
    assert "***TOKEN***" in text
    assert secret not in text


def test_content_is_bounded_and_the_newest_messages_stay(spans: Spans) -> None:
    def big(number: int) -> str:
        """Answer with much text."""
        return f"{number} " + "x" * 300_000

    brain = ScriptedModel([*(asks("big", f"c{n}", number=n) for n in range(30)), asks("finish", summary="y" * 90_000)])
    agent_of(brain, spans, big, tracing=spans.layer(capture_content=True, max_content_chars=4000)).execute("z" * 50_000)
    for span in spans.all:
        for name in CONTENT & attributes(span).keys():
            assert len(attributes(span)[name]) <= 4000, name
    last = [span for span in spans.all if span.name == "chat"][-1]
    messages = json.loads(attributes(last)[genai.INPUT_MESSAGES])
    assert "earlier messages are left out" in messages[0]["parts"][0]["content"]
    assert messages[-1]["parts"][0]["id"] == "c29"


@pytest.mark.parametrize("reply", ['{"tool": 3', object(), {"tool": "add", "args": "no"}, {"role": 3}, Response()])
def test_odd_replies_do_not_break_a_run_that_is_traced(spans: Spans, reply: Any) -> None:
    tracing = spans.layer(capture_content=True)
    plain = Agent(
        "x", action_registry=[add, Action.of(finish, terminal=True)], generate_response=ScriptedModel([reply, STEPS[1]])
    )
    traced = agent_of(ScriptedModel([reply, STEPS[1]]), spans, tracing=tracing)
    assert traced.execute("x").status is plain.execute("x").status
    assert "invoke_agent" in spans.names


@pytest.mark.parametrize(
    "prompt",
    [
        "text",
        Prompt(({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}, "t", 3]},)),
        Prompt(
            ({"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "a", "arguments": "{"}}, 5]},)
        ),
        Prompt(({"content": {"a": {1, 2}}},)),
        Prompt(()),
    ],
)
def test_prompts_of_any_form_become_messages(prompt: Any) -> None:
    found = genai.prompt_attributes(prompt, lambda value: value, 2000)
    for message in json.loads(found[genai.INPUT_MESSAGES]):
        assert {"role", "parts"} <= message.keys()
    assert "data:x" not in str(found)


def test_half_characters_do_not_cost_the_batch_of_spans(spans: Spans) -> None:
    """An exporter cannot encode a lone surrogate, and drops all spans that it was to send with it."""
    half = "\ud800"
    odd = Action("odd", lambda: half, f"Odd {half}.", {"type": "object"})
    replies = [
        Response(f"text {half}", (ToolCall("odd", "{}", f"call-{half}"),)),
        asks("finish", summary="done"),
        OSError(half),
    ]
    for reply in (replies[:2], replies[2:]):
        agent_of(ScriptedModel(reply), spans, odd, tracing=spans.layer(agent_name=half, capture_content=True)).execute(
            half
        )
    assert len(spans.all) == 7, spans.names
    encode_spans(spans.all).SerializeToString()


def test_a_fault_in_describing_a_span_does_not_end_the_run(
    spans: Spans, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> dict[str, str]:
        raise RuntimeError("broken")

    monkeypatch.setattr(genai, "prompt_attributes", broken)
    with caplog.at_level(logging.WARNING):
        assert agent_of(ScriptedModel(STEPS), spans, tracing=spans.layer(capture_content=True)).execute("x").ok
    assert "could not be described" in caplog.text


def test_too_small_a_bound_is_refused(spans: Spans) -> None:
    with pytest.raises(ValueError, match="at least 1000"):
        spans.layer(max_content_chars=10)


def test_the_names_are_those_of_the_conventions() -> None:
    """Every gen_ai attribute is one that the package of semantic conventions lists."""
    conventional = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    source = Path(genai.__file__).read_text() + Path(tracing.__file__).read_text()
    used = set(re.findall(r'"(gen_ai\.[a-z_.]+[a-z])"', source))
    assert used - conventional == set()
