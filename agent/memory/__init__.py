"""Memory: what happened, as a list of messages."""

from .base import ROLES, Memory
from .window import WindowMemory

__all__ = ["ROLES", "Memory", "WindowMemory"]
