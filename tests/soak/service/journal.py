"""What a client outside was answered: by this the service is measured at the end."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .states import STATES, Doing


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
    """Shared by all clients. ``doing`` is the request that each waits for."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.done: Counter[str] = Counter()
        self.again: Counter[str] = Counter()
        self.killed_in: dict[str, Counter[str]] = {action: Counter(dict.fromkeys(states, 0)) for action, states in STATES.items()}
        self.wrong: list[str] = []
        self.doing: dict[int, Doing] = {}

    @contextmanager
    def under_way(self, client: int, doing: Doing) -> Iterator[Doing]:
        """Note that a client waits for the answer to a request, in the block."""
        self.doing[client] = doing
        try:
            yield doing
        finally:
            self.doing.pop(client, None)

    def acted(self, action: str) -> None:
        """Note an action that was acknowledged as it should be."""
        with self.lock:
            self.done[action] += 1

    def note(self, problem: str) -> None:
        """Note what is wrong."""
        with self.lock:
            self.wrong.append(problem)

    def killed(self, states: Sequence[tuple[str, str]]) -> None:
        """Note what was under way, and in which state, when the service was killed."""
        with self.lock:
            for action, state in states:
                self.killed_in[action][state] += 1

    @property
    def never_killed_in(self) -> list[tuple[str, str]]:
        """The states in which no kill came."""
        return [(action, state) for action, states in self.killed_in.items() for state, count in states.items() if not count]

    def to_dict(self) -> dict[str, Any]:
        """Return the counts."""
        return {
            "acknowledged": dict(sorted(self.done.items())),
            "sent_again": dict(sorted(self.again.items())),
            "killed_in": {action: dict(states) for action, states in self.killed_in.items()},
            "never_killed_in": [": ".join(each) for each in self.never_killed_in],
            "wrong": self.wrong,
        }
