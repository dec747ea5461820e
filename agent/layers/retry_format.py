"""The layer that asks again if a reply cannot be parsed; the memory never gets the failed attempts."""

from __future__ import annotations

import json
from copy import copy
from dataclasses import replace
from typing import Any, Protocol

from agent.core.budget import current_meter
from agent.core.loop.layers import Flow, Layer
from agent.core.loop.turns import Ask
from agent.core.prompt import Prompt
from agent.core.status import LanguageError
from agent.model.response import Response
from sandbox.text.excerpt import without_middle

ATTEMPTS = 2
# Of a reply that cannot be read, as much is shown to the model again: enough to see what it did.
SHOWN_CHARS = 8000


class Reader(Protocol):
    """A language, as far as it is needed here."""

    def parse_response(self, response: Any) -> Any:
        """Raises LanguageError for what cannot be read."""


class RetryFormat(Layer):
    """A layer that asks up to ``attempts`` times more within a step, as long as the reply contains no action.

    Each time the model is shown its reply and what is wrong with it, in messages of this prompt only. The last reply goes on as it
    is, readable or not. Every attempt is billed, and the budget of the run is checked before each. Prompts of another kind than
    ``Prompt`` are asked once.
    """

    def __init__(self, attempts: int = ATTEMPTS) -> None:
        self.attempts = attempts
        self._language: Reader | None = None

    def for_run(self, agent: Any) -> RetryFormat:
        """Return the layer that reads replies with the language of ``agent``."""
        layer = copy(self)
        layer._language = agent.agent_language  # noqa: SLF001 - a copy of this object
        return layer

    def around_ask(self, ask: Ask) -> Flow:
        reply = yield ask
        for _ in range(self.attempts):
            problem = self._problem(reply)
            if problem is None or not isinstance(ask.prompt, Prompt):
                break
            meter = current_meter()
            if meter is not None:
                meter.check()
            ask = replace(ask, prompt=_with(ask.prompt, reply, problem))
            reply = yield ask
        return reply

    def _problem(self, reply: Any) -> LanguageError | None:
        if self._language is None:  # outside of a run
            return None
        try:
            self._language.parse_response(reply)
        except LanguageError as error:
            return error
        return None


def _with(prompt: Prompt, reply: Any, problem: LanguageError) -> Prompt:
    """The prompt with the reply and the reason why it cannot be parsed."""
    correction = (
        f"ERROR {problem.code.value}: {problem.message}\nHINT: {problem.hint}\n"
        "Nothing was executed. Reply again, in the required form."
    )
    further = ({"role": "assistant", "content": _shown(reply)}, {"role": "user", "content": correction})
    return replace(prompt, messages=(*prompt.messages, *further))


def _shown(reply: Any) -> str:
    """A reply as text: a provider refuses malformed native calls in a conversation."""
    try:
        known = Response.of(reply)
    except TypeError:
        return repr(reply)[:SHOWN_CHARS]
    calls = [json.dumps({"tool": c.name, "args": c.arguments}, ensure_ascii=False) for c in known.tool_calls]
    text = "\n".join([*([known.text] if known.text else []), *calls]) or "(an empty reply)"
    return without_middle(text, SHOWN_CHARS)
