"""Memory as a conversation: decisions with their calls, and answers with the call they answer, in whatever form they are stored."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from agent.core.actions import Action
from agent.core.envelopes import text_of
from agent.core.images import described, image_part, is_image, parts_of, without_images
from agent.model.response import Response, extra_of, text_of_content
from sandbox.errors import ErrorCode
from sandbox.frozen import dataclass

Message = dict[str, Any]
# Some are long: a signature of the thinking may be part of them.
_ID = re.compile(r"[!-~]{1,20000}")


@dataclass(frozen=True, slots=True)
class Call:
    """A call in a decision: ``arguments`` is JSON text, ``extra`` what the provider needs back with it."""

    id: str
    name: str
    arguments: str
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(slots=True)
class Turn:
    """One message of the conversation. ``call_id`` and ``tool`` belong to an answer.

    ``extra`` is what the provider needs back with a decision, and ``model`` the one that wrote it.
    """

    role: str
    content: Any
    calls: list[Call] = field(default_factory=list)
    call_id: str | None = None
    tool: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)
    model: str = ""

    def carried(self, keys: Sequence[str] | None = None) -> Message:
        """Return the keys of a prompt's message that take ``extra`` back to the provider: all of them, or only ``keys``."""
        chosen = {k: v for k, v in self.extra.items() if keys is None or k in keys}
        signed = chosen or (keys is None and any(call.extra for call in self.calls))
        return {**chosen, "model": self.model} if signed and self.model else chosen


def conversation(memories: Sequence[Mapping[str, Any]]) -> list[Turn]:
    """Return the memories as turns. A call without a valid id gets one; an answer belongs to the oldest unanswered call.

    An answer without a call keeps ``call_id`` None; a call without an answer is left to the language.
    """
    turns: list[Turn] = []
    waiting: list[tuple[str, str]] = []
    for index, message in enumerate(memories):
        role = message["role"]
        if role == "assistant":
            turn = _decision(message, index)
            waiting = [(call.id, call.name) for call in turn.calls]
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
    taken: set[str] = set()
    made = [
        Call(_id(c.get("id"), f"call_{index}_{n}", taken), str(c.get("name", "")), str(c.get("arguments", "{}")), _extra(c))
        for n, c in enumerate(calls or ())
    ]
    return Turn("assistant", content, made, extra=_extra(message), model=str(message.get("model", "")))


def _id(given: Any, own: str, taken: set[str]) -> str:
    """The id of a call as the model gave it; ``own`` in place of one that providers refuse, as one that is in the reply twice."""
    ident = str(given or "")
    if ident in taken or not _ID.fullmatch(ident):
        ident = own
    while ident in taken:
        ident += "_"
    taken.add(ident)
    return ident


def _extra(data: Mapping[str, Any]) -> Mapping[str, Any]:
    extra = data.get("extra")
    return extra_of(extra) if isinstance(extra, Mapping) else {}


def named(turns: Iterable[Turn], tool_of: Callable[[str], str | None]) -> list[Turn]:
    """Return the turns with the tool of each answer to a text reply, which ``tool_of`` parses."""
    done: list[Turn] = []
    waiting: str | None = None
    for turn in turns:
        if turn.role == "assistant":
            waiting = tool_of(turn.content) if isinstance(turn.content, str) and not turn.calls else None
        elif turn.role == "tool" and turn.tool is None:
            turn.tool, waiting = waiting, None
        done.append(turn)
    return done


@dataclass(frozen=True, slots=True)
class Rendered:
    """The content of a turn as text, and its images as parts of a message. ``action`` worded it, if it is an envelope."""

    content: Any
    action: Action | None
    text: str
    images: list[Message]

    def message_content(self, text: str) -> str | list[Message]:
        """Return ``text`` as the content of a message, with the images as parts if there are any.

        A brain puts a description in the place of each for a model that cannot see.
        """
        return [{"type": "text", "text": text}, *self.images] if self.images else text


class Renderer:
    """Renders the contents of turns, each once for all prompts that have it: a run would need quadratic time otherwise.

    A content is known by its identity: memories replace contents, and do not change them.
    """

    def __init__(self) -> None:
        self._known: dict[int, Rendered] = {}

    def render(self, turns: Iterable[Turn], actions: Sequence[Action]) -> list[tuple[Turn, Rendered]]:
        """Return each turn with its content; whatever is not among ``turns`` is forgotten."""
        by_name = {action.name: action for action in actions}
        known, latest = self._known, {}
        rendered: list[tuple[Turn, Rendered]] = []
        for turn in turns:
            content, action = turn.content, by_name.get(turn.tool or "")
            found = known.get(id(content))
            if found is None or found.content is not content or found.action is not action:
                images = parts_of(content) if turn.role in ("tool", "user") else []
                found = Rendered(content, action, _text(turn, action), images)
            if not isinstance(content, str):
                latest[id(content)] = found
            rendered.append((turn, found))
        self._known = latest
        return rendered


def _text(turn: Turn, action: Action | None) -> str:
    content = turn.content
    if isinstance(content, str):
        return content
    if isinstance(content, list) and any(is_image(part) for part in content):
        return text_of_content([described(p) if is_image(p) and image_part(p) is None else p for p in content])
    content = without_images(content)
    if turn.role != "tool" or not isinstance(content, Mapping):
        return json.dumps(content, ensure_ascii=False, sort_keys=True)
    return action.show(content) if action is not None else text_of(content)


def answered(turn: Turn, text: str) -> str:
    """Return ``text``, an answer, for a message of the user: below the name of the tool, if one was called."""
    if isinstance(turn.content, Mapping) and turn.content.get("code") == ErrorCode.unparsable_response.value:
        return text
    return f"Result{f' of {turn.tool}' if turn.tool else ''}:\n{text}"


def json_call(name: str, arguments: str) -> str:
    """Return a call as JSON in text."""
    return f'{{"tool": {json.dumps(name, ensure_ascii=False)}, "args": {arguments}}}'


def text_messages(
    rendered: Iterable[tuple[Turn, Rendered]], call_text: Callable[[str, str], str] = json_call
) -> list[Message]:
    """Return messages for a model that only reads and writes text.

    ``call_text`` words calls (name, arguments as JSON); answers of tools become messages of the user.
    """
    messages: list[Message] = []
    for turn, content in rendered:
        if turn.role == "tool":
            messages.append({"role": "user", "content": content.message_content(answered(turn, content.text))})
            continue
        parts = [content.text, *(call_text(call.name, call.arguments) for call in turn.calls)]
        text = "\n".join(p for p in parts if p)
        messages.append(
            {"role": turn.role, "content": content.message_content(text), **turn.carried(("thinking_blocks",))}
        )
    return messages
