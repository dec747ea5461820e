"""The language of brains that are programs: they get the memory as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agent.core.actions import Action
from agent.core.goals import Goal
from agent.memory import Memory
from sandbox.environment.base import Environment

from .base import AgentLanguage


class StructuredLanguage(AgentLanguage):
    """As the base, with the messages of the memory in ``prompt.metadata["memory"]``: envelopes as they were, not as text."""

    def construct_prompt(
        self, actions: Sequence[Action], environment: Environment, goals: Sequence[Goal], memory: Memory
    ) -> Any:
        """Return the prompt with the memory in its metadata."""
        prompt = super().construct_prompt(actions, environment, goals, memory)
        return replace(prompt, metadata={**prompt.metadata, "memory": memory.get_memories()})
