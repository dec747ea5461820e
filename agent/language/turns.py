"""Memory as a conversation: decisions with their calls, answers with the call they answer, whichever form they were
stored in.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent.actions import Action
from agent.envelopes import text_of
from agent.model.response import Response
from sandbox.errors import ErrorCode

Message = dict[str, Any]


@dataclass(slots=True)
class Turn:
    """One message of the conversation. ``calls`` are (id, name, arguments as JSON text); ``call_id`` and ``tool``
    belong to an answer.
    """

    role: str
    content: Any
    calls: list[tuple[str, str, str]] = field(default_factory=list)
    call_id: str | None = None
    tool: str | None = None


def conversation(memories: Sequence[Mapping[str, Any]]) -> list[Turn]:
    """The memories as turns. Calls without an id get one; an answer takes the oldest call that is still unanswered.

    An answer without a call keeps ``call_id`` None; a call without an answer is left to the language.
    """
    turns: list[Turn] = []
    waiting: list[tuple[str, str]] = []
    for index, message in enumerate(memories):
        role = message["role"]
        if role == "assistant":
            turn = _decision(message, index)
            waiting = [(ident, name) for ident, name, _ in turn.calls]
        elif role == "tool":
            turn = Turn("tool", message["content"])
            if waiting:
                turn.call_id, turn.tool = waiting.pop(0)
        else:
            turn = Turn(role, message["content"])
        turns.append(turn)
    return turns


def _decision(message: Mapping[str, Any], index: int) -> Turn:
    content = message["content"]
    calls = message.get("tool_calls")
    if calls is None and isinstance(content, Mapping) and "tool" in content:
        reply = Response.of(content)
        content, calls = reply.text, [{"name": c.name, "arguments": c.arguments} for c in reply.tool_calls]
    named = [
        (str(c.get("id") or f"call_{index}_{n}"), str(c.get("name", "")), str(c.get("arguments", "{}")))
        for n, c in enumerate(calls or ())
    ]
    return Turn("assistant", content, named)


def named(turns: Iterable[Turn], tool_of: Callable[[str], str | None]) -> list[Turn]:
    """The turns, where an answer to a reply of text knows its tool too: ``tool_of`` reads it from the reply."""
    done: list[Turn] = []
    waiting: str | None = None
    for turn in turns:
        if turn.role == "assistant":
            waiting = tool_of(turn.content) if isinstance(turn.content, str) and not turn.calls else None
        elif turn.role == "tool" and turn.tool is None:
            turn.tool, waiting = waiting, None
        done.append(turn)
    return done


def shown(turn: Turn, actions: Mapping[str, Action]) -> str:
    """The content of a turn as text: an envelope in the words of the action it answers."""
    content = turn.content
    if isinstance(content, str):
        return content
    if turn.role != "tool" or not isinstance(content, Mapping):
        return json.dumps(content, ensure_ascii=False, sort_keys=True)
    action = actions.get(turn.tool or "")
    return action.show(content) if action is not None else text_of(content)


def answered(turn: Turn, text: str) -> str:
    """``text``, the content of an answer, for a message of the user: headed by whose result it is, if anything was called."""
    if isinstance(turn.content, Mapping) and turn.content.get("code") == ErrorCode.unparsable_response.value:
        return text
    return f"Result{f' of {turn.tool}' if turn.tool else ''}:\n{text}"


def json_call(name: str, arguments: str) -> str:
    """A call as JSON in text."""
    return f'{{"tool": {json.dumps(name, ensure_ascii=False)}, "args": {arguments}}}'


def text_turns(
    turns: Iterable[Turn], actions: Sequence[Action], call_text: Callable[[str, str], str] = json_call
) -> list[Message]:
    """The turns for a model that only reads and writes text: calls as ``call_text`` words them (name, arguments as JSON), answers
    of tools as messages of the user.
    """
    by_name = {a.name: a for a in actions}
    messages: list[Message] = []
    for turn in turns:
        text = shown(turn, by_name)
        if turn.role == "tool":
            messages.append({"role": "user", "content": answered(turn, text)})
            continue
        parts = [text, *(call_text(name, arguments) for _, name, arguments in turn.calls)]
        messages.append({"role": turn.role, "content": "\n".join(p for p in parts if p)})
    return messages
