"""Middleware that asks again when a reply cannot be read, without the failed attempts ever getting into the memory."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Protocol

from agent.budget import current_meter
from agent.prompt import Prompt
from agent.status import LanguageError
from sandbox.errors import ErrorCode, SandboxError

from .brain import Brain
from .response import Response

ATTEMPTS = 2
# Of a reply that cannot be read, as much is shown to the model again: enough to see what it did.
SHOWN_CHARS = 8000


class Reader(Protocol):
    """What is needed of a language."""

    def parse_response(self, response: Any) -> Any:
        """Raises LanguageError for what cannot be read."""


class Placed(Protocol):
    """What is needed of a setting."""

    @property
    def language(self) -> Any:
        """The language of the agent."""


def retry_format(brain: Brain, setting: Placed, attempts: int = ATTEMPTS) -> Brain:
    """``brain``, asked up to ``attempts`` times more within the same step while its reply holds no action.

    Each time it is shown its reply and what is wrong with it, in messages of this prompt only. The last reply goes on as it is,
    readable or not. Every call is billed by the brain itself, and the budget of the run is checked before each. Raises
    SandboxError ``invalid_configuration`` without a language to read with.
    """
    language: Reader | None = setting.language
    if language is None:
        raise SandboxError(
            ErrorCode.invalid_configuration,
            "retry_format has no language to read replies with.",
            "Build the agent by its spec.",
        )

    def asked(prompt: Any, /) -> Any:
        reply, again = brain(prompt), prompt
        for _ in range(attempts):
            problem = _problem(language, reply)
            if problem is None or not isinstance(again, Prompt):
                break
            meter = current_meter()
            if meter is not None:
                meter.check()
            again = _with(again, reply, problem)
            reply = brain(again)
        return reply

    return asked


def _problem(language: Reader, reply: Any) -> LanguageError | None:
    try:
        language.parse_response(reply)
    except LanguageError as error:
        return error
    return None


def _with(prompt: Prompt, reply: Any, problem: LanguageError) -> Prompt:
    """The prompt with what was replied and why it cannot be read."""
    told = (
        f"ERROR {problem.code.value}: {problem.message}\nHINT: {problem.hint}\n"
        "Nothing was carried out. Reply again, in the form that you were told."
    )
    further = ({"role": "assistant", "content": _shown(reply)}, {"role": "user", "content": told})
    return replace(prompt, messages=(*prompt.messages, *further))


def _shown(reply: Any) -> str:
    """A reply as text: malformed native calls cannot be given back to a provider as what they are."""
    try:
        known = Response.of(reply)
    except TypeError:
        return repr(reply)[:SHOWN_CHARS]
    calls = [json.dumps({"tool": c.name, "args": c.arguments}, ensure_ascii=False) for c in known.tool_calls]
    text = "\n".join([*([known.text] if known.text else []), *calls]) or "(an empty reply)"
    if len(text) <= SHOWN_CHARS:
        return text
    half = SHOWN_CHARS // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters …]\n{text[-half:]}"
