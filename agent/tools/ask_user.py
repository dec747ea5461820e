"""The kit ``ask_user``: a question to the user who started the run, and what happens if nobody answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

from agent.core.actions import Action
from agent.core.kits import Kit
from agent.core.loop.hooks import Hooks, Step
from agent.core.status import RunStatus, StopRun
from agent.memory import Memory
from sandbox.errors import ToolError

Absent = Literal["refuse", "reply", "pause"]
REPLY = (
    "Nobody is there to answer. Decide yourself, in the way that can be undone most easily, and say so when you finish."
)
SCHEMA = {
    "type": "object",
    "properties": {"question": {"type": "string", "minLength": 1, "maxLength": 10_000, "description": "The question."}},
    "required": ["question"],
    "additionalProperties": False,
}


class CanAsk(Protocol):
    """As much of a ``KitContext`` as this kit needs."""

    @property
    def ask_user(self) -> Callable[[str], str | None] | None:
        """Asks the user a question and returns the answer; None if no user is there."""


class AskUserKit(Kit):
    """One action, ``ask_user``. ``absent`` decides what happens if nobody answers: the call is refused, ``reply`` is the answer, or
    the run is paused, and the user's message on resuming is the answer.
    """

    name = "ask_user"

    def __init__(self, setting: CanAsk, absent: Absent = "refuse", reply: str = REPLY) -> None:
        if absent not in ("refuse", "reply", "pause"):
            raise ValueError(f"absent must be refuse, reply or pause, got {absent!r}.")
        self._ask, self._absent, self._reply = setting.ask_user, absent, reply
        self._unanswered = ""
        self._action = Action(
            "ask_user",
            self._asked,
            "Ask the user a question, and wait for the answer. Ask only what you cannot find out in another way.",
            SCHEMA,
            metadata={"idempotent": True, "risk": "low"},  # a question that was cut off is asked again
        )

    def actions(self) -> Sequence[Action]:
        return (self._action,)

    def hooks(self) -> Sequence[Hooks]:
        return (_Pausing(self),)

    def _asked(self, question: str) -> str:
        answer = self._ask(question) if self._ask is not None else None
        if answer is not None and answer.strip():
            return answer
        if self._absent == "reply":
            return self._reply
        if self._absent == "pause":
            self._unanswered = question
            raise ToolError("Nobody has answered yet.", "The run is paused; the user's next message is the answer.")
        raise ToolError("Nobody answered.", "Decide yourself, or finish and say what you need to know.")

    def unanswered(self) -> str:
        """Return the question to pause the run for, once; "" if there is none."""
        question, self._unanswered = self._unanswered, ""
        return question


class _Pausing(Hooks):
    def __init__(self, kit: AskUserKit) -> None:
        self.kit = kit

    def on_result(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        question = self.kit.unanswered()
        if question:
            raise StopRun(f"The agent asks: {question}", RunStatus.paused, result={"question": question})


def ask_user_action(ask: Callable[[str], str | None] | None, *, reply: str | None = None) -> Action:
    """Return the action alone, for a registry. If nobody answers, the call is refused, or answered with ``reply``."""

    class Setting:
        ask_user = staticmethod(ask) if ask is not None else None

    setting: Any = Setting()
    return AskUserKit(setting, "refuse" if reply is None else "reply", reply or REPLY).actions()[0]
