"""The actions of the late contract, which ``step(state)`` may return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar

from .events import Event


class Action(Event, type=""):
    """Base class of actions. A ``runnable`` one is answered by an observation, any other by a null observation."""

    kind: ClassVar[str] = "action"
    runnable: ClassVar[bool] = False

    @property
    def action(self) -> str:
        """The name of the type."""
        return self.type

    def body(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {"action": self.type, "args": dict(fields)}


class RunnableAction(Action, type=""):
    """Base class of actions that an observation answers."""

    runnable: ClassVar[bool] = True


class CmdRunAction(RunnableAction, type="run", says="Running command: {command}"):
    """Run a shell command. The output of one in the background comes as it is printed."""

    command: str
    background: bool = False
    thought: str = ""


class CmdKillAction(RunnableAction, type="kill", says="Killing command: {command_id}"):
    """End a command in the background."""

    command_id: int
    thought: str = ""


class IPythonRunCellAction(RunnableAction, type="run_ipython", says="Running Python code interactively: {code}"):
    """Run Python code as a cell of a kernel whose variables stay."""

    code: str
    thought: str = ""


class BrowseURLAction(RunnableAction, type="browse", says="Browsing URL: {url}"):
    """Open a page."""

    url: str
    thought: str = ""


class BrowseInteractiveAction(
    RunnableAction, type="browse_interactive", says="Executing browser actions: {browser_actions}"
):
    """Control a browser with calls such as ``goto("http://127.0.0.1:8000/")``; see ``browser``."""

    browser_actions: str
    thought: str = ""


class FileReadAction(RunnableAction, type="read", says="Reading file: {path}"):
    """Read the lines of a file from ``start`` (0-based) up to but not including ``end``; -1 is the end of the file."""

    path: str
    start: int = 0
    end: int = -1
    thought: str = ""


class FileWriteAction(RunnableAction, type="write", says="Writing file: {path}"):
    """Replace the lines from ``start`` (0-based) up to but not including ``end`` with ``content``; by default all
    lines.
    """

    path: str
    content: str
    start: int = 0
    end: int = -1
    thought: str = ""


class AgentRecallAction(RunnableAction, type="recall"):
    """Search the agent's own memory, with its ``search_memory``."""

    query: str
    thought: str = ""


class AgentDelegateAction(Action, type="delegate"):
    """Have another agent do a part of the task."""

    agent: str
    inputs: dict[str, Any]
    thought: str = ""


class AgentFinishAction(Action, type="finish"):
    """End the run: the task is done."""

    outputs: dict[str, Any] = field(default_factory=dict)
    thought: str = ""


class AgentRejectAction(Action, type="reject"):
    """End the run: the task cannot be done."""

    outputs: dict[str, Any] = field(default_factory=dict)
    thought: str = ""


class AgentSummarizeAction(Action, type="summarize"):
    """Add a summary of what happened to the history."""

    summary: str


class AddTaskAction(Action, type="add_task"):
    """Add a task below ``parent``, which is an id; "" is the root."""

    parent: str
    goal: str
    subtasks: list[Any] = field(default_factory=list)
    thought: str = ""


class ModifyTaskAction(Action, type="modify_task"):
    """Set the state of a task."""

    task_id: str
    state: str
    thought: str = ""


class ChangeAgentStateAction(Action, type="change_agent_state"):
    """Ask for another state of the run: paused, stopped, finished and so on."""

    agent_state: str
    thought: str = ""


class MessageAction(Action, type="message", says="{content}"):
    """A message from the agent or the user."""

    content: str
    wait_for_response: bool = False


class NullAction(Action, type="null"):
    """Do nothing."""


ACTIONS: tuple[type[Action], ...] = (
    CmdRunAction,
    CmdKillAction,
    IPythonRunCellAction,
    BrowseURLAction,
    BrowseInteractiveAction,
    FileReadAction,
    FileWriteAction,
    AgentRecallAction,
    AgentDelegateAction,
    AgentFinishAction,
    AgentRejectAction,
    AgentSummarizeAction,
    AddTaskAction,
    ModifyTaskAction,
    ChangeAgentStateAction,
    MessageAction,
    NullAction,
)
