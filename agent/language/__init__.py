"""Languages: how a prompt is worded and how a reply is read."""

from .base import AgentLanguage
from .function_calling import FunctionCallingLanguage
from .json_text import JsonLanguage

__all__ = ["AgentLanguage", "FunctionCallingLanguage", "JsonLanguage"]
