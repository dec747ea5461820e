"""Agents of the late contract: ``step(state) -> Action``, ``search_memory(query) -> list[str]``, ``self.llm``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from agent.hub import catalogue
from agent.hub.spec import AgentSpec

from .actions import Action
from .kit import OldAgentKit, create_agent, kit_of
from .observations import CmdOutputObservation, Observation
from .reading import action_from_dict
from .state import State
from .tasks import RootTask

if TYPE_CHECKING:
    from agent.hub.hub import Setting


class LateKit(OldAgentKit):
    """Give the agent the ``State`` at each step. ``make`` is called with the ``LLM``. The state is saved for a resumed
    run.
    """

    name = "late"

    def __init__(self, setting: Setting, *, make: Callable[..., Any]) -> None:
        self.state = State()
        super().__init__(setting, make=make)

    def _reset(self) -> None:
        super()._reset()
        bound = self.setting.budget.max_iterations
        self.state = State(self.root_task, max_iterations=bound, inputs=dict(self.setting.inputs))

    def __call__(self, prompt: Any, /) -> Any:
        """Return the agent's decision as a call. Agents may be named as they once were: CodeActAgent is codeact."""
        call = super().__call__(prompt)
        if call.get("tool") == "delegate":
            call["args"]["agent"] = hub_name(call["args"]["agent"], self.setting.hub.names())
        return call

    def begin(self, task: str) -> None:
        self.agent = create_agent(self.make, self.llm, self.llm)
        self.root_task.goal = self.root_task.goal or task
        reset = getattr(self.agent, "reset", None)
        if callable(reset):
            reset()

    def decide(self) -> Action:
        self.state.iteration += 1
        action = self.agent.step(self.state)
        self.state.updated_info = []
        self.state.background_commands_obs = []
        if not isinstance(action, Action):
            action = action_from_dict(action)
        if action.source is None:
            action.source = "agent"
        return action

    def report(self, action: Action, observation: Observation) -> None:
        if action.type == "null" and isinstance(observation, CmdOutputObservation):
            self.state.background_commands_obs.append(observation)
        self.state.add(action, observation)
        if action.type == "finish":
            self.state.outputs = dict(getattr(action, "outputs", {}))

    def snapshot(self) -> Any:
        return {"state": self.state.to_dict(), "heard": self.heard, **self.tools()}

    def restore(self, state: Any) -> None:
        try:
            self.state = State.from_dict(state["state"])
            self.restore_tools(state)
            self.heard = int(state["heard"])
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(f"This is not the state of an agent of the late contract: {error!r}") from error
        self.root_task: RootTask = self.state.root_task


def hub_name(name: str, known: Sequence[str]) -> str:
    """Return the name among ``known`` of the agent that was once called ``name``; otherwise ``name`` itself."""
    return name if name in known else next((each for each in known if _plain(each) == _plain(name)), name)


def _plain(name: str) -> str:
    return name.lower().replace("_", "").removesuffix("agent")


def late_spec(name: str, make: Callable[..., Any], description: str = "An agent of the late contract.") -> AgentSpec:
    """Return a spec for agents that ``make``, a class or function, creates. Build it like any other, with
    ``hub.build``.

    ``make`` is called with the ``LLM`` if it needs an argument. The setting's brain is the agent's model.
    """
    return AgentSpec(
        name=name,
        description=description,
        actions=("late", *(["delegate"] if "delegate" in catalogue.KITS else [])),
        kit_options={"late": {"make": make}},
        brain=lambda setting: kit_of(setting, LateKit).__call__,
    )
