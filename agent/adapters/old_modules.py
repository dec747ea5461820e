"""The modules that agents of the old contracts import, under their old names: made of what is here."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any, ClassVar

from .actions import ACTIONS, Action
from .early import CommandManager
from .early_events import Event
from .llm import LLM
from .observations import OBSERVATIONS, Observation
from .reading import action_from_dict, observation_from_dict
from .state import State


class OldAgent(ABC):
    """The base class of agents of the late contract: a model, ``reset``, and a register of classes by name."""

    sandbox_plugins: ClassVar[list[Any]] = []
    _registry: ClassVar[dict[str, type[OldAgent]]] = {}

    def __init__(self, llm: LLM) -> None:
        self.llm = llm

    @abstractmethod
    def step(self, state: State) -> Action:
        """The next action; for subclasses."""

    def search_memory(self, query: str) -> list[str]:  # noqa: ARG002 - for subclasses that remember
        """Nothing."""
        return []

    def reset(self) -> None:  # noqa: B027 - most have nothing to forget
        """Forget the last task; for subclasses."""

    @classmethod
    def register(cls, name: str, agent_cls: type[OldAgent]) -> None:
        """Keep a class by name. Raises ValueError for a name that is taken."""
        if name in cls._registry:
            raise ValueError(f"Agent class already registered for {name!r}.")
        cls._registry[name] = agent_cls

    @classmethod
    def get_cls(cls, name: str) -> type[OldAgent]:
        """The class of that name. Raises ValueError for an unknown one."""
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
    """Within it, ``from opendevin.events.action import CmdRunAction`` and the like find the classes that are here.

    For the import of an agent's own module. Names that are imported already are left alone, and what was added goes at the end.
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
