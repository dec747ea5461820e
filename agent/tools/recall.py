"""The kit ``recall``: the agent's own past, searched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent.actions import Action
from agent.hooks import Hooks, Step
from agent.kits import Kit
from agent.memory import Memory
from agent.memory.recall import RECALLED, recallable
from agent.memory.shapes import shortened, text_of_message
from sandbox.errors import ErrorCode, OperationError

MOST_HITS = 20
MESSAGE_CHARS = 20_000

PARAMETERS = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "maxLength": 2000, "description": "Words to look for: names, paths, errors, what was done."},
        "limit": {"type": "integer", "minimum": 1, "maximum": MOST_HITS, "description": "Messages at most; 5 unless told."},
        "message": {"type": "integer", "minimum": 1, "description": "Number of one message to show whole, instead of query."},
    },
    "required": [],
    "additionalProperties": False,
}  # fmt: skip


class RecallKit(Kit, Hooks):
    """``recall(query)`` over the memory of the run, also of what it no longer shows; over any memory, by words at least."""

    name = "recall"

    def __init__(self, setting: object = None) -> None:  # noqa: ARG002 - it needs nothing of where it is
        self._memory: Memory | None = None
        self._action = Action(
            name="recall",
            function=self._recall,
            description=(
                "Search everything that was said and done in this run, also what is no longer shown. Give a query, or the number "
                "of one message to see it whole."
            ),
            parameters=PARAMETERS,
            metadata={"idempotent": True, "shown_chars": 100_000},  # a message found is shown whole
        )

    def actions(self) -> Sequence[Action]:
        """See the base class."""
        return (self._action,)

    def hooks(self) -> Sequence[Hooks]:
        """See the base class."""
        return (self,)

    def on_step_start(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        """See the base class."""
        if self._memory is None or self._memory.items is not memory.items:
            self._memory = recallable(memory)

    def _recall(self, query: str = "", limit: int = 5, message: int | None = None) -> dict[str, Any]:
        memory = self._memory
        count = len(memory.items) if memory is not None else 0
        if memory is None or (message is None and not query.strip()) or (message or 1) > count:
            what = f"There is no message {message}." if message and count else "There is nothing to look for."
            raise OperationError(
                ErrorCode.invalid_arguments, what, f"Give a query, or the number of a message from 1 to {count}."
            )
        if message is not None:
            text = shortened(text_of_message(memory.items[message - 1]), MESSAGE_CHARS)
            return {RECALLED: [self._shown(message, text)], "messages": count}
        hits = recallable(memory).recall(query, min(limit, MOST_HITS))
        found = {RECALLED: [self._shown(hit.message, hit.excerpt) for hit in hits], "messages": count}
        return (
            found if hits else {**found, "note": "No message holds any of these words: try others, as names or paths."}
        )

    def _shown(self, number: int, text: str) -> dict[str, Any]:
        role = self._memory.items[number - 1]["role"] if self._memory is not None else ""
        return {"message": number, "role": role, "text": text}
