"""The hub of agents: every kind is a composition of parts around the one loop, declared as an ``AgentSpec``.

``hub.names()`` and ``hub.load(name)`` are of the hub that the command uses, ``hub.default()``; it is read anew each time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .building import build
    from .finding import default
    from .hub import Hub, Problem
    from .setting import Setting
    from .spec import AgentSpec

__all__ = ["AgentSpec", "Hub", "Problem", "Setting", "build", "default", "load", "names"]

_HOMES = {
    "AgentSpec": ".spec", "Hub": ".hub", "Problem": ".hub", "Setting": ".setting", "build": ".building", "default": ".finding",
}  # fmt: skip


def names() -> list[str]:
    """The names of all agents."""
    from .finding import default

    return default().names()


def load(name: str) -> AgentSpec:
    """The agent of that name. Raises SandboxError ``invalid_arguments`` for an unknown one."""
    from .finding import default

    return default().load(name)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'agent.hub' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name], __name__), name)
    globals()[name] = value
    return value
