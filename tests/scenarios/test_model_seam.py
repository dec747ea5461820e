"""The real litellm against two strict providers: thinking, streams, images, the cache, limits, overflow and fallbacks."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent import (
    Action,
    ActionRegistry,
    Agent,
    Budget,
    Environment,
    FunctionCallingLanguage,
    Goal,
    JsonLanguage,
    LiteLLMModel,
    Memory,
    Prompt,
    Response,
    RunStatus,
    WindowMemory,
)
from agent.core.budget import Meter, metering
from agent.core.images import image_block
from agent.errors import AgentErrorCode
from agent.language import AgentLanguage
from agent.model.brain import Delta, ModelError, receiving_deltas
from agent.model.fallback import FallbackModel
from agent.record.resume import execute_recorded, resume
from agent.record.store import EventLog
from agent.tools import finish_action
from tests.servers.providers import Answer, Provider, busy
from tests.unit.agent.core.test_images import png

THINK = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 4000}
NAMES = {"openai": "openai/gpt-4o", "anthropic": "anthropic/claude-sonnet-4-5"}
LOOK = Action("look", lambda: "a door " * 400, "Look.")
SHOT = Action("shot", lambda: {"page": "a shop", "image": image_block(png())}, "Take a picture.")
FINISH = Answer(calls=[("finish", {"summary": "done"})], thinking="It is done.")
STEP = Answer("I look.", [("look", {})], thinking="I should look around, carefully.")


def model_at(server: Provider, dialect: str, **options: Any) -> LiteLLMModel:
    return LiteLLMModel(NAMES[dialect], **{"max_wait_seconds": 5, **server.options(dialect), **options})


def agent_of(brain: Any, language: AgentLanguage | None = None, budget: Budget | None = None) -> Agent:
    registry = ActionRegistry([LOOK, SHOT, finish_action()])
    return Agent(
        [Goal("Look around.")], language or FunctionCallingLanguage(), registry, brain, Environment(), budget=budget
    )


def steps(count: int) -> list[Answer]:
    return [*[STEP] * count, FINISH]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("language", [FunctionCallingLanguage, JsonLanguage])
def test_thinking_comes_back_signed(streamed: bool, language: type[AgentLanguage]) -> None:
    """Without it this provider answers 400 at the second step, as the real one does."""
    answers = steps(3)
    if language is JsonLanguage:
        looks = [Answer('{"tool": "look", "args": {}}', thinking=f"thought {n}") for n in range(3)]
        answers = [*looks, Answer('{"tool": "finish", "args": {"summary": "done"}}', thinking="so")]
    with Provider(answers) as server:
        agent = agent_of(model_at(server, "anthropic", **THINK), language())
        if streamed:
            with receiving_deltas(lambda _: None):
                run = agent.execute("look")
        else:
            run = agent.execute("look")
    assert (run.status, server.statuses) == (RunStatus.finished, [200] * 4), run.reason
    sent = [b["type"] for m in server.requests[-1]["messages"] if m["role"] == "assistant" for b in m["content"]]
    assert sent.count("thinking") == sent.count("redacted_thinking") == 3


def test_pieces_arrive_in_order_and_make_the_whole() -> None:
    for dialect in NAMES:
        pieces: list[Delta] = []
        with Provider(
            [Answer("Hello there, friend.", [("look", {"at": "the door"}), ("look", {})], "I think.")]
        ) as server:
            options = THINK if dialect == "anthropic" else {}
            model = model_at(server, dialect, **options)
            with receiving_deltas(pieces.append):
                reply = model(
                    Prompt(({"role": "user", "content": "hi"},), ({"type": "function", "function": {"name": "look"}},))
                )
        assert pieces[0] == Delta("start")
        assert "".join(p.text for p in pieces if p.kind == "text") == reply.text == "Hello there, friend."
        assert len([p for p in pieces if p.kind == "text"]) > 1
        assert (
            "".join(p.text for p in pieces if p.kind == "tool_call" and p.index == 0) == reply.tool_calls[0].arguments
        )
        assert [p.name for p in pieces if p.name] == [c.name for c in reply.tool_calls] == ["look", "look"]
        if dialect == "anthropic":
            assert "".join(p.text for p in pieces if p.kind == "thinking") == reply.thinking == "I think."


@pytest.mark.parametrize("dialect", NAMES)
def test_a_stream_costs_what_the_whole_reply_costs(dialect: str) -> None:
    used = []
    for streamed in (False, True):
        with Provider([Answer("Hello there.", reasoning_tokens=7)]) as server, metering(Meter(Budget())) as meter:
            if streamed:
                with receiving_deltas(lambda _: None):
                    model_at(server, dialect)("hi")
            else:
                model_at(server, dialect)("hi")
        used.append(meter.usage)
    assert used[0] == used[1]
    assert used[0].cost_usd > 0
    if dialect == "openai":
        assert used[0].reasoning_tokens == 7


@pytest.mark.parametrize("dialect", NAMES)
def test_a_stream_that_breaks_off_is_asked_for_again(dialect: str) -> None:
    pieces: list[Delta] = []
    answers = [Answer("Hello there, friend.", cut_after=4), Answer("Hello there, friend.")]
    with Provider(answers) as server, receiving_deltas(pieces.append):
        reply = model_at(server, dialect, max_wait_seconds=0.05)("hi")
    assert reply.text == "Hello there, friend."
    starts = [n for n, p in enumerate(pieces) if p.kind == "start"]
    assert len(starts) == 2
    assert "".join(p.text for p in pieces[starts[1] :]) == "Hello there, friend."


def test_a_listener_that_raises_stops_the_call() -> None:
    class StopError(Exception):
        pass

    def stop(delta: Delta) -> None:
        if delta.kind == "text":
            raise StopError

    with Provider([Answer("Hello there.")]) as server, receiving_deltas(stop), pytest.raises(StopError):
        model_at(server, "openai")("hi")
    assert len(server.requests) == 1


def test_the_stable_beginning_is_cached_where_it_must_be_marked() -> None:
    with Provider(steps(6)) as server:
        run = agent_of(model_at(server, "anthropic")).execute("look")
    assert run.status is RunStatus.finished
    assert run.usage.cache_write_tokens > 0
    assert run.usage.cached_tokens > run.usage.input_tokens * 0.6
    last = server.requests[-1]
    assert "cache_control" in last["system"][-1]
    assert "cache_control" in last["messages"][-1]["content"][0]
    with Provider(steps(3)) as server:
        run = agent_of(model_at(server, "anthropic", cache_markers=False)).execute("look")
    assert (run.usage.cached_tokens, "cache_control" in str(server.requests)) == (0, False)


def test_a_provider_that_caches_by_itself_gets_no_markers() -> None:
    with Provider(steps(3)) as server:
        run = agent_of(model_at(server, "openai")).execute("look")
    assert "cache_control" not in str(server.requests)
    assert run.usage.cached_tokens > 0


@pytest.mark.parametrize(("dialect", "model"), [*NAMES.items(), ("openai", "openai/gpt-3.5-turbo")])
def test_an_image_is_shown_to_a_model_that_sees_and_described_to_others(dialect: str, model: str) -> None:
    with Provider([Answer(calls=[("shot", {}), ("shot", {})]), FINISH]) as server:
        brain = LiteLLMModel(model, **server.options(dialect))
        run = agent_of(brain).execute("look")
    assert run.status is RunStatus.finished, run.reason
    sent = str(server.requests[1])
    assert "[image: image/png, 3×2 pixels" in sent
    assert (image_block(png())["data"] in sent) is (model != "openai/gpt-3.5-turbo")


def test_a_refusal_of_the_model_is_no_empty_reply() -> None:
    with Provider([Answer(refusal="I will not do that."), FINISH]) as server:
        run = agent_of(model_at(server, "openai")).execute("look")
    assert run.status is RunStatus.finished
    assert run.steps[0].envelope is not None
    assert "I will not do that." in run.steps[0].envelope["error"]
    with Provider([Answer(refusal="policy"), FINISH]) as server:
        run = agent_of(model_at(server, "anthropic")).execute("look")
    assert run.steps[0].envelope is not None
    assert "filter" in run.steps[0].envelope["error"]


def test_a_limit_is_waited_for_by_all_together() -> None:
    """Without a shared gate each of twelve workers learns of the limit by refused calls of its own."""
    with Provider(lambda request: Answer("hi"), requests_per_window=4, window_seconds=1.0) as server:
        model = model_at(server, "openai", max_attempts=10)
        threads = [threading.Thread(target=lambda: [model("hi") for _ in range(2)]) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert server.statuses.count(200) == 24
    # All twelve may ask before the first is refused. In each of the five windows after that the gate widens by one with each of
    # the four that are served, so that at most five are under way when the next is refused.
    assert server.statuses.count(429) <= 12 + 5 * 5


def test_another_model_of_the_tree_waits_too_but_not_another_key(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The clock of the gates stands still until both wait."""
    now, looks = [time.monotonic()], Counter[threading.Thread]()

    def clock() -> float:
        looks[threading.current_thread()] += 1
        return now[0]

    monkeypatch.setattr("agent.model.rate_gate.time", SimpleNamespace(monotonic=clock))
    with Provider([busy("2"), Answer("a"), Answer("b"), Answer("c")]) as server:
        first, second = model_at(server, "openai"), model_at(server, "openai")
        other = model_at(server, "openai", api_key="sk-other")
        threads = [threading.Thread(target=first, args=("hi",))]
        threads[0].start()
        while "trying again" not in caplog.text:
            assert threads[0].is_alive()
            time.sleep(0.01)
        other("hi")
        assert server.statuses.count(200) == 1  # the first one waits still
        threads.append(threading.Thread(target=second, args=("hi",)))
        threads[1].start()
        while looks[threads[1]] < 2:  # one that does not wait looks once
            assert threads[1].is_alive()
            time.sleep(0.01)
        over = time.monotonic()
        now[0] += 2
        for thread in threads:
            thread.join()
    assert server.times[2] >= over
    assert server.statuses.count(200) == 3


