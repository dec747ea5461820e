"""The hub: agents by name, and the setting in which one is built."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from agent.core.budget import Budget
from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass

from .spec import AgentSpec

if TYPE_CHECKING:  # listing agents must be fast
    from agent.core.agent import Agent
    from agent.core.kits import Kit
    from agent.core.loop.layers import Layer
    from agent.language import AgentLanguage
    from agent.memory import Memory
    from agent.model.brain import Brain
    from sandbox.environment.base import Environment


@dataclass(frozen=True, slots=True)
class Problem:
    """A file or entry point that could not be loaded: where it is (with the line, if known) and what is wrong. The others were
    loaded.
    """

    where: str
    what: str


class Hub:
    """Specs by name, in alphabetical order. ``problems`` are those that could not be loaded."""

    def __init__(self, specs: Iterable[AgentSpec] = (), problems: Iterable[Problem] = ()) -> None:
        self._specs: dict[str, AgentSpec] = {}
        self.problems = list(problems)
        for spec in specs:
            self.register(spec)

    def register(self, spec: AgentSpec, *, replace: bool = False) -> None:
        """Add a spec. Raises ValueError for a name that is taken, unless ``replace``."""
        if spec.name in self._specs and not replace:
            raise ValueError(f"Agent already registered: {spec.name} (from {self._specs[spec.name].source})")
        self._specs[spec.name] = spec

    def remove(self, name: str) -> None:
        """Remove a spec, if there is one of that name."""
        self._specs.pop(name, None)

    def names(self) -> list[str]:
        """Return all names."""
        return sorted(self._specs)

    def listed(self) -> list[AgentSpec]:
        """Return the specs for a list that a user reads, sorted by their names."""
        return [self._specs[name] for name in self.names() if self._specs[name].listed]

    def load(self, name: str) -> AgentSpec:
        """Return the spec of that name. Raises SandboxError ``invalid_arguments`` for an unknown one."""
        if name in self._specs:
            return self._specs[name]
        names = [spec.name for spec in self.listed()]
        near = difflib.get_close_matches(name[:200], names, n=1)
        meant = f"Did you mean {near[0]!r}? " if near else ""
        raise SandboxError(
            ErrorCode.invalid_arguments,
            f"There is no agent {name[:200]!r}.",
            f"{meant}There are: {', '.join(names) or 'none'}.",
        )

    def build(self, name: str, setting: Setting) -> Agent:
        """Build the agent of that name in ``setting``. Raises SandboxError as ``load`` and ``building.build`` do."""
        from .building import build

        return build(self.load(name), setting)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What one agent is built with.

    ``brain`` may be None only for specs that have their own. ``language`` replaces that of the spec. ``ask_user`` gets a
    question and returns the answer, or None if nobody is there. ``depth`` counts the delegations above. ``new_memory`` replaces
    the memory of the spec. ``mcp_urls`` are the addresses of MCP servers that the user has named: no other is reached from the
    host. ``build`` fills in ``spec`` and ``kits`` (for brains that work with one). ``on_built`` is called with each agent that is
    built with this setting, delegated ones included, and the setting it was built in: use it to add layers, such as approvals,
    and hooks. ``agent.record.lineage`` then tells the runs apart.
    """

    environment: Environment
    hub: Hub
    brain: Brain | None = None
    budget: Budget = field(default_factory=Budget)
    hooks: Sequence[Layer] = ()
    inputs: Mapping[str, Any] = field(default_factory=dict)
    language: AgentLanguage | None = None
    ask_user: Callable[[str], str | None] | None = None
    depth: int = 0
    new_memory: Callable[[], Memory] | None = None
    mcp_urls: Sequence[str] = ()
    spec: AgentSpec | None = None
    on_built: Callable[[Agent, Setting], None] | None = None
    kits: Sequence[Kit] = ()
