"""A brain that is a kit finds itself among the kits of its agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from agent.kits import Kit

if TYPE_CHECKING:
    from agent.hub.setting import Setting

K = TypeVar("K", bound=Kit)


def kit_of(setting: Setting, kind: type[K]) -> K:
    """The kit of that class. Raises LookupError where the agent has none."""
    found = next((kit for kit in setting.kits if isinstance(kit, kind)), None)
    if found is None:
        raise LookupError(f"The agent has no kit {kind.name!r}.")
    return found
