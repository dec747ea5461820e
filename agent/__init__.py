"""The orchestrator of Gamebox: goals, actions, memory and an environment, run by one loop. Names load when they are
first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sandbox.moved import keep_old_paths

from .moved import MOVED

if TYPE_CHECKING:
    from agent.core.actions import Action, action
    from agent.core.agent import Agent
    from agent.core.budget import Budget, Usage
    from agent.core.goals import Goal
    from agent.core.loop.hooks import Hooks, PrintingHooks, Step
    from agent.core.loop.layers import Layer
    from agent.core.prompt import Prompt
    from agent.core.registry import ActionRegistry, ActionWarning
    from agent.core.run import AgentRun
    from agent.core.status import LanguageError, RunStatus, StopRun
    from agent.layers.stuck import StuckDetector, Thresholds
    from agent.layers.tracing import Tracing
    from agent.model.brain import Delta, delta_listener, receiving_deltas
    from agent.model.embedding import LiteLLMEmbedder
    from agent.model.fallback import FallbackModel
    from agent.model.litellm_model import LiteLLMModel
    from agent.model.replay import RecordingModel, ReplayModel
    from agent.model.response import Response, ToolCall
    from agent.model.scripted import ScriptedModel
    from agent.model.switch import forbid_real_models
    from sandbox.environment.base import Environment
    from sandbox.errors import ToolError

    from .language import AgentLanguage, FencedLanguage, FunctionCallingLanguage, JsonLanguage, TagLanguage
    from .memory import CondensingMemory, Memory, RecallMemory, WindowMemory
    from .tools import sandbox_tools, standard_registry

_HOMES = {
    "Action": ".core.actions",
    "ActionRegistry": ".core.registry",
    "ActionWarning": ".core.registry",
    "Agent": ".core.agent",
    "AgentLanguage": ".language",
    "AgentRun": ".core.run",
    "Budget": ".core.budget",
    "CondensingMemory": ".memory",
    "Delta": ".model.brain",
    "Environment": "sandbox.environment.base",
    "FallbackModel": ".model.fallback",
    "FencedLanguage": ".language",
    "FunctionCallingLanguage": ".language",
    "Goal": ".core.goals",
    "Hooks": ".core.loop.hooks",
    "JsonLanguage": ".language",
    "Layer": ".core.loop.layers",
    "LanguageError": ".core.status",
    "LiteLLMEmbedder": ".model.embedding",
    "LiteLLMModel": ".model.litellm_model",
    "Memory": ".memory",
    "PrintingHooks": ".core.loop.hooks",
    "Prompt": ".core.prompt",
    "RecallMemory": ".memory",
    "RecordingModel": ".model.replay",
    "ReplayModel": ".model.replay",
    "Response": ".model.response",
    "RunStatus": ".core.status",
    "ScriptedModel": ".model.scripted",
    "Step": ".core.loop.hooks",
    "StopRun": ".core.status",
    "TagLanguage": ".language",
    "StuckDetector": ".layers.stuck",
    "Thresholds": ".layers.stuck",
    "ToolCall": ".model.response",
    "ToolError": "sandbox.errors",
    "Tracing": ".layers.tracing",
    "Usage": ".core.budget",
    "WindowMemory": ".memory",
    "action": ".core.actions",
    "delta_listener": ".model.brain",
    "forbid_real_models": ".model.switch",
    "receiving_deltas": ".model.brain",
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
    "Delta",
    "Environment",
    "FallbackModel",
    "FencedLanguage",
    "FunctionCallingLanguage",
    "Goal",
    "Hooks",
    "JsonLanguage",
    "LanguageError",
    "Layer",
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
    "Tracing",
    "Usage",
    "WindowMemory",
    "action",
    "delta_listener",
    "forbid_real_models",
    "receiving_deltas",
    "sandbox_tools",
    "standard_registry",
]

keep_old_paths(MOVED)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'agent' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name], __name__), name)
    globals()[name] = value
    return value
