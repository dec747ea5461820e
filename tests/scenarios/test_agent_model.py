"""The real litellm against a server of our own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agent import (
    Action,
    ActionRegistry,
    Agent,
    AgentRun,
    Budget,
    Environment,
    FunctionCallingLanguage,
    Goal,
    JsonLanguage,
    LiteLLMModel,
    RunStatus,
    forbid_real_models,
)
from agent.errors import AgentErrorCode
from agent.language import AgentLanguage
from agent.model.brain import ModelError
from agent.tools import finish_action
from sandbox.errors import ErrorCode

from .model_server import ModelServer, Reply, call, calls, error, text

# One cent for a thousand tokens in, two for a thousand out.
PRICES = {"input_cost_per_token": 1e-5, "output_cost_per_token": 2e-5}
COST = 100 * 1e-5 + 20 * 2e-5


def model_at(server: ModelServer, **options: Any) -> LiteLLMModel:
    settings = {"api_base": server.base_url, "api_key": "sk-test", "max_wait_seconds": 0.05, **PRICES, **options}
    # a name of its own for a model without a price: litellm keeps the prices it is given, by name
    name = "openai/test" if settings["input_cost_per_token"] else "openai/unpriced"
    return LiteLLMModel(name, **settings)


def conversation(request: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages of a request without the state of the environment at their end."""
    messages: list[dict[str, Any]] = request["messages"]
    return messages[:-1] if str(messages[-1]["content"]).startswith("# Environment now") else messages


def double(number: int) -> int:
    return number * 2


