"""Frameworks that reach Gamebox as an MCP server, without an adapter of ours."""

from __future__ import annotations

import os
from collections.abc import Mapping

from .suite import Place, Suite
from .venvs import ROOT

_HERE = ROOT / "tests/foreign"
_APART = ("-c", "/dev/null", "--confcutdir", str(_HERE), "--rootdir", str(_HERE), str(_HERE / "mcp_agents.py"))


def _pydantic_ai(place: Place) -> list[str]:
    return place.pytest(*_APART, "-k", "pydantic_ai")


def _langgraph(place: Place) -> list[str]:
    return place.pytest(*_APART, "-k", "langgraph")


def _env(_: Place) -> Mapping[str, str]:
    # The server is that of this checkout: a framework may need another version of the SDK than the server.
    return {"PATH": f"{ROOT / '.venv/bin'}{os.pathsep}{os.environ['PATH']}"}


SUITES = (
    Suite(
        "mcp-pydantic-ai",
        "Pydantic AI over MCP, our example with its test models",
        ("pydantic-ai-slim[mcp]==2.68.0", "pytest==9.2.0"),
        _pydantic_ai,
        tests=3,
        service=(),
        env=_env,
        origin="ours, in `tests/foreign/mcp_agents.py`",
    ),
    Suite(
        "mcp-langgraph",
        "LangGraph over MCP, our example with a test model",
        ("langgraph==1.2.22", "langchain-mcp-adapters==0.3.2", "pytest==9.2.0"),
        _langgraph,
        tests=2,
        service=(),
        env=_env,
        origin="ours, in `tests/foreign/mcp_agents.py`",
    ),
)
