"""What kits need to know of where they are made: as much of a setting as they use, so that tools do not depend on the hub."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from sandbox.environment.base import Environment


class Place(Protocol):
    """What an agent is set into; ``agent.hub.Setting`` is one."""

    @property
    def environment(self) -> Environment:
        """Where the agent's actions are carried out."""

    @property
    def ask_user(self) -> Callable[[str], str | None] | None:
        """Asks the user and answers what they say, or None where nobody is there."""

    @property
    def spec(self) -> Any:
        """The spec of the agent, or None."""

    @property
    def kits(self) -> Any:
        """The kits of the agent that were made so far."""
