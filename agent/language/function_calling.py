"""The language of native function calling: tools go to the model as schemas and come back as calls."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from agent.core.actions import Action
from agent.core.goals import Goal
from agent.core.registry import tools_of
from agent.core.status import LanguageError
from agent.memory import Memory
from agent.model.response import Response
from sandbox.environment.base import Environment

from .base import AgentLanguage, goals_text, prompt_of, reply_of
from .decoding import CALL_HINT, find_invocation, invocation_of_calls, span_of_invocation
from .turns import Call, Rendered, Turn, answered


class FunctionCallingLanguage(AgentLanguage):
    """A language of native calls: goals are the system message, actions are tools."""

    def construct_prompt(
        self, actions: Sequence[Action], environment: Environment, goals: Sequence[Goal], memory: Memory
    ) -> Any:
        """Return the prompt, with ``tools`` sorted by name."""
        turns = _native(self.rendered(memory, actions), {action.name for action in actions})
        return prompt_of(goals_text(goals), turns, environment, goals, actions, tools_of(actions))

    def parse_response(self, response: Any) -> dict[str, Any]:
        """Return the first call. A reply without one may still hold ``{"tool", "args"}`` as text. Raises LanguageError."""
        reply = reply_of(response)
        if reply.tool_calls:
            return invocation_of_calls(reply).to_dict()
        found = find_invocation(reply.text, reply.cut)
        if found is not None:
            return found.to_dict()
        if not reply.text.strip():
            raise LanguageError("The reply is empty.", CALL_HINT)
        raise LanguageError("The reply is text without a tool call.", CALL_HINT)

    def parse_calls(self, response: Any) -> list[dict[str, Any] | LanguageError]:
        """See the base class; a call with arguments that cannot be parsed does not stop the others."""
        reply = reply_of(response)
        if not reply.tool_calls:
            return [self.parse_response(response)]
        return [_parsed(replace(reply, tool_calls=(call,))) for call in reply.tool_calls]

    def action_span(self, text: str) -> tuple[int, int] | None:
        return span_of_invocation(text)


def _parsed(reply: Response) -> dict[str, Any] | LanguageError:
    try:
        return invocation_of_calls(reply).to_dict()
    except LanguageError as error:
        return error


def _native(rendered: Iterable[tuple[Turn, Rendered]], names: Collection[str]) -> list[dict[str, Any]]:
    """The turns as chat messages with native calls; an answer without a call becomes a message of the user. ``names`` are those
    of the tools.

    Providers refuse a message between a call and its answer: such a message follows the answers.
    """
    messages: list[dict[str, Any]] = []
    unanswered: list[str] = []
    later: list[dict[str, Any]] = []
    for turn, content in rendered:
        text = content.text
        if turn.role == "assistant":
            messages += [*(_missing(ident) for ident in unanswered), *later]
            unanswered, later = [call.id for call in turn.calls], []
        if turn.role == "assistant" and turn.calls:
            calls = [_call(call, names) for call in turn.calls]
            messages.append({"role": "assistant", "content": text or None, "tool_calls": calls, **turn.carried()})
        elif turn.role == "tool" and turn.call_id is not None:
            unanswered.remove(turn.call_id)
            messages.append({"role": "tool", "tool_call_id": turn.call_id, "content": content.message_content(text)})
        elif turn.role == "tool":
            messages.append({"role": "user", "content": content.message_content(answered(turn, text))})
        else:
            (later if unanswered else messages).append(
                {"role": turn.role, "content": content.message_content(text), **turn.carried(("thinking_blocks",))}
            )
        if not unanswered:
            messages += later
            later = []
    return [*messages, *(_missing(ident) for ident in unanswered), *later]


def _call(call: Call, names: Collection[str]) -> dict[str, Any]:
    # Providers refuse a conversation with a call of a name that no tool may have, such as functions.run.
    name = call.name if call.name in names else re.sub(r"[^A-Za-z0-9_-]", "_", call.name)[:64] or "unnamed"
    function = {"name": name, "arguments": _valid(call.arguments)}
    return {"id": call.id, "type": "function", "function": function, **call.extra}


@lru_cache(maxsize=4096)  # each prompt has all of the remembered calls
def _valid(arguments: str) -> str:
    """Arguments that a provider accepts: it refuses a conversation with malformed ones, so they are quoted."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        value = None
    return arguments if isinstance(value, dict) else json.dumps({"malformed": arguments}, ensure_ascii=False)


def _missing(ident: str) -> dict[str, Any]:
    """Providers refuse a conversation with an unanswered call (an interrupted run can leave one)."""
    return {"role": "tool", "tool_call_id": ident, "content": "[no answer was recorded]"}
