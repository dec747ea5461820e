"""What an agent is set into when it is built: its environment and brain, and what its parts may ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent.budget import Budget
from agent.hooks import Hooks
from agent.kits import Kit
from agent.language import AgentLanguage
from agent.model.brain import Brain
from sandbox.environment.base import Environment

if TYPE_CHECKING:
    from agent.loop import Agent
    from agent.memory import Memory

    from .hub import Hub
    from .spec import AgentSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What one agent is built with.

    ``brain`` may be None only for specs that have their own. ``language`` replaces that of the spec. ``ask_user`` gets a
    question and returns the answer, or None if nobody is there. ``depth`` counts the delegations above. ``new_memory`` replaces
    the memory of the spec. ``mcp_urls`` are the addresses of MCP servers that the user has named: no other is reached from the
    host. ``build`` fills in ``spec``, ``kits`` (for brains and middleware that work with one) and ``language`` (the one that
    the agent uses). ``on_built`` is called with each agent that is built with this setting, delegated ones included, and the
    setting it was built in: use it to wrap ``agent.environment`` in a record or approvals, and to add hooks. ``agent.lineage``
    then tells the runs apart.
    """

    environment: Environment
    hub: Hub
    brain: Brain | None = None
    budget: Budget = field(default_factory=Budget)
    hooks: Sequence[Hooks] = ()
    inputs: Mapping[str, Any] = field(default_factory=dict)
    language: AgentLanguage | None = None
    ask_user: Callable[[str], str | None] | None = None
    depth: int = 0
    new_memory: Callable[[], Memory] | None = None
    mcp_urls: Sequence[str] = ()
    spec: AgentSpec | None = None
    on_built: Callable[[Agent, Setting], None] | None = None
    kits: Sequence[Kit] = ()
