"""What a client outside was answered: by this the service is measured at the end."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Known:
    """One sandbox as its only client knows it from acknowledged answers. ``words`` were appended to its log, in this order.

    ``checkpoints`` have the words and files of then, ``late`` the whole output of commands that run by themselves.
    """

    id: str
    paused: bool = False
    metadata: dict[str, str] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    checkpoints: dict[str, tuple[list[str], dict[str, bytes]]] = field(default_factory=dict)
    late: dict[str, bytes] = field(default_factory=dict)


class Journal:
    """Shared by all clients. ``doing`` is what each is in the middle of."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.done: Counter[str] = Counter()
        self.again: Counter[str] = Counter()
        self.killed_in: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.doing: dict[int, str] = {}

    def acted(self, action: str) -> None:
        """Note an action that was acknowledged as it should be."""
        with self.lock:
            self.done[action] += 1

    def note(self, problem: str) -> None:
        """Note what is wrong."""
        with self.lock:
            self.wrong.append(problem)

    def killed(self) -> None:
        """Note what was under way when the service was killed."""
        with self.lock:
            self.killed_in.update(set(self.doing.values()) or {"nothing"})

    def to_dict(self) -> dict[str, Any]:
        """Return the counts."""
        return {
            "acknowledged": dict(sorted(self.done.items())),
            "sent_again": dict(sorted(self.again.items())),
            "killed_in": dict(sorted(self.killed_in.items())),
            "wrong": self.wrong,
        }
