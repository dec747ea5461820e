"""A scripted run of one agent in one language, and the prompts that its brain was given on the way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from agent import Budget, FunctionCallingLanguage, Prompt
from agent.core.agent import Agent
from agent.core.status import StopRun
from agent.hub import AgentSpec, Hub, Setting, build, catalogue
from agent.hub.finding import built_in
from sandbox.environment.base import Environment

from .normalising import normalised
from .scene import scene_of
from .scripts import FIRST, LATE, POINTS_OF_OWN, Turn, of_child, turns

TASK = "The test in test_calc.py fails: fix add."
INPUTS = {"task": TASK, "end": "finish"}  # of those that it has
SUMMARY = "The task: fix add in calc.py. Done: the test was run and fails with -1. Next: change the sign."
CONDENSING = "condensing"
Points = dict[str, Prompt]


def hub_of_the_product() -> Hub:
    """The built-in agents alone: not the user's own, nor those of packages."""
    return Hub(spec for spec in built_in() if isinstance(spec, AgentSpec))


def prompts(name: str, language: str) -> Points:
    """The prompts at the fixed points of a run, normalised. Raises AssertionError where the run did not get through."""
    hub = hub_of_the_product()
    spec = replace(hub.load(name), language=language)
    with scene_of(spec) as scene:
        return {point: _plain(prompt) for point, prompt in _recorded(spec, language, hub, scene).items()}


def first_prompts() -> Points:
    """Return the first prompt of each agent that asks a model, in function calling, by the agent's name."""
    hub = hub_of_the_product()
    found: Points = {}
    for spec in (hub.load(name) for name in hub.names()):
        if spec.brain is None:
            found[spec.name] = _first_prompt(replace(spec, language="function_calling", language_options={}), hub)
    return found


def _first_prompt(spec: AgentSpec, hub: Hub) -> Prompt:
    prompts: list[Prompt] = []

    def end(prompt: Prompt) -> Any:
        prompts.append(prompt)
        raise StopRun("the first prompt is enough")

    with scene_of(spec) as scene:
        agent = build(spec, Setting(environment=scene, hub=hub, brain=end, inputs=_inputs_of(spec)))
        agent.execute(TASK)
        for kit in getattr(agent.environment, "kits", ()):
            kit.close()
    return _plain(prompts[0])


def _inputs_of(spec: AgentSpec) -> dict[str, Any]:
    return {key: value for key, value in INPUTS.items() if key in spec.inputs.get("properties", {})}


def _recorded(spec: AgentSpec, language: str, hub: Hub, scene: Environment) -> Points:
    brain = _Own(spec) if spec.brain is not None else _Scripted(spec, hub)
    setting = Setting(
        environment=scene, hub=hub, brain=brain, budget=Budget(max_iterations=50),
        inputs=_inputs_of(spec),
        language=catalogue.language(language, spec.language_options),
    )  # fmt: skip
    agent = build(replace(spec, brain=brain.of) if isinstance(brain, _Own) else spec, setting)
    brain.agent = agent
    run = agent.execute(TASK)
    for kit in getattr(agent.environment, "kits", ()):
        kit.close()
    assert run.reason == _Scripted.END or isinstance(brain, _Own), (
        spec.name,
        language,
        run.status,
        run.reason,
        run.error,
    )
    return brain.points


def _plain(prompt: Prompt) -> Prompt:
    return Prompt(tuple(normalised(prompt.messages)), tuple(normalised(prompt.tools)))


class _Scripted:
    """The brain of all agents of a run: it follows the script for the first one, and says one thing for those below it."""

    END = "The script is at its end."

    def __init__(self, spec: AgentSpec, hub: Hub) -> None:
        self.points: Points = {}
        self.agent: Agent | None = None
        self._hub = hub
        self._turns: Iterator[Turn] = turns(spec)
        self._count = 0

    def __call__(self, prompt: Any, /) -> Any:
        assert self.agent is not None
        actions = [action["name"] for action in prompt.metadata.get("actions", ())]
        if not actions:
            self.points.setdefault(CONDENSING, prompt)
            return SUMMARY
        if actions != sorted(action.name for action in self.agent.actions.get_actions()):
            return _for_child(prompt, self._hub)
        turn = next(self._turns)
        if turn.point is not None:
            self.points[turn.point] = prompt
        if turn.point == LATE:
            raise StopRun(self.END)
        self._count += 1
        return self._worded(turn)

    def _worded(self, turn: Turn) -> Any:
        """As a model would have written it in the language of the agent."""
        if turn.tool is None:
            return turn.thought
        assert self.agent is not None
        arguments = json.dumps(turn.args)
        language = self.agent.agent_language
        if isinstance(language, FunctionCallingLanguage):
            function = {"name": turn.tool, "arguments": arguments}
            call = {"id": f"call_{self._count}", "type": "function", "function": function}
            return {"role": "assistant", "content": turn.thought, "tool_calls": [call]}
        return f"{turn.thought}\n{language.call_text(turn.tool, arguments)}"


def _for_child(prompt: Prompt, hub: Hub) -> dict[str, Any]:
    """The child is known by how its first goal begins."""
    goal = str(prompt.metadata["goals"][0].description)
    spec = next(s for s in map(hub.load, hub.names()) if goal.startswith(s.goals[0].description.partition("{{")[0]))
    tool, args = of_child(spec)
    return {"tool": tool, "args": args}


class _Own:
    """The brain of an agent that brings its own, with the prompts it is given; those below it have a script."""

    def __init__(self, spec: AgentSpec) -> None:
        assert spec.brain is not None
        self._names = iter(POINTS_OF_OWN.get(spec.name, (FIRST,)))
        self.points: Points = {}
        self.agent: Agent | None = None
        self._make = spec.brain
        self._hub = hub_of_the_product()

    def of(self, setting: Setting) -> Any:
        """What the spec makes its brain by."""
        brain = self._make(setting)

        def asked(prompt: Prompt) -> Any:
            if (point := next(self._names, None)) is not None:
                self.points[point] = prompt
            return brain(prompt)

        return asked

    def __call__(self, prompt: Any, /) -> Any:
        return _for_child(prompt, self._hub)