def test_the_limit_on_seconds_ends_a_wait() -> None:
    with Provider([busy("30")]) as server:
        run = agent_of(model_at(server, "openai", max_wait_seconds=60), budget=Budget(max_seconds=1.5)).execute("look")
    assert run.status is RunStatus.max_seconds
    assert run.seconds < 25


def fallback(servers: Sequence[Provider], **options: Any) -> FallbackModel:
    """A Claude model that thinks, then one of OpenAI."""
    first = model_at(servers[0], "anthropic", max_attempts=1, **THINK)
    return FallbackModel([first, model_at(servers[1], "openai", max_attempts=1)], **options)


def test_the_next_model_answers_and_the_reply_says_which() -> None:
    """Its provider refuses fields that it does not know, such as the thinking of the first one."""
    down = Answer(status=500, error="down")
    with Provider([STEP, down, down, FINISH]) as first, Provider([STEP, STEP]) as second:
        run = agent_of(fallback([first, second], rest_seconds=0)).execute("look")
    assert run.status is RunStatus.finished, run.reason
    answered = [Response.of(step.response).model for step in run.steps]
    assert answered == [NAMES["anthropic"], NAMES["openai"], NAMES["openai"], NAMES["anthropic"]]


def test_a_model_that_failed_rests() -> None:
    with Provider([Answer(status=500, error="down")] * 5) as first, Provider(steps(3)) as second:
        run = agent_of(fallback([first, second])).execute("look")
    assert run.status is RunStatus.finished
    assert len(first.requests) == 1


