"""The hub of agents: every kind is a composition of parts around the one loop, declared as an ``AgentSpec``."""

from .building import build
from .hub import Hub, Problem
from .setting import Setting
from .spec import AgentSpec

__all__ = ["AgentSpec", "Hub", "Problem", "Setting", "build"]
