"""The common base of the late contract's actions and observations: source, time, cause, and their forms as data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, dataclass_transform

from sandbox.envelope import jsonable

# A page's picture and trees would fill a prompt.
HEAVY = frozenset(
    {
        "screenshot",
        "dom_object",
        "axtree_object",
        "open_pages_urls",
        "active_page_index",
        "last_browser_action",
        "focused_element_bid",
    }
)


@dataclass_transform()
class Event(ABC):
    """Base class of actions and observations. ``id`` is -1 until the run assigns one; ``cause`` is the id of the
    answered action; ``source`` is "agent" or "user".

    A subclass that is declared with a ``type`` is a dataclass of its fields; ``says`` describes what happened, with
    fields in it.
    """

    kind: ClassVar[str] = ""  # "action" or "observation"
    type: ClassVar[str] = ""
    says: ClassVar[str] = ""
    id: int = -1
    cause: int | None = None
    source: str | None = None
    timestamp: str | None = None

    def __init_subclass__(cls, *, type: str | None = None, says: str | None = None, **more: Any) -> None:  # noqa: A002
        super().__init_subclass__(**more)
        if says is not None:
            cls.says = says
        if type is not None:  # else it is an agent's own, which brings its decorator
            cls.type = type
            dataclass(cls)

    @property
    def message(self) -> str:
        """A sentence for a person that says what happened."""
        return self.says.format_map(vars(self))

    def fields(self) -> dict[str, Any]:
        """Return the fields of this type alone, as JSON-ready data."""
        itself: Any = self  # every type is a dataclass
        data: dict[str, Any] = jsonable(asdict(itself))
        return data

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data, which ``action_from_dict`` and ``observation_from_dict`` read."""
        known = {
            "id": self.id if self.id >= 0 else None,
            "timestamp": self.timestamp,
            "source": self.source,
            "cause": self.cause,
        }
        head = {name: value for name, value in known.items() if value is not None}
        return {**head, **({"message": self.message} if self.message else {}), **self.body(self.fields())}

    def to_memory(self) -> dict[str, Any]:
        """Return what a model sees: without ids and times, and without pictures and trees of pages."""
        return self.body({name: value for name, value in self.fields().items() if name not in HEAVY})

    @abstractmethod
    def body(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the type and ``fields``, in the form of actions or of observations."""


def stamped(event: Event, data: Mapping[str, Any]) -> None:
    """Copy id, cause, source and timestamp from ``data``, if they have the right types."""
    for name, kind in (("id", int), ("cause", int), ("source", str), ("timestamp", str)):
        value = data.get(name)
        if isinstance(value, kind) and not isinstance(value, bool):
            setattr(event, name, value)
