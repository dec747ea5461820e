"""The observations of the late contract: what comes after an action, and what comes by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from .events import Event


@dataclass
class Observation(Event):
    """Base of observations: ``content`` is the text, the other fields are its extras."""

    kind: ClassVar[str] = "observation"
    content: str

    @property
    def observation(self) -> str:
        """The name of the type."""
        return self.type

    @property
    def message(self) -> str:
        """See the base class."""
        return self.content if len(self.content) <= 200 else f"{self.content[:200]}…"

    def body(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """See the base class."""
        extras = dict(fields)
        return {"observation": self.type, "content": extras.pop("content"), "extras": extras}


@dataclass
class CmdOutputObservation(Observation):
    """What a command printed. ``command_id`` is -1 for one that was waited for."""

    type: ClassVar[str] = "run"
    command_id: int
    command: str
    exit_code: int = 0

    @property
    def error(self) -> bool:
        """Whether it exited with an error."""
        return self.exit_code != 0

    @property
    def message(self) -> str:
        """See the base class."""
        return f"Command `{self.command}` executed with exit code {self.exit_code}."


@dataclass
class IPythonRunCellObservation(Observation):
    """What a cell printed."""

    type: ClassVar[str] = "run_ipython"
    code: str


@dataclass
class BrowserOutputObservation(Observation):
    """A page."""

    type: ClassVar[str] = "browse"
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

    @property
    def message(self) -> str:
        """See the base class."""
        return f"Visited {self.url}"


@dataclass
class FileReadObservation(Observation):
    """The content of a file."""

    type: ClassVar[str] = "read"
    path: str


@dataclass
class FileWriteObservation(Observation):
    """A file was written."""

    type: ClassVar[str] = "write"
    path: str


@dataclass
class AgentRecallObservation(Observation):
    """What the agent's memory found."""

    type: ClassVar[str] = "recall"
    memories: list[str]
    role: str = "assistant"


@dataclass
class AgentDelegateObservation(Observation):
    """What another agent answered."""

    type: ClassVar[str] = "delegate"
    outputs: dict[str, Any]


@dataclass
class ErrorObservation(Observation):
    """Something could not be done, and why."""

    type: ClassVar[str] = "error"


@dataclass
class SuccessObservation(Observation):
    """Something was done."""

    type: ClassVar[str] = "success"


@dataclass
class AgentStateChangedObservation(Observation):
    """The run has another state."""

    type: ClassVar[str] = "agent_state_changed"
    agent_state: str


@dataclass
class NullObservation(Observation):
    """Nothing."""

    type: ClassVar[str] = "null"


OBSERVATIONS: tuple[type[Observation], ...] = (
    CmdOutputObservation, IPythonRunCellObservation, BrowserOutputObservation, FileReadObservation, FileWriteObservation,
    AgentRecallObservation, AgentDelegateObservation, ErrorObservation, SuccessObservation, AgentStateChangedObservation,
    NullObservation,
)  # fmt: skip
