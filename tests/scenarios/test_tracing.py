"""Traces as users get them: from a model of litellm, and from the command to a collector that speaks OTLP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent import Action, Agent, FallbackModel, LiteLLMModel
from agent.model.brain import receiving_deltas
from tests.programs import run_gamebox
from tests.servers.otlp import Collector, ReceivedSpan
from tests.servers.providers import Answer, Provider, busy
from tests.spans import Spans, attributes


@pytest.fixture
def spans() -> Iterator[Spans]:
    made = Spans()
    yield made
    made.provider.shutdown()


def finish(summary: str) -> str:
    """End the run."""
    return summary


def agent_with(model: Any, spans: Spans) -> Agent:
    actions = [Action.of(finish, terminal=True)]
    layers = [spans.layer(agent_name="adder")]
    return Agent("Add.", action_registry=actions, generate_response=model, layers=layers)


def test_a_model_of_litellm_has_provider_model_options_and_usage(spans: Spans) -> None:
    answers = [Answer(calls=[("finish", {"summary": "3"})], reasoning_tokens=5)]
    with Provider(answers) as provider:
        model = LiteLLMModel(
            "openai/gpt-4.1", **provider.options("openai"), temperature=0, input_cost_per_token=1e-6,
            output_cost_per_token=2e-6,
        )  # fmt: skip
        run = agent_with(model, spans).execute("x")
    assert run.ok, run
    said = attributes(spans.one("chat gpt-4.1"))
    assert said["gen_ai.provider.name"] == "openai"
    assert said["gen_ai.request.model"] == said["gen_ai.response.model"] == "gpt-4.1"
    assert said["gen_ai.request.temperature"] == 0.0
    assert said["gen_ai.usage.input_tokens"] == run.usage.input_tokens > 0
    assert said["gen_ai.usage.output_tokens"] == run.usage.output_tokens > 0
    assert said["gen_ai.usage.reasoning.output_tokens"] == 5
    assert said["gamebox.usage.cost_usd"] == pytest.approx(run.usage.cost_usd)
    top = attributes(spans.one("invoke_agent adder"))
    assert top["gen_ai.usage.input_tokens"] == run.usage.input_tokens


def test_a_streamed_reply_with_retries_is_one_span(spans: Spans) -> None:
    deltas: list[Any] = []
    with Provider([busy("0"), Answer(text="Ready.", calls=[("finish", {"summary": "3"})])]) as provider:
        model = LiteLLMModel("openai/gpt-4.1", **provider.options("openai"), max_wait_seconds=0.01)
        with receiving_deltas(deltas.append):
            run = agent_with(model, spans).execute("x")
    assert run.ok, run
    assert deltas
    assert attributes(spans.one("chat gpt-4.1"))["gamebox.usage.failed_calls"] == 1


def test_the_response_names_the_fallback_that_answered(spans: Spans) -> None:
    with Provider([Answer(status=400, error="no"), Answer(calls=[("finish", {"summary": "3"})])]) as provider:
        options: dict[str, Any] = {**provider.options("openai"), "max_attempts": 1}
        models = [LiteLLMModel("openai/gpt-4.1", **options), LiteLLMModel("openai/gpt-4.1-mini", **options)]
        assert agent_with(FallbackModel(models), spans).execute("x").ok
    said = attributes(spans.one("chat gpt-4.1"))
    assert said["gen_ai.request.model"] == "gpt-4.1"
    assert said["gen_ai.response.model"] == "gpt-4.1-mini"


# --- the command ------------------------------------------------------------------
STEPS = [
    {"thought": "look", "tool": "run", "args": {"command": "echo canary-9; exit 3"}},
    {"tool": "finish", "args": {"summary": "done"}},
]


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    (folder / "a.txt").write_text("a\n")
    (tmp_path / "script.json").write_text(json.dumps(STEPS))
    return folder


def environ(tmp_path: Path, **more: str) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return {**own, "XDG_STATE_HOME": str(tmp_path / "state"), "OTEL_BSP_SCHEDULE_DELAY": "100", **more}


def traced(repo: Path, *more: str, **variables: str) -> subprocess.CompletedProcess[str]:
    words = [
        "agent",
        "t",
        "--agent",
        "coding",
        "--repo",
        str(repo),
        "--script",
        str(repo.parent / "script.json"),
        "--local",
    ]
    return run_gamebox(*words, *more, env=environ(repo.parent, **variables))


def by_name(spans: list[ReceivedSpan]) -> dict[str, ReceivedSpan]:
    return {span.name: span for span in spans}


def test_an_endpoint_in_the_environment_switches_traces_on(repo: Path) -> None:
    with Collector() as collector:
        done = traced(repo, OTEL_EXPORTER_OTLP_ENDPOINT=collector.address, OTEL_EXPORTER_OTLP_HEADERS="x-team=a1")
    assert done.returncode == 0, done.stderr
    assert f"spans of this run go to {collector.address}" in done.stderr
    found = by_name(collector.spans)
    assert sorted(found) == ["chat", "execute_tool finish", "execute_tool run", "invoke_agent coding"]
    top, tool = found["invoke_agent coding"], found["execute_tool run"]
    assert tool.parent_id == top.span_id
    assert top.parent_id == ""
    assert tool.attributes["process.exit.code"] == 3
    assert not tool.failed  # a command that ran is a success
    assert found["chat"].kind == "CLIENT"
    assert list(found["chat"].attributes["gen_ai.response.finish_reasons"]) == ["tool_call"]
    assert top.attributes["gen_ai.conversation.id"] == top.attributes["gamebox.run.id"]
    assert top.resource["service.name"] == "gamebox"
    assert all(headers["x-team"] == "a1" for headers in collector.headers)
    assert "canary" not in str(collector.spans)


def test_content_goes_along_only_on_request(repo: Path) -> None:
    with Collector() as collector:
        variables = {
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{collector.address}/v1/traces",
            "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true",
            "OTEL_SERVICE_NAME": "mine",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        }
        assert traced(repo, "--no-log", **variables).returncode == 0
    found = by_name(collector.spans)
    assert "canary-9" in found["execute_tool run"].attributes["gen_ai.tool.call.result"]
    assert found["chat"].resource["service.name"] == "mine"


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        ((), {}),
        (("--no-otel",), {"OTEL_EXPORTER_OTLP_ENDPOINT": "here"}),
        ((), {"OTEL_EXPORTER_OTLP_ENDPOINT": "here", "OTEL_SDK_DISABLED": "true"}),
        (("--otel",), {"OTEL_EXPORTER_OTLP_ENDPOINT": "here", "OTEL_SDK_DISABLED": "TRUE"}),
        (("--otel",), {"OTEL_EXPORTER_OTLP_ENDPOINT": "here", "OTEL_TRACES_EXPORTER": "none"}),
    ],
)
def test_traces_are_off_otherwise(repo: Path, options: tuple[str, ...], variables: dict[str, str]) -> None:
    with Collector() as collector:
        done = traced(
            repo, *options, **{name: value.replace("here", collector.address) for name, value in variables.items()}
        )
    assert done.returncode == 0
    assert not collector.spans
    assert ("no spans are sent" in done.stderr) is ("--otel" in options)


def test_a_collector_that_is_gone_does_not_hold_up_the_command(repo: Path) -> None:
    with Collector() as collector:
        pass
    began = time.monotonic()
    done = traced(repo, "--otel", OTEL_EXPORTER_OTLP_ENDPOINT=collector.address)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 30


def test_another_protocol_is_refused_in_plain_words(repo: Path) -> None:
    done = traced(repo, "--otel", OTEL_EXPORTER_OTLP_PROTOCOL="grpc")
    assert done.returncode == 2
    assert "gamebox sends spans as http/protobuf only" in done.stderr


def test_a_batch_is_traced_task_by_task(repo: Path) -> None:
    tasks = repo.parent / "tasks.jsonl"
    script = str(repo.parent / "script.json")
    tasks.write_text("".join(json.dumps({"id": f"t{n}", "task": "t", "repo": str(repo)}) + "\n" for n in range(3)))
    with Collector() as collector:
        words = [
            "batch",
            str(tasks),
            "--script",
            script,
            "--local",
            "--workers",
            "2",
            "-o",
            str(repo.parent / "out"),
            "--otel",
        ]
        done = run_gamebox(*words, env=environ(repo.parent, OTEL_EXPORTER_OTLP_ENDPOINT=collector.address))
    assert done.returncode == 0, done.stderr
    tops = [span for span in collector.spans if span.name == "invoke_agent coding"]
    assert len({span.trace_id for span in tops}) == 3
    assert len({span.attributes["gen_ai.conversation.id"] for span in tops}) == 3


WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from agent.cli.app import main
main()
"""


@pytest.mark.parametrize("asked", [True, False])
def test_without_the_extra_the_command_says_how_to_install_it_if_traces_are_asked_for(repo: Path, asked: bool) -> None:
    words = [
        "agent",
        "t",
        "--agent",
        "coding",
        "--repo",
        str(repo),
        "--script",
        str(repo.parent / "script.json"),
        "--local",
    ]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *words, *(["--otel"] if asked else [])],
        env=environ(repo.parent, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ("pip install 'gamebox[otel]'" in done.stderr) is asked, done.stderr
    assert (done.returncode == 0) is not asked


OFF = """
import sys
from agent import Action, Agent, ScriptedModel

def finish(summary: str) -> str:
    return summary

made = Agent("x", action_registry=[Action.of(finish, terminal=True)], generate_response=ScriptedModel([
    {"tool": "finish", "args": {"summary": "3"}}]))
assert made.execute("x").ok
import agent.job.telemetry
with agent.job.telemetry.tracing(None, print) as layers:
    assert layers == ()
sys.exit(any(name.startswith("opentelemetry") for name in sys.modules))
"""


def test_nothing_of_opentelemetry_is_imported_while_traces_are_off(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OFF], env=environ(tmp_path), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
