"""The monologue agent in a real sandbox, with a brain that decides from the prompt it gets and from nothing else."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent import AgentRun, Budget, Prompt
from agent.hub import AgentSpec, Hub, Problem, Setting, build
from agent.hub.files import read
from agent.memory import CondensingMemory, RecallMemory
from agent.memory.layered import layers
from agent.tools.monologue import HINTS
from sandbox import DockerEnvironment

pytestmark = pytest.mark.engine
FILE = Path(__file__).parents[2] / "agent/hub/agents/monologue.md"
SERVER = "python3 -c \"import time; print('the magic word is xyzzy', flush=True); time.sleep(300)\""


def monologue(**options: Any) -> AgentSpec:
    (spec,) = read([FILE])
    assert not isinstance(spec, Problem), spec
    fields = {name: getattr(spec, name) for name in spec.__dataclass_fields__}
    return AgentSpec(**{**fields, "memory_options": {**spec.memory_options, **options}})


class Robot:
    """Thinks when the hint says so, else takes the next of its actions; what it cannot see in the prompt it asks recall for."""

    def __init__(self) -> None:
        self.prompts: list[Prompt] = []
        self.summaries = 0
        self.read = 0

    def __call__(self, prompt: Any) -> Any:
        if "no longer see" in prompt.messages[0]["content"]:
            self.summaries += 1
            return "Done: started a program that told its magic word. Open: write the word to a file."
        self.prompts.append(prompt)
        now = prompt.messages[-1]["content"]
        shown = "\n".join(str(m["content"]) for m in prompt.messages[1:-1])
        if HINTS["beginning"] in now or HINTS["acted"] in now or HINTS["failed"] in now:
            return {"tool": "message", "args": {"content": f"Thought {len(self.prompts)}: " + "so it is, " * 30}}
        return self.act(now, shown)

    def act(self, now: str, shown: str) -> dict[str, Any]:
        if "time.sleep(300)" not in shown and "started a program" not in shown:
            return {"tool": "run", "args": {"command": SERVER, "wait_seconds": 1, "session": "server"}}
        if self.read < 12:
            self.read += 1
            return {"tool": "run", "args": {"command": f"seq {self.read}000 {self.read}100"}}
        word = re.search(r"the magic word is (\w+)", shown)
        if word is None:
            return {"tool": "recall", "args": {"query": "magic word"}}
        if '"path": "word.txt"' not in shown:
            return {"tool": "write", "args": {"path": "word.txt", "content": word[1]}}
        running = re.search(r"^(c\d+): python3", now, re.MULTILINE)
        if running:
            return {"tool": "kill", "args": {"id": running[1]}}
        return {"tool": "finish", "args": {"summary": word[1]}}


def run_of(env: DockerEnvironment, robot: Robot, **options: Any) -> AgentRun:
    setting = Setting(environment=env, hub=Hub(), brain=robot, budget=Budget(max_iterations=60))
    return build(monologue(**options), setting).execute("Find the magic word and write it to word.txt.")


def test_it_thinks_acts_forgets_and_recalls(docker_env: Callable[..., DockerEnvironment]) -> None:
    env, robot = docker_env(), Robot()
    run = run_of(env, robot, threshold_tokens=2500)
    assert (run.status, run.result) == ("finished", {"summary": "xyzzy"}), run.reason
    assert env.read("word.txt").unwrap().content == "xyzzy"
    tools = [step.tool for step in run.steps]
    assert tools.count("recall") == 1
    assert all("message" in (a, b) for a, b in itertools.pairwise(tools)), "it thinks between actions"
    assert robot.summaries >= 1
    assert isinstance(run.memory, CondensingMemory)
    assert [type(layer) for layer in layers(run.memory)][1] is RecallMemory
    assert not [c for c in env.processes().unwrap().commands if c.running]


def test_examples_are_shown_once_and_never_remembered(docker_env: Callable[..., DockerEnvironment]) -> None:
    env, robot = docker_env(), Robot()
    run = run_of(env, robot)
    assert robot.summaries == 0
    for prompt in robot.prompts:
        text = str(prompt)
        assert text.count("# Examples") == text.count("olleh") == 1
    assert "olleh" not in str(run.memory.items)
    recall = next(layer for layer in layers(run.memory) if isinstance(layer, RecallMemory))
    assert recall.recall("olleh test_keep AssertionError") == []
    assert recall.recall("magic word")
