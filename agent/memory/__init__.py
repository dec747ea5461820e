"""Memory: what happened, as a list of messages."""

from .base import ROLES, Memory
from .condensing import Condensation, CondensingMemory
from .layered import LayeredMemory
from .recall import RecallMemory
from .window import WindowMemory

__all__ = ["ROLES", "Condensation", "CondensingMemory", "LayeredMemory", "Memory", "RecallMemory", "WindowMemory"]
