"""Agents written to the two old contracts run on the loop as they are: ``step(cmd_mgr) -> Event`` and ``step(state) -> Action``.

The old agent is the brain; what it decides is carried out as actions of ours, and their envelopes come back to it in its own words.
"""

from .early import CommandManager, early_spec
from .early_events import Event
from .late import late_spec
from .llm import LLM
from .old_modules import old_modules
from .reading import MalformedActionError, action_from_dict, observation_from_dict
from .state import State

__all__ = [
    "LLM",
    "CommandManager",
    "Event",
    "MalformedActionError",
    "State",
    "action_from_dict",
    "early_spec",
    "late_spec",
    "observation_from_dict",
    "old_modules",
]
