"""The observations of the late contract: results of actions, and events that no action caused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar

from .events import Event


class Observation(Event, type=""):
    """Base class of observations. ``content`` is the text; the other fields are its extras."""

    kind: ClassVar[str] = "observation"
    content: str

    @property
    def observation(self) -> str:
        """The name of the type."""
        return self.type

    @property
    def message(self) -> str:
        """A sentence for a person; the beginning of the content if the type has no sentence."""
        if self.says:
            return super().message
        return self.content if len(self.content) <= 200 else f"{self.content[:200]}…"

    def body(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        extras = dict(fields)
        return {"observation": self.type, "content": extras.pop("content"), "extras": extras}


class CmdOutputObservation(Observation, type="run", says="Command `{command}` executed with exit code {exit_code}."):
    """The output of a command. ``command_id`` is -1 for a command in the foreground."""

    command_id: int
    command: str
    exit_code: int = 0

    @property
    def error(self) -> bool:
        """Whether it exited with an error."""
        return self.exit_code != 0


class IPythonRunCellObservation(Observation, type="run_ipython"):
    """The output of a cell, with its last value or its traceback."""

    code: str


class BrowserOutputObservation(Observation, type="browse", says="Visited {url}"):
    """A page. ``status_code`` is 0 if there was no answer; then ``content`` says why.

    The accessibility tree has the links of the page, by the numbers that ``click`` takes. Screenshot and DOM are
    empty.
    """

    url: str
    screenshot: str = field(default="", repr=False)
    status_code: int = 200
    error: bool = False
    open_pages_urls: list[str] = field(default_factory=list)
    active_page_index: int = -1
    dom_object: dict[str, Any] = field(default_factory=dict, repr=False)
    axtree_object: dict[str, Any] = field(default_factory=dict, repr=False)
    last_browser_action: str = ""
    focused_element_bid: str = ""


class FileReadObservation(Observation, type="read"):
    """The content of a file."""

    path: str


class FileWriteObservation(Observation, type="write"):
    """A file was written."""

    path: str


class AgentRecallObservation(Observation, type="recall"):
    """What the agent's memory found."""

    memories: list[str]
    role: str = "assistant"


class AgentDelegateObservation(Observation, type="delegate"):
    """The answer of another agent."""

    outputs: dict[str, Any]


class ErrorObservation(Observation, type="error"):
    """Something failed; the content says why."""


class SuccessObservation(Observation, type="success"):
    """Something succeeded."""


class AgentStateChangedObservation(Observation, type="agent_state_changed"):
    """The run has another state."""

    agent_state: str


class NullObservation(Observation, type="null"):
    """Nothing."""


OBSERVATIONS: tuple[type[Observation], ...] = (
    CmdOutputObservation,
    IPythonRunCellObservation,
    BrowserOutputObservation,
    FileReadObservation,
    FileWriteObservation,
    AgentRecallObservation,
    AgentDelegateObservation,
    ErrorObservation,
    SuccessObservation,
    AgentStateChangedObservation,
    NullObservation,
)
