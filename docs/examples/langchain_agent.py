"""An agent whose step is a chain of LangChain, on Gamebox's loop and in its sandbox. Needs the package langchain-core.

python docs/examples/langchain_agent.py                     # a scripted model, without a container: NO isolation
python docs/examples/langchain_agent.py --docker            # in a container
python docs/examples/langchain_agent.py --model provider/name "How many lines have the Python files here?"
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from langchain_core.output_parsers import JsonOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda

from agent import Agent, Budget, LiteLLMModel, ScriptedModel
from agent.contracts import LLM, State, action_from_dict, late_spec
from agent.contracts.actions import Action
from agent.hub import Hub, Setting, build
from sandbox import DockerEnvironment, Environment, LocalEnvironment

TASK = "Write the numbers 1 to 10 into numbers.txt and say what their sum is."

RULES = (
    'Answer with one JSON object: {{"action": "run", "args": {{"command": "..."}}}}, '
    '{{"action": "write", "args": {{"path": "...", "content": "..."}}}} or '
    '{{"action": "finish", "args": {{"outputs": {{"answer": "..."}}}}}}.'
)
PROMPT = ChatPromptTemplate.from_messages(
    [("system", RULES), ("human", "Task: {task}\n\nWhat happened so far:\n{history}")]
)

SCRIPT = [
    '{"action": "run", "args": {"command": "seq 10 > numbers.txt"}}',
    'Let me see.\n```json\n{"action": "run", "args": {"command": "paste -sd+ numbers.txt | tr + \' \'"}}\n```',
    '{"action": "run", "args": {"command": "awk \'{s+=$1} END {print s}\' numbers.txt"}}',
    '{"action": "finish", "args": {"outputs": {"answer": "55"}}}',
]


class LangChainAgent:
    """An agent of the late contract: ``step(state) -> Action``."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self.chain = PROMPT | RunnableLambda(self.ask) | JsonOutputParser() | RunnableLambda(action_from_dict)

    def ask(self, prompt: Any) -> str:
        roles = {"system": "system", "human": "user", "ai": "assistant"}
        messages = [{"role": roles[message.type], "content": message.content} for message in prompt.to_messages()]
        return str(self.llm.completion(messages)["choices"][0]["message"]["content"])

    def step(self, state: State) -> Action:
        told = [json.dumps(event.to_memory()) for pair in state.history[1:] for event in pair]
        action: Action = self.chain.invoke({"task": state.root_task.goal, "history": "\n".join(told) or "nothing"})
        return action

    def search_memory(self, query: str) -> list[str]:  # noqa: ARG002 - it remembers nothing
        return []


def make_agent(model: str | None = None, environment: Environment | None = None) -> Agent:
    brain = ScriptedModel(SCRIPT) if model is None else LiteLLMModel(model)
    setting = Setting(
        environment=environment or LocalEnvironment(), hub=Hub(), brain=brain, budget=Budget(max_iterations=20)
    )
    return build(late_spec("langchain", LangChainAgent), setting)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("task", nargs="?", default=TASK)
    parser.add_argument("--model")
    parser.add_argument("--docker", action="store_true")
    options = parser.parse_args()
    with DockerEnvironment() if options.docker else LocalEnvironment() as environment:
        run = make_agent(options.model, environment).execute(options.task)
    print(run.status, run.reason, run.result)


if __name__ == "__main__":
    main()
