"""The tool ``ask_user``: a question to whoever started the run, and what happens where nobody is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

from agent.actions import Action
from agent.hooks import Hooks, Step
from agent.kits import Kit
from agent.memory import Memory
from agent.status import RunStatus, StopRun
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
    """What the kit needs of the setting."""

    @property
    def ask_user(self) -> Callable[[str], str | None] | None:
        """Asks the user; None where there is none, or no answer came."""


class AskUserKit(Kit):
    """``ask_user``. Where nobody answers, ``absent`` says what happens: the call is refused, ``reply`` is the answer, or the run is
    paused; what the user says when it is resumed is then the answer.
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
            "Ask the user a question, and wait for the answer. Only what nothing else can tell you.",
            SCHEMA,
            metadata={"idempotent": True, "risk": "low"},  # a question that was cut off is asked again
        )

    def actions(self) -> Sequence[Action]:
        """See the base class."""
        return (self._action,)

    def hooks(self) -> Sequence[Hooks]:
        """See the base class."""
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
        """The question that the run is to be paused for, once; "" for none."""
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
    """The action alone, for a registry of one's own; without an answer it is refused, or answered with ``reply``."""

    class Setting:
        ask_user = staticmethod(ask) if ask is not None else None

    setting: Any = Setting()
    return AskUserKit(setting, "refuse" if reply is None else "reply", reply or REPLY).actions()[0]
