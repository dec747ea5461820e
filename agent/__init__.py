"""The orchestrator of Gamebox: goals, actions, memory and an environment, run by one loop. Names load when they are
first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent.model.embedding import LiteLLMEmbedder
    from agent.model.litellm_model import LiteLLMModel
    from agent.model.replay import RecordingModel, ReplayModel
    from agent.model.response import Response, ToolCall
    from agent.model.scripted import ScriptedModel
    from agent.model.switch import forbid_real_models
    from sandbox.environment.base import Environment
    from sandbox.errors import ToolError

    from .actions import Action
    from .budget import Budget, Usage
    from .goals import Goal
    from .hooks import Hooks, PrintingHooks, Step
    from .language import AgentLanguage, FencedLanguage, FunctionCallingLanguage, JsonLanguage, TagLanguage
    from .loop import Agent
    from .memory import CondensingMemory, Memory, RecallMemory, WindowMemory
    from .prompt import Prompt
    from .registry import ActionRegistry, ActionWarning
    from .run import AgentRun
    from .status import LanguageError, RunStatus, StopRun
    from .stuck import StuckDetector, Thresholds
    from .tools import sandbox_tools, standard_registry

_HOMES = {
    "Action": ".actions",
    "ActionRegistry": ".registry",
    "ActionWarning": ".registry",
    "Agent": ".loop",
    "AgentLanguage": ".language",
    "AgentRun": ".run",
    "Budget": ".budget",
    "CondensingMemory": ".memory",
    "Environment": "sandbox.environment.base",
    "FencedLanguage": ".language",
    "FunctionCallingLanguage": ".language",
    "Goal": ".goals",
    "Hooks": ".hooks",
    "JsonLanguage": ".language",
    "LanguageError": ".status",
    "LiteLLMEmbedder": ".model.embedding",
    "LiteLLMModel": ".model.litellm_model",
    "Memory": ".memory",
    "PrintingHooks": ".hooks",
    "Prompt": ".prompt",
    "RecallMemory": ".memory",
    "RecordingModel": ".model.replay",
    "ReplayModel": ".model.replay",
    "Response": ".model.response",
    "RunStatus": ".status",
    "ScriptedModel": ".model.scripted",
    "Step": ".hooks",
    "StopRun": ".status",
    "TagLanguage": ".language",
    "StuckDetector": ".stuck",
    "Thresholds": ".stuck",
    "ToolCall": ".model.response",
    "ToolError": "sandbox.errors",
    "Usage": ".budget",
    "WindowMemory": ".memory",
    "forbid_real_models": ".model.switch",
    "sandbox_tools": ".tools",
    "standard_registry": ".tools",
}

__all__ = [
    "Action",
    "ActionRegistry",
    "ActionWarning",
    "Agent",
    "AgentLanguage",
    "AgentRun",
    "Budget",
    "CondensingMemory",
    "Environment",
    "FencedLanguage",
    "FunctionCallingLanguage",
    "Goal",
    "Hooks",
    "JsonLanguage",
    "LanguageError",
    "LiteLLMEmbedder",
    "LiteLLMModel",
    "Memory",
    "PrintingHooks",
    "Prompt",
    "RecallMemory",
    "RecordingModel",
    "ReplayModel",
    "Response",
    "RunStatus",
    "ScriptedModel",
    "Step",
    "StopRun",
    "StuckDetector",
    "TagLanguage",
    "Thresholds",
    "ToolCall",
    "ToolError",
    "Usage",
    "WindowMemory",
    "forbid_real_models",
    "sandbox_tools",
    "standard_registry",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'agent' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name], __name__), name)
    globals()[name] = value
    return value
