"""What the user says in the middle of a run: it waits here until the next step, and is in the memory from then on."""

from __future__ import annotations

import queue

from .hooks import Hooks, Step
from .memory import Memory
from .store.reading import spoken

MOST_CHARS = 100_000
MOST_WAITING = 1000


class Inbox(Hooks):
    """A hook that hands over at each step what was said since the last one. ``say`` may be called from any thread."""

    def __init__(self) -> None:
        self._waiting: queue.Queue[str] = queue.Queue(MOST_WAITING)

    def say(self, text: str) -> None:
        """Have the model read this before its next decision. Raises ValueError for nothing, for more than 100,000 characters, and
        where 1,000 messages wait already.
        """
        if not text.strip():
            raise ValueError("There is nothing to say.")
        if len(text) > MOST_CHARS:
            raise ValueError(f"A message of {len(text)} characters is too long; at most {MOST_CHARS} are taken.")
        try:
            self._waiting.put_nowait(text)
        except queue.Full:
            raise ValueError(f"{MOST_WAITING} messages wait already.") from None

    def on_step_start(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        """Add what waits, in the order in which it was said."""
        while True:
            try:
                text = self._waiting.get_nowait()
            except queue.Empty:
                return
            memory.add_memory(spoken(text))
