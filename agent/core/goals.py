"""Goals: what an agent is to achieve and how it should go about it, as values instead of walls of text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import overload

from sandbox.frozen import dataclass

DEFAULT_PRIORITY = 10
EXAMPLE = "example"


@dataclass(frozen=True, init=False)
class Goal:
    """One goal, rule or worked example. The lower ``priority`` comes first in the prompt.

    A goal whose name begins with "example" is an example: it is shown after the other goals, marked as made up, and since it is
    not part of the memory, it is never condensed, indexed or recalled.

    ``Goal("text")`` is a description alone: its name is made from its first words and its priority is 10. Raises TypeError if
    the priority is not an integer, or the name or description is not text.
    """

    priority: int
    name: str
    description: str

    @overload
    def __init__(self, priority: str, /) -> None: ...
    @overload
    def __init__(self, priority: int, name: str, description: str) -> None: ...
    def __init__(self, priority: int | str, name: str | None = None, description: str | None = None) -> None:
        if isinstance(priority, str) and name is None and description is None:
            description, name = priority, _name_from(priority)
            priority = DEFAULT_PRIORITY
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise TypeError(f"The priority of a goal must be a whole number, not {priority!r}.")
        if not isinstance(name, str) or not isinstance(description, str):
            raise TypeError(f"A goal needs a name and a description, got {name!r} and {description!r}.")
        object.__setattr__(self, "priority", priority)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "description", description)

    @property
    def is_example(self) -> bool:
        """Whether it is an example."""
        return self.name.lower().startswith(EXAMPLE)

    @classmethod
    def of(cls, text: str) -> Goal:
        """Return the goal that ``text`` describes."""
        return cls(text)


def in_order(goals: Iterable[Goal]) -> list[Goal]:
    """The goals by priority, then name, then as they were given."""
    return sorted(goals, key=lambda goal: (goal.priority, goal.name))


def _name_from(text: str) -> str:
    words = re.findall(r"\w+", text.lower())[:5]
    return "_".join(words) or "goal"
