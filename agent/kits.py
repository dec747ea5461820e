"""Kits: actions that belong together, with the state they share.

An editor, a plan, a kernel: each is made anew for one agent in one environment. What a model must see of its state is rendered
into the prompt and never stored in the memory; what a run must find again after a crash is in ``snapshot``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sandbox.envelope import Failure
from sandbox.environment.base import ActionLike, Environment
from sandbox.errors import SandboxError

from .actions import Action
from .hooks import Hooks
from .wrapped import WrappedEnvironment


class Kit:
    """A set of actions and their state. Everything but ``actions`` may be left as it is."""

    name: str = ""
    ends_runs: bool = False  # whether its hooks end runs, so that no action need do it

    def actions(self) -> Sequence[Action]:
        """The actions, in the order in which they are registered; the same objects each time."""
        return ()

    def describe(self) -> Mapping[str, str]:
        """Short sections for the next prompt, by title, in a stable order; {} when there is nothing to say."""
        return {}

    @property
    def problems(self) -> Sequence[str]:
        """What the kit lacks since it was made, and why, each in one line: the user is told at the start. What the model is to know
        of it belongs into ``describe``.
        """
        return ()

    def hooks(self) -> Sequence[Hooks]:
        """Hooks for the runs of the agent."""
        return ()

    def objection(self, action: str) -> SandboxError | None:  # noqa: ARG002
        """Why the run may not be ended by that action now; None where nothing speaks against it."""
        return None

    def snapshot(self) -> Any:
        """The state as JSON-ready data, for ``restore``; None when there is none. Cheap: asked for after each step."""
        return None

    def restore(self, state: Any) -> None:
        """Take over what ``snapshot`` gave, maybe in an earlier process. Raises ValueError for what is no such state."""

    def cancel(self) -> None:
        """The run is cancelled, maybe from another thread: end what an action of this kit is waiting for."""

    def close(self) -> None:
        """Release what is held outside of the environment; may be called more than once."""


class EquippedEnvironment(WrappedEnvironment):
    """An environment and the kits that an agent has in it: what they say of their state follows what it says of itself.

    An action that ends the run is refused while a kit objects to it.
    """

    def __init__(self, inner: Environment, kits: Sequence[Kit]) -> None:
        super().__init__(inner)
        self.kits = tuple(kits)

    def execute_action(self, action: ActionLike, args: Any) -> dict[str, Any]:
        """See the base class."""
        if getattr(action, "terminal", False):
            for kit in self.kits:
                if (objection := kit.objection(action.name)) is not None:
                    return Failure[Any].of(objection).to_dict()
        return self.inner.execute_action(action, args)

    def describe(self) -> dict[str, str]:
        """See the base class."""
        sections = dict(self.inner.describe())
        for kit in self.kits:
            sections.update(kit.describe())
        return sections

    def close(self) -> None:
        """Close the kits, then the environment."""
        try:
            for kit in self.kits:
                kit.close()
        finally:
            self.inner.close()


def problems_in(environment: Environment) -> list[str]:
    """What the kits of an agent in ``environment`` lack, as lines for the user."""
    return [f"{kit.name}: {problem}" for kit in getattr(environment, "kits", ()) for problem in kit.problems]
