"""Agents written for the two old contracts, ``step(cmd_mgr) -> Event`` and ``step(state) -> Action``, run on the loop
unchanged.

The old agent is the brain. Its decisions are carried out as our actions, and their results come back to it in its own
form.
"""

from .early import CommandManager, Event, early_spec
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
