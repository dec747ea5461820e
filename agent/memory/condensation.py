"""What stands in a prompt for messages that are no longer shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from .base import Message

# Keys of the message, for those who look at messages: a memory never stores it.
REPLACES = "replaces"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condensation:
    """Messages ``first`` to ``last`` (numbers count from 1, in ``items``) are not shown.

    ``summary`` tells of those up to ``told``; it is empty and ``told`` 0 where there is none. ``failure`` is why the last ones were
    dropped without being told of, or empty.
    """

    first: int
    last: int
    summary: str = ""
    told: int = 0
    failure: str = ""

    def message(self, recallable: bool) -> Message:
        """The message in their place: one of the user's role, marked, with the numbers of what it replaces."""
        lines = [f"[Memory: messages {self.first} to {self.last} of this conversation are no longer shown.]"]
        if recallable:
            lines.append("[recall finds their exact words; recall with message=NUMBER shows one of them whole.]")
        if self.summary:
            whole = "" if self.told == self.last else f" (to message {self.told}; the later ones were left out unread)"
            lines.append(f"[What happened in them, in short{whole}:]\n{self.summary}")
        return {"role": "user", "content": "\n".join(lines), REPLACES: [self.first, self.last]}

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """What ``to_dict`` gave. Raises ValueError for anything else."""
        known = {"first": int, "last": int, "summary": str, "told": int, "failure": str}
        fits = isinstance(data, Mapping) and data.keys() == known.keys()
        if not fits or any(type(data[key]) is not kind for key, kind in known.items()):
            raise ValueError(f"This is no condensation: {data!r:.200}")
        if not (1 <= data["first"] <= data["last"] and 0 <= data["told"] <= data["last"]):
            raise ValueError(f"A condensation of messages {data['first']} to {data['last']} cannot be.")
        return cls(**data)
