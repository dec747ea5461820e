"""The state that ``step(state)`` gets: what happened in the run, in the terms of the late contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .actions import Action, MessageAction
from .observations import CmdOutputObservation, Observation
from .reading import action_from_dict, observation_from_dict
from .tasks import RootTask

Pair = tuple[Action, Observation]


@dataclass
class State:
    """``history`` is everything that happened, ``updated_info`` what happened since the last step, both as pairs of
    action and observation.

    An event that no action caused is paired with a null action, an unanswered action with a null observation.
    """

    root_task: RootTask = field(default_factory=RootTask)
    iteration: int = 0
    max_iterations: int = 100
    num_of_chars: int = 0
    background_commands_obs: list[CmdOutputObservation] = field(default_factory=list)
    history: list[Pair] = field(default_factory=list)
    updated_info: list[Pair] = field(default_factory=list)
    inputs: dict[str, Any] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    agent_state: str = "running"

    @property
    def plan(self) -> RootTask:
        """Another name of ``root_task``."""
        return self.root_task

    def get_current_user_intent(self) -> str:
        """Return the last message of the user."""
        messages = (a.content for a, _ in reversed(self.history) if isinstance(a, MessageAction) and a.source == "user")
        return next(messages, "")

    def add(self, action: Action, observation: Observation) -> None:
        """Add an event. Ids continue from the last one."""
        for number, event in enumerate((action, observation), 2 * len(self.history)):
            event.id = number if event.id < 0 else event.id
        observation.cause = action.id if action.type != "null" else None
        self.history.append((action, observation))
        self.updated_info.append((action, observation))

    def to_dict(self) -> dict[str, Any]:
        """Return the state as JSON-ready data."""
        plain = {
            name: getattr(self, name)
            for name in ("iteration", "max_iterations", "num_of_chars", "inputs", "outputs", "error", "agent_state")
        }
        new = len(self.updated_info)
        pairs = [[a.to_dict(), o.to_dict()] for a, o in self.history]
        return {**plain, "root_task": self.root_task.to_dict(), "history": pairs, "new": new}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> State:
        """Read a state from ``to_dict``'s data. Raises ValueError for other data."""
        try:
            pairs = [(action_from_dict(a), observation_from_dict(o)) for a, o in data["history"]]
            plain = {
                name: data[name]
                for name in ("iteration", "max_iterations", "num_of_chars", "inputs", "outputs", "error", "agent_state")
            }
            updated = pairs[len(pairs) - data["new"] :]
            return cls(RootTask.from_dict(data["root_task"]), history=pairs, updated_info=updated, **plain)
        except Exception as error:
            raise ValueError(f"This is not the state of a run: {data!r:.200} ({type(error).__name__}: {error})") from error