def test_with_all_down_the_last_fault_is_told() -> None:
    down = [Answer(status=500, error="down")] * 9
    with Provider(down) as first, Provider(down) as second, pytest.raises(ModelError) as caught:
        fallback([first, second])("hi")
    assert caught.value.code is AgentErrorCode.model_unavailable
    assert NAMES["openai"] in caught.value.message


@pytest.mark.parametrize("dialect", NAMES)
@pytest.mark.parametrize("memory", [WindowMemory, Memory])
def test_a_prompt_that_is_too_long_is_made_again_from_less(dialect: str, memory: type[Memory]) -> None:
    """The estimate of tokens is wrong for some models and some texts; the run ended there."""
    with Provider(lambda request: STEP, context_tokens=6000) as server:
        agent = agent_of(model_at(server, dialect), budget=Budget(max_iterations=25))
        run = agent.execute("look", memory())
    assert (run.status, run.iterations) == (RunStatus.max_iterations, 25), run.reason
    refused = server.statuses.count(400)
    assert 1 <= refused <= 6
    assert "look" in str(server.requests[-1]["messages"][:2])
    assert "no longer shown" in str(server.requests[-1]["messages"][:3])
    assert run.usage.failed_calls == refused


def test_a_task_that_is_too_long_ends_the_run_in_few_calls() -> None:
    with Provider(lambda request: STEP, context_tokens=100) as server:
        run = agent_of(model_at(server, "openai")).execute("look " * 20_000)
    assert run.status is RunStatus.model_failed
    assert isinstance(run.error, ModelError)
    assert run.error.code is AgentErrorCode.context_window_exceeded
    assert len(server.requests) <= 4


