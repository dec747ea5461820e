"""Run an old agent on our loop: brain, hook and kit in one. What differs between the contracts is left to subclasses."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from agent.core.actions import Action as OurAction
from agent.core.kits import Kit
from agent.core.loop.hooks import Hooks, Step
from agent.core.run import AgentRun
from agent.core.status import RunStatus, StopRun
from agent.memory import Memory
from agent.tools import SandboxAction
from agent.tools.ipython import IPythonKit
from sandbox.errors import ToolError

from .actions import Action, AgentRejectAction, ChangeAgentStateAction, MessageAction, NullAction
from .background import Background
from .browser import Browser
from .llm import LLM
from .observations import ErrorObservation, NullObservation, Observation
from .reading import MalformedActionError
from .tasks import RootTask
from .translating import invocation_of, observation_of

if TYPE_CHECKING:
    from agent.hub.hub import Setting

_TEXT, _WHOLE, _OBJECT, _TRUTH = {"type": "string"}, {"type": "integer"}, {"type": "object"}, {"type": "boolean"}
NOBODY = "Nobody answers during this run. Decide for yourself, or finish."
MOST_LINES_READ = 1_000_000
OPERATIONS = ("run", "read", "write", "kill", "browse")
K = TypeVar("K", bound=Kit)
ENDING = frozenset({"stopped", "finished", "error", "paused", "rejected"})


class OldAgentKit(Kit, Hooks, ABC):
    """One old agent in one environment.

    ``make`` creates the agent: called without arguments, or with the one that it asks for (see the subclass). Then the
    agent has ``llm``. An agent runs one task after another, and a new one is created for each.
    """

    def __init__(self, setting: Setting, *, make: Callable[..., Any]) -> None:
        self.setting = setting
        self.environment = setting.environment
        self.make = make
        self.llm = LLM(setting.brain)
        self.python = IPythonKit(setting)
        self.browser = Browser(self.environment, self.send_message)
        self._actions = [*(SandboxAction(name) for name in OPERATIONS), *_own_actions(self)]
        self._ended = False
        self._reset()

    def _reset(self) -> None:
        """Forget the last run."""
        self.background = Background(self.environment)
        self.browser.reset()
        self.root_task = RootTask()
        self.agent: Any = None
        self.heard = 0
        self._action: Action = NullAction()
        self._fault: str | None = None

    def begin(self, task: str) -> None:
        """Begin the first task of a run."""

    @abstractmethod
    def decide(self) -> Action:
        """Return the agent's next action. Raises MalformedActionError for anything else."""

    @abstractmethod
    def report(self, action: Action, observation: Observation) -> None:
        """Report an action and its observation to the agent."""

    def actions(self) -> Sequence[OurAction]:
        return self._actions

    def hooks(self) -> Sequence[Hooks]:
        return (self,)

    def __call__(self, _prompt: Any, /) -> Any:
        """Return the agent's decision as a call: this is the brain. What the agent raises ends the run."""
        self._fault = None
        try:
            self._action = self.decide()
        except MalformedActionError as error:
            self._action, self._fault = NullAction(), f"{error.message} {error.hint}"
            return {"content": self._fault.replace("{", "(").replace("}", ")")}  # nothing that could be read as a call
        return invocation_of(self._action, self.background)

    def on_step_start(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        """Report messages of the user, and what commands in the background printed."""
        if self._ended:
            self._ended = False
            self.python.end()
            self._reset()
        messages = [str(item["content"]) for item in memory.items if item["role"] == "user"]
        if self.agent is None:
            self.begin(messages[0] if messages else "")
        for text in messages[self.heard :]:
            self._heard(text)
        self.heard = len(messages)
        for news in self.background.news():
            self.report(NullAction(), news)

    def on_result(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        """Report the result in the agent's form. Raises StopRun if the agent asked for the end."""
        action, envelope = self._action, step.envelope or {}
        if self._fault is not None:
            self.report(action, ErrorObservation(self._fault))
            return
        self.report(action, observation_of(action, envelope, self.background, self.browser))
        if envelope.get("tool_executed") is not True:
            return
        if isinstance(action, MessageAction) and action.wait_for_response:
            self._heard(str((envelope.get("result") or {}).get("answer")))
        if isinstance(action, AgentRejectAction):
            raise StopRun("The agent gave the task back.", RunStatus.rejected, action.outputs)
        if isinstance(action, ChangeAgentStateAction) and action.agent_state in ENDING:
            raise StopRun(f"The agent asked for the state {action.agent_state}.")

    def cancel(self) -> None:
        self.python.cancel()

    def tools(self) -> dict[str, Any]:
        """Return the state of kernel, browser and commands in the background, for ``restore_tools``."""
        return {
            "background": self.background.snapshot(),
            "browser": self.browser.snapshot(),
            "python": self.python.snapshot(),
        }

    def restore_tools(self, state: Any) -> None:
        """Restore what ``tools`` returned. Raises KeyError, TypeError, IndexError or ValueError for other data."""
        self.background.restore(state["background"])
        self.browser.restore(state["browser"])
        self.python.restore(state["python"])

    def on_terminate(self, run: AgentRun) -> None:  # noqa: ARG002
        """Reset for the next run."""
        self._ended = True

    def search(self, query: str) -> list[str]:
        """Return what the agent's own memory finds."""
        return [str(found) for found in self.agent.search_memory(query) or ()]

    def send_message(self, content: str, wait_for_response: bool = False) -> dict[str, Any]:
        """Send a message of the agent to the user, and return the reply if it waits for one."""
        if not wait_for_response:
            return {}
        ask = self.setting.ask_user
        return {"answer": (ask(content) if ask is not None else None) or NOBODY}

    def _heard(self, text: str) -> None:
        message = MessageAction(text)
        message.source = "user"
        self.report(message, NullObservation(""))


def create_agent(make: Callable[..., Any], argument: Any, llm: LLM) -> Any:
    """Return the agent that ``make`` creates, with ``argument`` if it needs one."""
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


def kit_of(setting: Setting, kind: type[K]) -> K:
    """Return the kit of that class. Raises LookupError if the agent has none."""
    found = next((kit for kit in setting.kits if isinstance(kit, kind)), None)
    if found is None:
        raise LookupError(f"The agent has no kit {kind.name!r}.")
    return found


def _own_actions(kit: OldAgentKit) -> list[OurAction]:
    """Return the actions that are not operations of a sandbox: they belong to the run, or to the agent itself."""

    def add_task(parent: str, goal: str, subtasks: list[Any] | None = None) -> dict[str, Any]:
        return kit.root_task.add_subtask(parent, goal, subtasks).to_dict()

    def modify_task(task_id: str, state: str) -> None:
        kit.root_task.set_subtask_state(task_id, state)

    return [
        _action(
            "finish",
            lambda outputs=None, **more: {**(outputs or {}), **more},
            "End the run.",
            outputs=_OBJECT,
            terminal=True,
        ),
        _action("reject", lambda outputs=None: outputs or {}, "Return the task undone.", outputs=_OBJECT),
        _action("recall", kit.search, "Search the agent's own memory.", ["query"], query=_TEXT),
        _action(
            "message",
            kit.send_message,
            "Send a message to the user.",
            ["content"],
            content=_TEXT,
            wait_for_response=_TRUTH,
        ),
        _action("summarize", lambda summary: summary, "Add a summary to the history.", ["summary"], summary=_TEXT),
        _action("wait", lambda: kit.background.wait(1.0), "Wait for output of commands in the background."),
        _action(
            "change_agent_state",
            lambda agent_state: agent_state,
            "Ask for another state of the run.",
            ["agent_state"],
            agent_state=_TEXT,
        ),
        _action(
            "add_task",
            add_task,
            "Add a task to the plan.",
            ["parent", "goal"],
            parent=_TEXT,
            goal=_TEXT,
            subtasks={"type": "array"},
        ),
        _action(
            "modify_task",
            modify_task,
            "Set the state of a task.",
            ["task_id", "state"],
            task_id=_TEXT,
            state=_TEXT,
        ),
        _action(
            "write_lines",
            lambda **args: _write_lines(kit, **args),
            "Replace lines of a file.",
            ["path", "content", "start", "end"],
            path=_TEXT,
            content=_TEXT,
            start=_WHOLE,
            end=_WHOLE,
        ),
        _action(
            "run_ipython", kit.python.run, "Run Python code in a kernel whose variables stay.", ["code"], code=_TEXT
        ),
        _action(
            "browse_interactive", kit.browser.do, "Control a text browser.", ["browser_actions"], browser_actions=_TEXT
        ),
    ]


def _action(
    name: str,
    function: Callable[..., Any],
    description: str,
    required: Sequence[str] = (),
    *,
    terminal: bool = False,
    **properties: Mapping[str, Any],
) -> OurAction:
    schema = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    return OurAction(name, function, description, schema, terminal)


def _write_lines(kit: OldAgentKit, path: str, content: str, start: int, end: int) -> Any:
    """Replace the lines from ``start`` (0-based) up to ``end`` of a file; -1 is its end. Returns the write's envelope."""
    before = kit.environment.execute("read", {"path": path, "start_line": 1, "end_line": MOST_LINES_READ})
    if not before.ok:
        return before
    if before.result.truncated or before.result.binary or before.result.encoding_errors:
        raise ToolError(
            f"{path} cannot be changed by lines: it is too long, or is not a text.", "Change it with a command."
        )
    lines = before.result.content.splitlines(keepends=True)
    if not 0 <= start <= len(lines) or (end != -1 and not start <= end <= len(lines)):
        raise ToolError(
            f"There are no lines {start} to {end} in {path}: it has {len(lines)}.", "Count from 0; -1 is the end."
        )
    after = lines[len(lines) if end == -1 else end :]
    head = lines[:start]
    if head and not head[-1].endswith("\n"):
        head[-1] += "\n"
    new = content if not content or not after or content.endswith("\n") else f"{content}\n"
    return kit.environment.execute("write", {"path": path, "content": "".join([*head, new, *after])})
