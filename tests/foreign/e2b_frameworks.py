"""Frameworks that reach Gamebox over E2B's protocol, without an adapter of ours: the lines of their pages."""

from __future__ import annotations

from collections.abc import Callable

from .e2b_clients import env
from .suite import Place, Suite
from .venvs import ROOT

_HERE = ROOT / "tests/foreign"
_APART = ("-c", "/dev/null", "--confcutdir", str(_HERE), "--rootdir", str(_HERE), str(_HERE / "e2b_agents.py"))


def _only(test: str) -> Callable[[Place], list[str]]:
    return lambda place: place.pytest(*_APART, "-k", test)


def _suite(name: str, subject: str, *packages: str, python: str = "") -> Suite:
    return Suite(
        name,
        subject,
        (*packages, "pytest==9.2.0"),
        _only(f"test_{name.replace('-', '_')}"),
        tests=1,
        service=(),
        env=env,
        python=python,
        origin="ours, in `tests/foreign/e2b_agents.py`",
    )


SUITES = (
    _suite(
        "openai-agents",
        "OpenAI Agents SDK over E2B's protocol, the lines of its page with its scripted model",
        "openai-agents[e2b]==0.24.0",
    ),
    _suite("langchain-e2b", "deepagents over E2B's protocol, the lines of its page with a test model", "langchain-e2b==0.0.6"),
    _suite("smolagents", "smolagents over E2B's protocol, the lines of its page with a test model", "smolagents[e2b]==1.26.0"),
    _suite(
        "harbor",
        "Harbor over E2B's protocol, a task from whose Dockerfile it builds a template, with its oracle",
        "harbor[e2b]==0.24.0",
        python="python3.12",
    ),
)
