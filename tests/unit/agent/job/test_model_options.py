"""--model-option and --fallback: typed by JSON, bounded to what a run may record, and kept with the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent import Budget
from agent.job.models import ModelChoice, make_brain, parse_model_options
from agent.job.options import AgentOptions
from sandbox.errors import SandboxError


def test_a_value_is_what_its_json_says_and_text_otherwise() -> None:
    texts = ["temperature=0", "stop=[1]", "reasoning_effort=high", "api_base=http://localhost:1/v1", "a=", "b=x=y"]
    assert parse_model_options(texts) == {
        "temperature": 0, "stop": [1], "reasoning_effort": "high", "api_base": "http://localhost:1/v1", "a": "", "b": "x=y",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (["temperature"], "KEY=VALUE"),
        (["=1"], "KEY=VALUE"),
        (["two words=1"], "KEY=VALUE"),
        (["a=1", "a=2"], "twice"),
        (["api_key=sk-1"], "secret"),
        (["aws_secret_access_key=1"], "secret"),
        (["extra_headers={}"], "secret"),
        (["azure_ad_token=1"], "secret"),
        (["messages=[]"], "by the run itself"),
        (["stream=true"], "by the run itself"),
        (["timeout_seconds=soon"], "by the run itself"),
        (["x=" + "[" * 100_000], ""),
    ],
)
def test_what_is_no_option_is_refused(texts: list[str], why: str) -> None:
    if not why:
        assert parse_model_options(texts)["x"].startswith("[[")
        return
    with pytest.raises(SandboxError, match=why):
        parse_model_options(texts)


def test_max_tokens_is_no_secret() -> None:
    assert parse_model_options(["max_tokens=5"]) == {"max_tokens": 5}


def test_a_script_takes_neither(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('["hi"]', encoding="utf-8")
    for chosen in (ModelChoice(script=script, options=["a=1"]), ModelChoice(script=script, fallback=["openai/a"])):
        with pytest.raises(SandboxError, match="no effect with --script"):
            make_brain(chosen, Budget())


def test_they_are_kept_with_the_run_and_nobody_elses_log_decides_them() -> None:
    options = AgentOptions(
        task="a", model="openai/a", model_option=("api_base=http://10.0.0.1",), fallback=("openai/b",)
    )
    again = AgentOptions.of_data(options.to_data(), "run")
    assert (again.model_option, again.fallback) == (options.model_option, options.fallback)
    asked = " ".join(again.unasked_for({}))
    assert "--model-option" in asked
    assert "--fallback openai/b" in asked
