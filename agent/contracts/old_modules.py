"""The modules that agents of the old contracts import, under their old names."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any, ClassVar

from .actions import ACTIONS, Action
from .early import CommandManager, Event
from .llm import LLM
from .observations import OBSERVATIONS, Observation
from .reading import action_from_dict, observation_from_dict
from .state import State


class OldAgent(ABC):
    """Base class of agents of the late contract: a model, ``reset``, and a registry of classes by name."""

    sandbox_plugins: ClassVar[list[Any]] = []
    _registry: ClassVar[dict[str, type[OldAgent]]] = {}

    def __init__(self, llm: LLM) -> None:
        self.llm = llm

    @abstractmethod
    def step(self, state: State) -> Action:
        """Return the next action. Subclasses implement it."""

    def search_memory(self, query: str) -> list[str]:  # noqa: ARG002 - for subclasses that remember
        """Return nothing."""
        return []

    def reset(self) -> None:  # noqa: B027 - most have nothing to forget
        """Forget the last task. Subclasses implement it."""

    @classmethod
    def register(cls, name: str, agent_cls: type[OldAgent]) -> None:
        """Register a class by name. Raises ValueError for a name that is taken."""
        if name in cls._registry:
            raise ValueError(f"Agent class already registered for {name!r}.")
        cls._registry[name] = agent_cls

    @classmethod
    def get_cls(cls, name: str) -> type[OldAgent]:
        """Return the class of that name. Raises ValueError for an unknown one."""
        if name not in cls._registry:
            raise ValueError(f"No agent class registered for {name!r}.")
        return cls._registry[name]


MODULES: Mapping[str, Mapping[str, Any]] = {
    "opendevin.controller.agent": {"Agent": OldAgent},
    "opendevin.controller.state.state": {"State": State},
    "opendevin.events.action": {"Action": Action, **{kind.__name__: kind for kind in ACTIONS}},
    "opendevin.events.observation": {"Observation": Observation, **{kind.__name__: kind for kind in OBSERVATIONS}},
    "opendevin.events.serialization.action": {"action_from_dict": action_from_dict},
    "opendevin.events.serialization.observation": {"observation_from_dict": observation_from_dict},
    "opendevin.llm.llm": {"LLM": LLM},
    "opendevin.lib.event": {"Event": Event},
    "opendevin.lib.command_manager": {"CommandManager": CommandManager},
}


@contextmanager
def old_modules() -> Iterator[None]:
    """Make ``from opendevin.events.action import CmdRunAction`` and the like find the classes of this package within
    the block.

    Use it to import an agent's own module. Modules that are already imported stay as they are; those added are removed
    at the end.
    """
    added = []
    for name, content in MODULES.items():
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            part = ".".join(parts[:end])
            if part not in sys.modules:
                sys.modules[part] = ModuleType(part)
                sys.modules[part].__path__ = []
                added.append(part)
        if name in added:
            vars(sys.modules[name]).update(content)
    try:
        yield
    finally:
        for name in added:
            sys.modules.pop(name, None)
