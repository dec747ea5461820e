"""The language of native function calling: tools go to the model as schemas and come back as calls."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from agent.actions import Action
from agent.goals import Goal
from agent.memory import Memory
from agent.registry import tools_of
from agent.status import LanguageError
from sandbox.environment.base import Environment

from .base import AgentLanguage, goals_text, prompt_of, reply_of
from .decoding import CALL_HINT, find_invocation, invocation_of_calls, span_of_invocation
from .turns import Turn, answered, conversation, named, shown


class FunctionCallingLanguage(AgentLanguage):
    """Goals as the system message, memory as messages with native calls, actions as tools."""

    def construct_prompt(
        self, actions: Sequence[Action], environment: Environment, goals: Sequence[Goal], memory: Memory
    ) -> Any:
        """The prompt, with ``tools`` by name."""
        turns = _native(named(conversation(memory.get_memories()), self.tool_of), actions)
        return prompt_of(goals_text(goals), turns, environment, goals, actions, tools_of(actions))

    def parse_response(self, response: Any) -> dict[str, Any]:
        """The first call. A reply without one may still hold ``{"tool", "args"}`` as text. Raises LanguageError."""
        reply = reply_of(response)
        if reply.tool_calls:
            return invocation_of_calls(reply).to_dict()
        found = find_invocation(reply.text, reply.cut)
        if found is not None:
            return found.to_dict()
        if not reply.text.strip():
            raise LanguageError("The reply is empty.", CALL_HINT)
        raise LanguageError("The reply is text without a tool call.", CALL_HINT)

    def action_span(self, text: str) -> tuple[int, int] | None:
        """See the base class."""
        return span_of_invocation(text)


def _native(turns: Iterable[Turn], actions: Sequence[Action]) -> list[dict[str, Any]]:
    """The turns as chat messages with native calls; an answer without a call is told as a message of the user."""
    by_name = {a.name: a for a in actions}
    messages: list[dict[str, Any]] = []
    unanswered: list[str] = []
    for turn in turns:
        if turn.role != "tool":
            messages += [_missing(ident) for ident in unanswered]
            unanswered = [ident for ident, _, _ in turn.calls]
        text = shown(turn, by_name)
        if turn.role == "assistant" and turn.calls:
            messages.append(
                {"role": "assistant", "content": text or None, "tool_calls": [_call(*c) for c in turn.calls]}
            )
        elif turn.role == "tool" and turn.call_id is not None:
            unanswered.remove(turn.call_id)
            messages.append({"role": "tool", "tool_call_id": turn.call_id, "content": text})
        elif turn.role == "tool":
            messages.append({"role": "user", "content": answered(turn, text)})
        else:
            messages.append({"role": turn.role, "content": text})
    return messages + [_missing(ident) for ident in unanswered]


def _call(ident: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": ident, "type": "function", "function": {"name": name or "unnamed", "arguments": _valid(arguments)}}


def _valid(arguments: str) -> str:
    """Arguments that a provider takes back: malformed ones are quoted, since providers refuse a conversation that
    holds them.
    """
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        value = None
    return arguments if isinstance(value, dict) else json.dumps({"malformed": arguments}, ensure_ascii=False)


def _missing(ident: str) -> dict[str, Any]:
    """Providers refuse a conversation with an unanswered call (an interrupted run can leave one)."""
    return {"role": "tool", "tool_call_id": ident, "content": "[no answer was recorded]"}
