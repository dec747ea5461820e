"""The kit ``message``: words to the user, and the user's answer where somebody is there."""

from __future__ import annotations

from collections.abc import Sequence

from agent.actions import Action
from agent.kits import Kit

from .placed import Place

NOBODY = "Noted. Nobody is there to answer: go on by yourself, or end the run and say what is open."


class MessageKit(Kit):
    """One action, ``message``; what the user answers is its result."""

    name = "message"

    def __init__(self, setting: Place) -> None:
        self._ask = setting.ask_user
        self._actions = (
            Action(
                name="message",
                function=self._message,
                description="Say something to the user: ask what only they can tell, or show what you have found. It answers with "
                "their words, or that nobody is there.",
                parameters={
                    "type": "object",
                    "properties": {"content": {"type": "string", "minLength": 1, "description": "What to say."}},
                    "required": ["content"],
                    "additionalProperties": False,
                },
            ),
        )

    def actions(self) -> Sequence[Action]:
        """See ``Kit``."""
        return self._actions

    def _message(self, content: str) -> str:
        answer = self._ask(content) if self._ask is not None else None
        return NOBODY if answer is None else f"The user says: {answer}"
