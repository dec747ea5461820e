"""Memory: what happened, as a list of messages."""

from .base import ROLES, Memory
from .condensation import Condensation
from .condensing import CondensingMemory
from .layered import LayeredMemory
from .recall import RecallMemory
from .window import WindowMemory

__all__ = ["ROLES", "Condensation", "CondensingMemory", "LayeredMemory", "Memory", "RecallMemory", "WindowMemory"]
