"""A graph of LangGraph whose tools are those of gamebox mcp. Needs langgraph and langchain-mcp-adapters.

python docs/examples/mcp_langgraph.py        # a scripted model; give ask() any chat model that calls tools
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

TASK = "Write the numbers 1 to 10 into numbers.txt and say what their sum is."
NUMBERS = "\n".join(map(str, range(1, 11))) + "\n"
SCRIPT = [
    AIMessage("", tool_calls=[{"name": "write", "args": {"path": "numbers.txt", "content": NUMBERS}, "id": "1"}]),
    AIMessage("", tool_calls=[{"name": "run", "args": {"command": "awk '{s += $1} END {print s}' numbers.txt"}, "id": "2"}]),
    AIMessage("The sum is 55."),
]


class ScriptedModel(GenericFakeChatModel):
    """A model for tests, which may be given tools."""

    def bind_tools(self, tools: Sequence[Any], **options: Any) -> ScriptedModel:  # noqa: ARG002
        """Return the model: the script knows the tools."""
        return self


async def ask(model: Any, task: str) -> list[Any]:
    """Have a graph with a sandbox carry out the task, and return its messages."""
    # At a service: {"transport": "streamable_http", "url": "https://sandboxes.example.com/mcp", "headers": {"Authorization": ...}}
    gamebox: Any = {"transport": "stdio", "command": "gamebox", "args": ["mcp"], "env": dict(os.environ)}
    client = MultiServerMCPClient({"gamebox": gamebox})
    async with client.session("gamebox") as session:  # one sandbox for all calls
        tools = await load_mcp_tools(session)
        graph = StateGraph(MessagesState)
        graph.add_node("model", _answering(model.bind_tools(tools)))
        graph.add_node("tools", ToolNode(tools))
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", tools_condition)
        graph.add_edge("tools", "model")
        state: Any = {"messages": [HumanMessage(task)]}
        return list((await graph.compile().ainvoke(state))["messages"])


def _answering(model: Any) -> Callable[[MessagesState], Any]:
    async def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    return answer


if __name__ == "__main__":
    for message in asyncio.run(ask(ScriptedModel(messages=iter(SCRIPT)), TASK)):
        print(f"{message.type}: {message.text or getattr(message, 'tool_calls', '')}")
