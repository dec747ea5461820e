"""Kits: actions that belong together, with the state they share, such as an editor, a plan or a kernel.

Each kit is made for one agent in one environment. The part of its state that a model must see is rendered into the prompt and never
stored in the memory; the part that a run needs again after a crash is in ``snapshot``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from agent.core.loop.layers import Flow, Layer
from agent.core.loop.turns import Call
from sandbox.envelope import Failure
from sandbox.environment.base import Environment
from sandbox.errors import SandboxError

from .actions import Action
from .environment_wrapper import LayeredEnvironment
from .prompt import current_sections


class KitContext(Protocol):
    """What a kit may know of the agent that it is made for; ``agent.hub.Setting`` is one."""

    @property
    def environment(self) -> Environment:
        """Where the agent's actions are carried out."""

    @property
    def ask_user(self) -> Callable[[str], str | None] | None:
        """Asks the user a question and returns the answer; None if no user is there."""

    @property
    def spec(self) -> Any:
        """The spec of the agent, or None."""

    @property
    def kits(self) -> Any:
        """The kits of the agent that exist already."""


class Kit:
    """A set of actions and their state. Everything but ``actions`` may be left as it is."""

    name: str = ""
    ends_runs: bool = False  # whether its hooks end runs, so that no action need do it

    def actions(self) -> Sequence[Action]:
        """Return the actions in the order of registration, the same objects each time."""
        return ()

    def describe(self) -> Mapping[str, str]:
        """Return short sections for the next prompt, by title, in a stable order."""
        return {}

    @property
    def problems(self) -> Sequence[str]:
        """What the kit could not set up, and why, one line each. The user sees them at the start, the model only ``describe``."""
        return ()

    def hooks(self) -> Sequence[Layer]:
        """Return hooks, or other layers, for the runs of the agent; they follow the agent's own."""
        return ()

    def objection(self, action: str) -> SandboxError | None:  # noqa: ARG002
        """Return why that action may not end the run now, or None."""
        return None

    def snapshot(self) -> Any:
        """Return the state as JSON-ready data, for ``restore``, or None. Must be cheap: it is called after each call."""
        return None

    def restore(self, state: Any) -> None:
        """Restore a state from ``snapshot``, maybe of an earlier process. Raises ValueError for anything else."""

    def cancel(self) -> None:
        """End what an action of this kit is waiting for; called when the run is cancelled, maybe from another thread."""

    def close(self) -> None:
        """Release resources outside of the environment; may be called more than once."""


class EquippedEnvironment(LayeredEnvironment):
    """An environment and the kits that an agent has in it. Their sections follow those of the environment. An action that ends the
    run is refused while a kit objects to it; in a run its ``layer`` does that.
    """

    def __init__(self, inner: Environment, kits: Sequence[Kit]) -> None:
        super().__init__(inner, _Objections(self))
        self.kits = tuple(kits)

    def describe(self) -> dict[str, str]:
        """Return the sections of ``inner``, of the layers of the run under way, and of the kits."""
        sections = {**self.inner.describe(), **current_sections()}
        for kit in self.kits:
            sections.update(kit.describe())
        return sections

    def close(self, *, wait: bool = False) -> None:
        """Close the kits, then the environment."""
        try:
            for kit in self.kits:
                kit.close()
        finally:
            super().close(wait=wait)


class _Objections(Layer):
    """The layer that asks the kits of ``environment`` before the run ends."""

    def __init__(self, environment: EquippedEnvironment) -> None:
        self._environment = environment

    def around_do(self, call: Call) -> Flow:
        """Refuse a terminal call while a kit objects to it."""
        if getattr(call.action, "terminal", False):
            for kit in self._environment.kits:
                if (objection := kit.objection(call.name)) is not None:
                    return Failure[Any].of(objection).to_dict()
        return (yield call)


def problems_in(environment: Environment) -> list[str]:
    """Return the problems of the kits in ``environment``, as lines for the user."""
    return [f"{kit.name}: {problem}" for kit in getattr(environment, "kits", ()) for problem in kit.problems]
