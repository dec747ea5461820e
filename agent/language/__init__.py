"""Languages: how a prompt is worded and how a reply is read."""

from .base import AgentLanguage
from .fenced import FencedLanguage
from .function_calling import FunctionCallingLanguage
from .json_text import JsonLanguage
from .tags import TagLanguage

__all__ = ["AgentLanguage", "FencedLanguage", "FunctionCallingLanguage", "JsonLanguage", "TagLanguage"]
