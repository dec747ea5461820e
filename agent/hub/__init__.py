"""The hub of agents. Each kind is a composition of parts around the one loop, declared as an ``AgentSpec``.

``hub.names()`` and ``hub.load(name)`` use the command's hub, ``hub.default()``, which is loaded anew each time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .building import build
    from .finding import default
    from .hub import Hub, Problem, Setting
    from .spec import AgentSpec

__all__ = ["AgentSpec", "Hub", "Problem", "Setting", "build", "default", "load", "names"]

_HOMES = {
    "AgentSpec": ".spec",
    "Hub": ".hub",
    "Problem": ".hub",
    "Setting": ".hub",
    "build": ".building",
    "default": ".finding",
}


def names() -> list[str]:
    """Return the names of the agents that ``gamebox hub ls`` lists."""
    from .finding import default

    return [spec.name for spec in default().listed()]


def load(name: str) -> AgentSpec:
    """Return the agent of that name. Raises SandboxError ``invalid_arguments`` for an unknown one."""
    from .finding import default

    return default().load(name)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'agent.hub' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name], __name__), name)
    globals()[name] = value
    return value
