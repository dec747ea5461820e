"""What runs an old agent on our loop: brain, hook and kit in one, with what differs between the contracts left to subclasses."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from agent.actions import Action as OurAction
from agent.hooks import Hooks, Step
from agent.kits import Kit
from agent.memory import Memory
from agent.run import AgentRun
from agent.status import RunStatus, StopRun
from agent.tools import SandboxAction
from agent.tools.ipython import IPythonKit

from .actions import Action, AgentRejectAction, ChangeAgentStateAction, MessageAction, NullAction
from .background import Background
from .browser import Browser
from .llm import LLM
from .observations import ErrorObservation, NullObservation, Observation
from .own_actions import NOBODY, own_actions
from .reading import MalformedActionError
from .tasks import RootTask
from .translating import invocation_of, observation_of

if TYPE_CHECKING:
    from agent.hub.setting import Setting

OPERATIONS = ("run", "read", "write", "kill", "browse")
ENDING = frozenset({"stopped", "finished", "error", "paused", "rejected"})


class OldAgentKit(Kit, Hooks, ABC):
    """One old agent in one environment. ``make`` answers a new agent: called without arguments, or with the one it asks for (see
    the subclass); the agent has ``llm`` afterwards. An agent runs one task after the other; each finds it anew.
    """

    def __init__(self, setting: Setting, *, make: Callable[..., Any]) -> None:
        self.setting = setting
        self.environment = setting.environment
        self.make = make
        self.llm = LLM(setting.brain)
        self.python = IPythonKit(setting)
        self.browser = Browser(self.environment, self.said)
        self._actions = [*(SandboxAction(name) for name in OPERATIONS), *own_actions(self)]
        self._ended = False
        self._anew()

    def _anew(self) -> None:
        """Forget the last run."""
        self.background = Background(self.environment)
        self.browser.anew()
        self.root_task = RootTask()
        self.agent: Any = None
        self.heard = 0
        self._action: Action = NullAction()
        self._fault: str | None = None

    def begin(self, task: str) -> None:
        """The first task of a run is known."""

    @abstractmethod
    def decide(self) -> Action:
        """The agent's next action. Raises MalformedActionError for what is none."""

    @abstractmethod
    def happened(self, action: Action, observation: Observation) -> None:
        """Tell the agent."""

    def actions(self) -> Sequence[OurAction]:
        """See the base class."""
        return self._actions

    def hooks(self) -> Sequence[Hooks]:
        """See the base class."""
        return (self,)

    def __call__(self, _prompt: Any, /) -> Any:
        """The brain: the agent's decision as a call. What the agent raises ends the run."""
        self._fault = None
        try:
            self._action = self.decide()
        except MalformedActionError as error:
            self._action, self._fault = NullAction(), f"{error.message} {error.hint}"
            return {"content": self._fault.replace("{", "(").replace("}", ")")}  # nothing that could be read as a call
        return invocation_of(self._action, self.background)

    def on_step_start(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        """What came by itself: what the user said, and what commands in the background printed."""
        if self._ended:
            self._ended = False
            self.python.end()
            self._anew()
        said = [str(item["content"]) for item in memory.items if item["role"] == "user"]
        if self.agent is None:
            self.begin(said[0] if said else "")
        for text in said[self.heard :]:
            self._heard(text)
        self.heard = len(said)
        for news in self.background.news():
            self.happened(NullAction(), news)

    def on_result(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        """The answer, in the agent's words. Raises StopRun where the agent asked for an end."""
        action, envelope = self._action, step.envelope or {}
        if self._fault is not None:
            self.happened(action, ErrorObservation(self._fault))
            return
        self.happened(action, observation_of(action, envelope, self.background, self.browser))
        if envelope.get("tool_executed") is not True:
            return
        if isinstance(action, MessageAction) and action.wait_for_response:
            self._heard(str((envelope.get("result") or {}).get("answer")))
        if isinstance(action, AgentRejectAction):
            raise StopRun("The agent gave the task back.", RunStatus.rejected, action.outputs)
        if isinstance(action, ChangeAgentStateAction) and action.agent_state in ENDING:
            raise StopRun(f"The agent asked for the state {action.agent_state}.")

    def cancel(self) -> None:
        """See the base class."""
        self.python.cancel()

    def tools(self) -> dict[str, Any]:
        """Where the kernel, the browser and the commands in the background are, for ``take_tools``."""
        return {"background": self.background.snapshot(), "browser": self.browser.snapshot(), "python": self.python.snapshot()}

    def take_tools(self, state: Any) -> None:
        """Take over what ``tools`` gave. Raises KeyError, TypeError, IndexError or ValueError for what is none."""
        self.background.restore(state["background"])
        self.browser.restore(state["browser"])
        self.python.restore(state["python"])

    def on_terminate(self, run: AgentRun) -> None:  # noqa: ARG002
        """The next run begins anew."""
        self._ended = True

    def search(self, query: str) -> list[str]:
        """What the agent's own memory finds."""
        return [str(found) for found in self.agent.search_memory(query) or ()]

    def said(self, content: str, wait_for_response: bool = False) -> dict[str, Any]:
        """The agent speaks; what the user answers, where an answer is waited for."""
        if not wait_for_response:
            return {}
        ask = self.setting.ask_user
        return {"answer": (ask(content) if ask is not None else None) or NOBODY}

    def _heard(self, text: str) -> None:
        message = MessageAction(text)
        message.source = "user"
        self.happened(message, NullObservation(""))


def made(make: Callable[..., Any], argument: Any, llm: LLM) -> Any:
    """The agent of ``make``, which gets ``argument`` if it cannot do without."""
    try:
        parameters = list(inspect.signature(make).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needs = any(p.default is p.empty and p.kind in positional for p in parameters)
    agent = make(argument) if needs else make()
    if getattr(agent, "llm", None) is None:
        agent.llm = llm
    return agent