DOUBLE = Action(
    "double",
    double,
    "Twice a number.",
    {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
)


def run(
    replies: Sequence[Reply], budget: Budget | None = None, language: AgentLanguage | None = None, **options: Any
) -> tuple[AgentRun, ModelServer]:
    with ModelServer(replies) as server:
        agent = Agent(
            [Goal("Double numbers.")],
            language or FunctionCallingLanguage(),
            ActionRegistry([DOUBLE, finish_action()]),
            model_at(server, **options),
            Environment(),
            budget=budget,
        )
        return agent.execute("double 21"), server


FINISH = call("finish", {"summary": "42"})


def test_tool_calls_go_out_and_come_back() -> None:
    outcome, server = run([call("double", {"number": 21}, content="I double it."), FINISH])
    assert outcome.status is RunStatus.finished
    assert outcome.result == {"summary": "42"}
    assert [s.tool for s in outcome.steps] == ["double", "finish"]
    first, second = server.requests
    assert [t["function"]["name"] for t in first["tools"]] == ["double", "finish"]
    assert [m["role"] for m in conversation(second)] == ["system", "user", "assistant", "tool"]
    assert second["messages"][2]["tool_calls"][0]["id"] == second["messages"][3]["tool_call_id"] == "call_double_0"
    assert second["messages"][3]["content"] == "42"


def test_usage_and_cost_of_every_call_are_counted() -> None:
    outcome, _ = run([call("double", {"number": 21}), FINISH])
    assert (outcome.usage.calls, outcome.usage.input_tokens, outcome.usage.output_tokens) == (2, 200, 40)
    assert outcome.usage.cost_usd == pytest.approx(2 * COST)
    assert outcome.usage.unpriced_calls == 0


def test_json_in_text_does_the_same() -> None:
    replies = [
        text('I double it. {"tool": "double", "args": {"number": 21}}'),
        text('{"tool": "finish", "args": {"summary": "42"}}'),
    ]
    outcome, server = run(replies, language=JsonLanguage())
    assert outcome.status is RunStatus.finished
    assert "tools" not in server.requests[0]
    assert [m["role"] for m in conversation(server.requests[1])] == ["system", "user", "assistant", "user"]


def test_plain_text_is_answered_with_what_to_do() -> None:
    outcome, server = run([text("I think it is 42."), FINISH])
    assert outcome.status is RunStatus.finished
    assert outcome.steps[0].envelope is not None
    assert outcome.steps[0].envelope["code"] == "unparsable_response"
    told = conversation(server.requests[1])[-1]
    assert told["role"] == "user"
    assert "Call one of the tools" in told["content"]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_transient_faults_are_tried_again_and_billed(status: int) -> None:
    outcome, server = run([error(status, "busy"), error(status, "busy"), FINISH])
    assert outcome.status is RunStatus.finished
    assert len(server.requests) == 3
    assert (outcome.usage.calls, outcome.usage.failed_calls) == (3, 2)


def test_retry_after_is_honoured_up_to_the_cap() -> None:
    _, server = run([error(429, "busy", headers={"retry-after": "0.6"}), FINISH], max_wait_seconds=5)
    assert server.times[1] - server.times[0] >= 0.6
    _, server = run([error(429, "busy", headers={"retry-after": "3000"}), FINISH], max_wait_seconds=0.1)
    assert len(server.requests) == 2


def test_a_model_that_stays_down_ends_the_run() -> None:
    outcome, server = run([error(503, "down")] * 5, max_attempts=3)
    assert outcome.status is RunStatus.model_failed
    assert len(server.requests) == 3
    assert isinstance(outcome.error, ModelError)
    assert outcome.error.code is AgentErrorCode.model_unavailable
    assert outcome.usage.failed_calls == 3


def test_a_spent_quota_is_not_tried_again() -> None:
    outcome, server = run([error(429, "You exceeded your current quota", code="insufficient_quota")] * 2)
    assert outcome.status is RunStatus.model_failed
    assert len(server.requests) == 1


def test_a_timeout_is_tried_again_and_its_prompt_counted() -> None:
    slow = Reply(FINISH.body, delay_seconds=4)
    outcome, server = run([slow, *[FINISH] * 5], timeout_seconds=2)
    assert outcome.status is RunStatus.finished
    # On a busy machine further calls may take too long, or end before they reach the server.
    assert outcome.usage.failed_calls == outcome.usage.calls - 1 >= len(server.requests) - 1 >= 1
    assert outcome.usage.estimated_tokens > 0


def test_a_key_that_the_provider_quotes_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_API_KEY", "sk-of-the-environment")
    quoted = error(401, "wrong: sk-of-the-options sk-of-the-environment", code="invalid_api_key")
    outcome, _ = run([quoted] * 2, api_key="sk-of-the-options")
    assert outcome.status is RunStatus.model_failed
    assert "wrong" in outcome.reason
    assert "sk-of" not in outcome.reason


def test_a_wrong_key_is_said_once() -> None:
    outcome, server = run([error(401, "Incorrect API key provided", code="invalid_api_key")] * 2)
    assert len(server.requests) == 1
    assert isinstance(outcome.error, ModelError)
    assert outcome.error.code is AgentErrorCode.model_credentials_missing


def test_context_overflow_is_its_own_fault() -> None:
    message = "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens."
    outcome, server = run([error(400, message, code="context_length_exceeded")] * 2)
    assert len(server.requests) == 1
    assert isinstance(outcome.error, ModelError)
    assert outcome.error.code is AgentErrorCode.context_window_exceeded
    assert "window" in outcome.error.hint


def test_a_refused_request_is_not_tried_again() -> None:
    outcome, server = run([error(400, "unknown field")] * 2)
    assert len(server.requests) == 1
    assert isinstance(outcome.error, ModelError)
    assert outcome.error.code is AgentErrorCode.model_rejected_request


def test_malformed_arguments_are_repaired_and_the_model_is_told() -> None:
    outcome, server = run([call("double", "{'number': 21,}"), FINISH])
    envelope = outcome.steps[0].envelope
    assert envelope is not None
    assert envelope["result"] == 42
    assert [n["code"] for n in envelope["notices"]] == ["reply_repaired"]
    assert "reply_repaired" in conversation(server.requests[1])[-1]["content"]


def test_arguments_that_were_cut_off_are_refused() -> None:
    outcome, server = run([call("double", '{"number": 2', finish="length"), FINISH])
    envelope = outcome.steps[0].envelope
    assert envelope is not None
    assert envelope["code"] == "unparsable_response"
    sent = conversation(server.requests[1])[-2]["tool_calls"][0]["function"]["arguments"]
    assert sent == '{"malformed": "{\\"number\\": 2"}'


def test_content_in_parts() -> None:
    parts = [{"type": "text", "text": '{"tool": "finish", '}, {"type": "text", "text": '"args": {"summary": "parts"}}'}]
    outcome, _ = run([text(parts)])
    assert outcome.result == {"summary": "parts"}


def test_all_calls_of_a_reply_are_answered() -> None:
    outcome, server = run([calls([("double", {"number": 1}), ("double", {"number": 2})]), FINISH])
    assert outcome.status is RunStatus.finished
    answers = [m for m in server.requests[1]["messages"] if m["role"] == "tool"]
    assert [a["tool_call_id"] for a in answers] == ["call_double_0", "call_double_1"]
    assert [a["content"] for a in answers] == ["2", "4"]


def test_the_limit_on_cost_is_checked_before_the_call() -> None:
    outcome, server = run([call("double", {"number": 1})] * 5, Budget(max_cost_usd=2.5 * COST))
    assert outcome.status is RunStatus.max_cost
    assert len(server.requests) == 3


def test_a_limit_on_cost_without_a_price_stops_instead_of_lying() -> None:
    outcome, server = run(
        [call("double", {"number": 1})] * 5,
        Budget(max_cost_usd=1),
        input_cost_per_token=None,
        output_cost_per_token=None,
    )
    assert outcome.status is RunStatus.max_cost
    assert len(server.requests) == 1
    assert "price" in outcome.reason


def test_the_limit_on_tokens() -> None:
    outcome, _ = run([call("double", {"number": 1})] * 5, Budget(max_tokens=200))
    assert outcome.status is RunStatus.max_tokens
    assert outcome.iterations == 2


def test_retries_stop_at_the_limit_on_seconds() -> None:
    outcome, server = run([error(503, "down")] * 50, Budget(max_seconds=0.5), max_attempts=50, max_wait_seconds=0.2)
    assert outcome.status is RunStatus.max_seconds
    assert len(server.requests) < 50


def test_the_switch_forbids_real_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    with forbid_real_models():
        outcome, server = run([FINISH])
    assert isinstance(outcome.error, ModelError)
    assert outcome.error.code is AgentErrorCode.real_calls_forbidden
    assert server.requests == []
    monkeypatch.setenv("GAMEBOX_FORBID_REAL_MODELS", "1")
    outcome, server = run([FINISH])
    assert isinstance(outcome.error, ModelError)
    assert outcome.error.code is AgentErrorCode.real_calls_forbidden
    assert server.requests == []


@pytest.mark.parametrize("key", [None, ""])
def test_a_missing_key_names_the_variable(monkeypatch: pytest.MonkeyPatch, key: str | None) -> None:
    """With an empty one the run began, failed, and kept its sandbox for an hour."""
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    if key is not None:
        monkeypatch.setenv("ANTHROPIC_API_KEY", key)
    with pytest.raises(ModelError, match="ANTHROPIC_API_KEY") as caught:
        LiteLLMModel("anthropic/claude-sonnet-4-5").check()
    assert caught.value.code is AgentErrorCode.model_credentials_missing
    with pytest.raises(ModelError) as caught:
        LiteLLMModel("no-such-provider-at-all/x").check()
    assert caught.value.code is ErrorCode.invalid_configuration


@pytest.mark.parametrize("model", ["ollama/llama3", "hosted_vllm/a", "lm_studio/a"])
def test_an_empty_key_of_a_local_server_is_not_missing(monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    """It needs none; with an empty variable, as compose files set it, the model was refused."""
    name = f"{model.partition('/')[0].upper()}_API_KEY"
    monkeypatch.setenv(name, "")
    LiteLLMModel(model).check()
    assert os.environ[name] == ""


AS_IN_A_LATER_TEST = """
import sys, warnings
from agent.model.litellm_model import LiteLLMModel, load
if sys.argv[2] == "before us":
    with warnings.catch_warnings():
        import litellm
with warnings.catch_warnings():      # as pytest lays around each test: the filters that litellm adds for itself are gone after it
    load()
warnings.simplefilter("error")
print(LiteLLMModel("openai/test", api_base=sys.argv[1], api_key="sk-test", max_attempts=1)("hello").text)
"""


@pytest.mark.parametrize("imported", ["by us", "before us"])
def test_it_answers_where_warnings_are_errors(imported: str) -> None:
    with ModelServer([text("I am here.")]) as server:
        done = subprocess.run(
            [sys.executable, "-c", AS_IN_A_LATER_TEST, server.base_url, imported],
            cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "I am here.\n"), done.stderr[-2000:]
