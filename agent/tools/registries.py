"""Registries that are ready to use."""

from __future__ import annotations

from agent.registry import ActionRegistry

from .sandbox_tools import sandbox_tools
from .thinking import finish_action, think_action


def standard_registry() -> ActionRegistry:
    """The sandbox's operations, think and finish."""
    return ActionRegistry([*sandbox_tools(), think_action(), finish_action()])
