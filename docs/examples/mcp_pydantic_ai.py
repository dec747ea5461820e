"""An agent of Pydantic AI whose tools are those of gamebox mcp. Needs pydantic-ai-slim[mcp].

python docs/examples/mcp_pydantic_ai.py                                    # a scripted model
python docs/examples/mcp_pydantic_ai.py provider:name "What does this sandbox run?"
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

TASK = "Write the numbers 1 to 10 into numbers.txt and say what their sum is."
SCRIPT = [
    ToolCallPart("write", {"path": "numbers.txt", "content": "\n".join(map(str, range(1, 11))) + "\n"}),
    ToolCallPart("run", {"command": "awk '{s += $1} END {print s}' numbers.txt"}),
]


def scripted(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:  # noqa: ARG001
    """Call the tools of the script, and answer with what the last one said."""
    results = [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
    if len(results) < len(SCRIPT):
        return ModelResponse([SCRIPT[len(results)]])
    return ModelResponse([TextPart(f"The last tool said: {results[-1].model_response_str()}")])


async def ask(model: Any, task: str) -> str:
    """Have an agent with a sandbox carry out the task, and return its answer."""
    # At a service: MCPToolset("https://sandboxes.example.com/mcp", headers={"Authorization": f"Bearer {key}"})
    sandbox = MCPToolset(StdioTransport("gamebox", ["mcp"], env=dict(os.environ)))
    agent = Agent(model, toolsets=[sandbox], instructions="You work in a sandbox, with its tools.")
    async with agent:
        return str((await agent.run(task)).output)


if __name__ == "__main__":
    name, task = (sys.argv[1], sys.argv[2]) if len(sys.argv) > 2 else (FunctionModel(scripted), TASK)
    print(asyncio.run(ask(name, task)))
