"""The kit ``message``: a message to the user, and the answer if somebody is there."""

from __future__ import annotations

from collections.abc import Sequence

from agent.core.actions import Action
from agent.core.kits import Kit, KitContext

NOBODY = "Noted. Nobody is there to answer: go on by yourself, or end the run and say what is not done."


class MessageKit(Kit):
    """One action, ``message``. Its result is the user's answer."""

    name = "message"

    def __init__(self, setting: KitContext) -> None:
        self._ask = setting.ask_user
        self._actions = (
            Action(
                name="message",
                function=self._message,
                description="Send a message to the user: ask for something that only they know, or show what you have found. The "
                "result is their answer, or a note that nobody is there.",
                parameters={
                    "type": "object",
                    "properties": {"content": {"type": "string", "minLength": 1, "description": "What to say."}},
                    "required": ["content"],
                    "additionalProperties": False,
                },
            ),
        )

    def actions(self) -> Sequence[Action]:
        return self._actions

    def _message(self, content: str) -> str:
        answer = self._ask(content) if self._ask is not None else None
        return NOBODY if answer is None else f"The user says: {answer}"