class OneCall(Agent):
    def get_action(self, response: Any) -> tuple[Action | None, dict[str, Any]]:
        return super().get_action(response)


def test_one_call_a_reply_is_asked_for_where_one_is_carried_out() -> None:
    registry = ActionRegistry([LOOK, finish_action()])
    answers = [Answer(calls=[("look", {}), ("look", {})]), FINISH]
    with Provider(answers) as server:
        brain = model_at(server, "openai")
        run = OneCall([Goal("Look.")], FunctionCallingLanguage(), registry, brain, Environment()).execute("look")
    assert server.requests[0]["parallel_tool_calls"] is False
    assert [s.tool for s in run.steps] == ["look", "finish"]
    with Provider(answers) as server:
        brain = model_at(server, "anthropic")
        OneCall([Goal("Look.")], FunctionCallingLanguage(), registry, brain, Environment()).execute("look")
    assert server.requests[0]["tool_choice"]["disable_parallel_tool_use"] is True


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("dialect", NAMES)
def test_parallel_calls_are_answered_in_order(dialect: str, streamed: bool) -> None:
    """Both providers refuse a conversation in which a call has no answer right after it."""
    options = THINK if dialect == "anthropic" else {}
    with Provider([Answer("Twice.", [("look", {}), ("shot", {}), ("look", {})], "Three times."), FINISH]) as server:
        agent = agent_of(model_at(server, dialect, **options))
        if streamed:
            events = list(agent.stream("look"))
            assert events
            run = agent.last_run
        else:
            run = agent.execute("look")
    assert run is not None
    assert (run.status, server.statuses) == (RunStatus.finished, [200, 200]), run.reason
    assert "parallel_tool_calls" not in server.requests[0]
    assert "disable_parallel_tool_use" not in str(server.requests[0].get("tool_choice"))
    assert [call.tool for call in run.steps[0].calls] == ["look", "shot", "look"]


@pytest.mark.parametrize(("model", "structured"), [("openai/gpt-4o", True), ("openai/gpt-3.5-turbo", False)])
def test_json_is_asked_for_where_the_provider_has_structured_output(model: str, structured: bool) -> None:
    """Our own parsing reads both."""
    answers = [
        Answer('{"thought": "I look.", "tool": "look", "args": {}}'),
        Answer('It is done. {"tool": "finish", "args": {"summary": "done"}}'),
    ]
    with Provider(answers) as server:
        run = agent_of(LiteLLMModel(model, **server.options("openai")), JsonLanguage()).execute("look")
    assert run.status is RunStatus.finished
    assert [step.thought for step in run.steps] == ["I look.", "It is done."]
    assert ("response_format" in server.requests[0]) is structured
    if structured:
        schema = server.requests[0]["response_format"]["json_schema"]["schema"]
        assert schema["properties"]["tool"]["enum"] == ["finish", "look", "shot"]


def test_a_resumed_run_has_the_thinking_and_the_narrow_window(tmp_path: Path) -> None:
    with Provider(steps(30), context_tokens=6000) as server, EventLog(tmp_path / "runs.db") as log:
        first = agent_of(model_at(server, "anthropic", **THINK), budget=Budget(max_iterations=14))
        assert execute_recorded(first, "look", log, run="one").status is RunStatus.max_iterations
        refused = server.statuses.count(400)
        assert refused == 1
        second = agent_of(model_at(server, "anthropic", **THINK), budget=Budget(max_iterations=18))
        with log.begin("one") as writer:
            run = resume(second, writer)
        assert (run.status, server.statuses.count(400)) == (RunStatus.max_iterations, refused), run.reason
        assert "thinking" in str(server.requests[-1]["messages"])
