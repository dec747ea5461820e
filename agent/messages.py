"""What memory keeps of one exchange, the same for every language: the decision first, then the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent.model.response import Response
from sandbox.envelope import jsonable

from .envelopes import bounded, only_first_call

Message = dict[str, Any]


def exchange(response: Any, result: Mapping[str, Any]) -> list[Message]:
    """The messages for a reply and the envelope that answers it.

    A plain reply (text, a mapping) is kept as it is; a response of a model as its text and its calls. Calls after the
    first are answered too: providers refuse a conversation with unanswered calls.
    """
    answer: Message = {"role": "tool", "content": bounded(result)}
    if isinstance(response, str) or (isinstance(response, Mapping) and "tool" in response):
        return [{"role": "assistant", "content": jsonable(response)}, answer]
    try:
        reply = Response.of(response)
    except TypeError:
        return [{"role": "assistant", "content": jsonable(response)}, answer]
    decision: Message = {"role": "assistant", "content": reply.text}
    if not reply.tool_calls:
        return [decision, answer]
    decision["tool_calls"] = [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in reply.tool_calls]
    answer["tool_call_id"] = reply.tool_calls[0].id
    others = [{"role": "tool", "content": only_first_call(), "tool_call_id": c.id} for c in reply.tool_calls[1:]]
    return [decision, answer, *others]
