"""The messages that a memory keeps of one exchange, the same for every language: the decision, then its answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent.core.envelopes import only_first_calls
from agent.core.result_budget import bounded
from agent.model.response import Response, ToolCall
from sandbox.envelope import jsonable

Message = dict[str, Any]


def exchange(response: Any, result: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return the messages for a reply and the envelopes that answer it, one per call in the order of the calls.

    A plain reply (text, a mapping) stays as it is. A model's response becomes its text, its calls and what its provider needs
    back with the next prompt. Each call without an envelope is answered ``too_many_actions``: providers refuse a conversation
    with unanswered calls.
    """
    results = [result] if isinstance(result, Mapping) else list(result)
    answers: list[Message] = [{"role": "tool", "content": bounded(each)} for each in results]
    if isinstance(response, str) or (isinstance(response, Mapping) and "tool" in response):
        return [{"role": "assistant", "content": jsonable(response)}, *answers]
    try:
        reply = Response.of(response)
    except TypeError:
        return [{"role": "assistant", "content": jsonable(response)}, *answers]
    decision = _decision(reply)
    if not reply.tool_calls:
        return [decision, *answers]
    answers += [{"role": "tool", "content": only_first_calls(len(results))} for _ in reply.tool_calls[len(answers) :]]
    for answer, call in zip(answers, reply.tool_calls, strict=False):
        answer["tool_call_id"] = call.id
    return [decision, *answers]


def _decision(reply: Response) -> Message:
    decision: Message = {"role": "assistant", "content": reply.text}
    if reply.tool_calls:
        decision["tool_calls"] = [_call(call) for call in reply.tool_calls]
    if reply.extra:
        decision["extra"] = dict(reply.extra)
    if reply.model and (reply.extra or any(call.extra for call in reply.tool_calls)):
        decision["model"] = reply.model  # thinking is signed for the model that wrote it, and a fallback may be asked next
    return decision


def _call(call: ToolCall) -> dict[str, Any]:
    kept: dict[str, Any] = {"id": call.id, "name": call.name, "arguments": call.arguments}
    return {**kept, "extra": dict(call.extra)} if call.extra else kept
