"""The kit ``recall``: search everything that the agent said and did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent.core.actions import Action
from agent.core.kits import Kit
from agent.core.loop.hooks import Hooks, Step
from agent.core.result_budget import MAX_SHOWN_CHARS
from agent.memory import Memory
from agent.memory.messages import shortened, text_of_message
from agent.memory.recall import RECALLED, recallable
from sandbox.errors import ErrorCode, OperationError

MOST_HITS = 20
MESSAGE_CHARS = 20_000

PARAMETERS = {
    "type": "object",
    "properties": {
        "query": {
            "type": "string",
            "maxLength": 2000,
            "description": "Words to search for: names, paths, errors, what was done.",
        },
        "limit": {
            "type": "integer",
            "minimum": 1,
            "maximum": MOST_HITS,
            "description": "Maximum number of messages; 5 by default.",
        },
        "message": {
            "type": "integer",
            "minimum": 1,
            "description": "Number of one message to show whole, instead of query.",
        },
    },
    "required": [],
    "additionalProperties": False,
}


class RecallKit(Kit, Hooks):
    """``recall(query)`` searches the memory of the run, including messages that prompts no longer show. Works with any memory."""

    name = "recall"

    def __init__(self, setting: object = None) -> None:  # noqa: ARG002 - kits are made with a setting
        self._memory: Memory | None = None
        self._action = Action(
            name="recall",
            function=self._recall,
            description=(
                "Search everything that was said and done in this run, including what is no longer shown. Give a query, or the "
                "number of one message to see it whole."
            ),
            parameters=PARAMETERS,
            metadata={"idempotent": True, "shown_chars": MAX_SHOWN_CHARS},  # a message is shown whole
        )

    def actions(self) -> Sequence[Action]:
        return (self._action,)

    def hooks(self) -> Sequence[Hooks]:
        return (self,)

    def on_step_start(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        if self._memory is None or self._memory.items is not memory.items:
            self._memory = recallable(memory)

    def _recall(self, query: str = "", limit: int = 5, message: int | None = None) -> dict[str, Any]:
        memory = self._memory
        count = len(memory.items) if memory is not None else 0
        if memory is None or (message is None and not query.strip()) or (message or 1) > count:
            what = f"There is no message {message}." if message and count else "There is nothing to search for."
            raise OperationError(
                ErrorCode.invalid_arguments, what, f"Give a query, or the number of a message from 1 to {count}."
            )
        if message is not None:
            text = shortened(text_of_message(memory.items[message - 1]), MESSAGE_CHARS)
            return {RECALLED: [self._shown(message, text)], "messages": count}
        hits = recallable(memory).recall(query, min(limit, MOST_HITS))
        found = {RECALLED: [self._shown(hit.message, hit.excerpt) for hit in hits], "messages": count}
        return (
            found if hits else {**found, "note": "No message contains any of these words: try others, such as names or paths."}
        )

    def _shown(self, number: int, text: str) -> dict[str, Any]:
        role = self._memory.items[number - 1]["role"] if self._memory is not None else ""
        return {"message": number, "role": role, "text": text}
