"""The actions of the late contract: what ``step(state)`` may return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from .events import Event


@dataclass
class Action(Event):
    """Base of actions. A ``runnable`` one is answered by an observation, any other by a null observation."""

    kind: ClassVar[str] = "action"
    runnable: ClassVar[bool] = False

    @property
    def action(self) -> str:
        """The name of the type."""
        return self.type

    def body(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """See the base class."""
        return {"action": self.type, "args": dict(fields)}


@dataclass
class CmdRunAction(Action):
    """A shell command; in the background it is watched, and its output comes as it is printed."""

    type: ClassVar[str] = "run"
    runnable: ClassVar[bool] = True
    command: str
    background: bool = False
    thought: str = ""

    @property
    def message(self) -> str:
        """See the base class."""
        return f"Running command: {self.command}"


@dataclass
class CmdKillAction(Action):
    """End a command in the background."""

    type: ClassVar[str] = "kill"
    runnable: ClassVar[bool] = True
    command_id: int
    thought: str = ""

    @property
    def message(self) -> str:
        """See the base class."""
        return f"Killing command: {self.command_id}"


@dataclass
class IPythonRunCellAction(Action):
    """Python code."""

    type: ClassVar[str] = "run_ipython"
    runnable: ClassVar[bool] = True
    code: str
    thought: str = ""


@dataclass
class BrowseURLAction(Action):
    """Open a page."""

    type: ClassVar[str] = "browse"
    runnable: ClassVar[bool] = True
    url: str
    thought: str = ""

    @property
    def message(self) -> str:
        """See the base class."""
        return f"Browsing URL: {self.url}"


@dataclass
class BrowseInteractiveAction(Action):
    """Commands for a browser, such as ``goto("http://127.0.0.1:8000/")``."""

    type: ClassVar[str] = "browse_interactive"
    runnable: ClassVar[bool] = True
    browser_actions: str
    thought: str = ""


@dataclass
class FileReadAction(Action):
    """Lines of a file: from ``start`` (0-based) up to, without it, ``end``; -1 is its end."""

    type: ClassVar[str] = "read"
    runnable: ClassVar[bool] = True
    path: str
    start: int = 0
    end: int = -1
    thought: str = ""

    @property
    def message(self) -> str:
        """See the base class."""
        return f"Reading file: {self.path}"


@dataclass
class FileWriteAction(Action):
    """Put ``content`` in the place of the lines from ``start`` (0-based) up to, without it, ``end``; all of them by default."""

    type: ClassVar[str] = "write"
    runnable: ClassVar[bool] = True
    path: str
    content: str
    start: int = 0
    end: int = -1
    thought: str = ""

    @property
    def message(self) -> str:
        """See the base class."""
        return f"Writing file: {self.path}"


@dataclass
class AgentRecallAction(Action):
    """Ask the agent's own ``search_memory``."""

    type: ClassVar[str] = "recall"
    runnable: ClassVar[bool] = True
    query: str
    thought: str = ""


@dataclass
class AgentDelegateAction(Action):
    """Let another agent do a part."""

    type: ClassVar[str] = "delegate"
    agent: str
    inputs: dict[str, Any]
    thought: str = ""


@dataclass
class AgentFinishAction(Action):
    """The task is done."""

    type: ClassVar[str] = "finish"
    outputs: dict[str, Any] = field(default_factory=dict)
    thought: str = ""


@dataclass
class AgentRejectAction(Action):
    """The task cannot be done."""

    type: ClassVar[str] = "reject"
    outputs: dict[str, Any] = field(default_factory=dict)
    thought: str = ""


@dataclass
class AgentSummarizeAction(Action):
    """A summary of what was, for the history."""

    type: ClassVar[str] = "summarize"
    summary: str


@dataclass
class AddTaskAction(Action):
    """Add a task under ``parent`` (its id; "" is the root)."""

    type: ClassVar[str] = "add_task"
    parent: str
    goal: str
    subtasks: list[Any] = field(default_factory=list)
    thought: str = ""


@dataclass
class ModifyTaskAction(Action):
    """Set the state of a task."""

    type: ClassVar[str] = "modify_task"
    task_id: str
    state: str
    thought: str = ""


@dataclass
class ChangeAgentStateAction(Action):
    """Ask for another state of the run: paused, stopped, finished ..."""

    type: ClassVar[str] = "change_agent_state"
    agent_state: str
    thought: str = ""


@dataclass
class MessageAction(Action):
    """Something said, by the agent or by the user."""

    type: ClassVar[str] = "message"
    content: str
    wait_for_response: bool = False

    @property
    def message(self) -> str:
        """See the base class."""
        return self.content


@dataclass
class NullAction(Action):
    """Nothing."""

    type: ClassVar[str] = "null"


ACTIONS: tuple[type[Action], ...] = (
    CmdRunAction, CmdKillAction, IPythonRunCellAction, BrowseURLAction, BrowseInteractiveAction, FileReadAction, FileWriteAction,
    AgentRecallAction, AgentDelegateAction, AgentFinishAction, AgentRejectAction, AgentSummarizeAction, AddTaskAction,
    ModifyTaskAction, ChangeAgentStateAction, MessageAction, NullAction,
)  # fmt: skip
