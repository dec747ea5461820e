"""The hub: all kinds of agents by name, those of the product, of files and of other packages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandbox.errors import ErrorCode, SandboxError

from .spec import AgentSpec

if TYPE_CHECKING:
    from agent.loop import Agent

    from .setting import Setting


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
        """All names."""
        return sorted(self._specs)

    def load(self, name: str) -> AgentSpec:
        """The spec of that name. Raises SandboxError ``invalid_arguments`` for an unknown one."""
        if name in self._specs:
            return self._specs[name]
        near = difflib.get_close_matches(name[:200], self.names(), n=1)
        meant = f"Did you mean {near[0]!r}? " if near else ""
        raise SandboxError(
            ErrorCode.invalid_arguments,
            f"There is no agent {name[:200]!r}.",
            f"{meant}There are: {', '.join(self.names()) or 'none'}.",
        )

    def build(self, name: str, setting: Setting) -> Agent:
        """The agent of that name in ``setting``. Raises SandboxError, as ``load`` and ``building.build`` do."""
        from .building import build

        return build(self.load(name), setting)
