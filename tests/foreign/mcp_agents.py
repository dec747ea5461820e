"""The examples of agents that use Gamebox over MCP, with the test models of their frameworks: here, and at a service."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "docs/examples"


def _example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=["here", "at a service"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the sandbox of ``gamebox mcp`` is: the variables of a service are set already."""
    if request.param == "here":
        monkeypatch.delenv("GAMEBOX_URL")
    return str(request.param)


def test_pydantic_ai(place: str) -> None:
    pytest.importorskip("pydantic_ai")
    example = _example("mcp_pydantic_ai")
    assert '"output":"55\\n"' in asyncio.run(example.ask(example.FunctionModel(example.scripted), example.TASK))


def test_pydantic_ai_test_model_over_http() -> None:
    """The framework's test model calls tools with arguments that it makes from their schemas."""
    pytest.importorskip("pydantic_ai")
    from pydantic_ai import Agent
    from pydantic_ai.mcp import MCPToolset
    from pydantic_ai.models.test import TestModel

    headers = {"Authorization": f"Bearer {os.environ['GAMEBOX_API_KEY']}"}
    url = f"{os.environ['GAMEBOX_URL']}/mcp"
    # The first request to a service loads the SDK of MCP: on a busy machine that takes longer than the five seconds of the default.
    toolset = MCPToolset(url, headers=headers, tool_error_behavior="failed", init_timeout=60)

    async def work() -> str:
        agent = Agent(TestModel(call_tools=["write", "read", "list", "search"]), toolsets=[toolset])
        async with agent:
            return str((await agent.run("Try the tools.")).output)

    assert '"tool_executed":true' in asyncio.run(work())


def test_langgraph(place: str) -> None:
    pytest.importorskip("langgraph")
    example = _example("mcp_langgraph")
    model = example.ScriptedModel(messages=iter(example.SCRIPT))
    messages = asyncio.run(example.ask(model, example.TASK))
    assert any(message.type == "tool" and message.text.startswith("55\n[exit code 0]") for message in messages)
