"""Messages as memories see them: which belong together, how long they are, how they read as text, and how they get shorter."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from agent.core.envelopes import text_of
from agent.core.images import IMAGE_TOKENS, has_images, images_in, without_images
from agent.core.result_budget import BYTES_PER_TOKEN, cut_texts, shown_chars, shown_size
from sandbox.envelope import jsonable
from sandbox.text.excerpt import LEFT_OUT, without_middle

Message = dict[str, Any]

# What a provider adds around each message.
MESSAGE_TOKENS = 4
# A text that was shortened keeps at least this much.
LEAST_CHARS = 100


def borders(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return where ``messages`` may be split: before each one but answers of tools, which belong to the call before them."""
    return [i for i, message in enumerate(messages) if message["role"] != "tool"]


def tokens(message: Mapping[str, Any]) -> int:
    """Return about how many tokens the message takes in a prompt; a cheap, deterministic estimate."""
    images = 0
    kept = {key: message[key] for key in ("content", "tool_calls", "extra") if key in message}
    size = 0
    if is_envelope(content := kept.get("content")):
        size = shown_size(content)
        del kept["content"]
    elif has_images(content):
        images = sum(1 for _ in images_in(content))
        kept["content"] = without_images(content)
    text = json.dumps(kept, ensure_ascii=False, default=repr)
    return (
        (size + len(text.encode("utf-8", "surrogatepass"))) // BYTES_PER_TOKEN + images * IMAGE_TOKENS + MESSAGE_TOKENS
    )


def is_envelope(content: Any) -> TypeGuard[Mapping[str, Any]]:
    """Return whether the content of a message is the answer to an action."""
    return isinstance(content, Mapping) and "tool_executed" in content


def text_of_message(message: Mapping[str, Any]) -> str:
    """Return the message as text: its content, and a line for each call."""
    content = message.get("content")
    if is_envelope(content):
        content = text_of(content)
    elif not isinstance(content, str):
        content = json.dumps(jsonable(without_images(content)), ensure_ascii=False, sort_keys=True)
    calls = [f"{call.get('name', '')} {call.get('arguments', '')}" for call in message.get("tool_calls") or ()]
    return "\n".join(part for part in (content, *calls) if part)


def shortened(text: str, chars: int) -> str:
    """Return ``text`` without its middle if it is longer than ``chars``, which must be at least 100; never more than ``chars``."""
    mark = LEFT_OUT.format(count=f"{len(text):,}")
    return text if len(text) <= chars else without_middle(text, max(chars - len(mark) - 2, 0))  # the mark has a line of its own


class Shortened(dict[str, Any]):
    """A message as a prompt shows it; ``original`` is the one in the memory."""

    def __init__(self, message: Mapping[str, Any], original: Message) -> None:
        super().__init__(message)
        self.original = original


def original(message: Message) -> Message:
    """Return the message of the memory that ``message`` is, or stands for."""
    return message.original if isinstance(message, Shortened) else message


def fitted(message: Message, most: int) -> Message:
    """Return ``message``, or one of about ``most`` tokens in its place: head and tail of its texts, with a note of what is missing.

    The same message and ``most`` always give the same. Names and numbers of calls stay, however many there are. Thinking is
    signed and cannot be cut: it is left out whole if it takes more than half of the room.
    """
    size = tokens(message)
    if size > most and "extra" in message and size - tokens(without := _without_extra(message)) > most // 2:
        return Shortened(fitted(without, most), message)
    chars = most * BYTES_PER_TOKEN
    while size > most and chars > LEAST_CHARS:
        shown = _cut(message, chars)
        size = tokens(shown)
        if size <= most:
            return shown
        # Escapes and long scripts take more bytes than characters; a result of many texts more than one of them.
        chars = max(min(chars * most // size, chars * 3 // 4), LEAST_CHARS)
    return message if size <= most else _as_text(message, max(most * BYTES_PER_TOKEN // 16, LEAST_CHARS))


def _without_extra(message: Message) -> Message:
    return {key: value for key, value in message.items() if key not in ("extra", "model")}


def _cut(message: Message, chars: int) -> Shortened:
    content = message["content"]
    if isinstance(content, str):
        content = shortened(content, chars)
    elif is_envelope(content):
        # The result stays as it is: its own words are cut where they are shown, once, with true ranges.
        content = {**content, "shown_chars": min(chars, shown_chars(content))}
    else:
        content = cut_texts(content, chars)
    return Shortened({**message, "content": content, **_calls(message, chars)}, message)


def _as_text(message: Message, chars: int) -> Shortened:
    """For a message of very many small values instead of a long text."""
    alone = {"role": message["role"], "content": message["content"]}
    calls = _calls(message, chars, LEAST_CHARS // 2)
    return Shortened({**message, "content": shortened(text_of_message(alone), chars), **calls}, message)


def _calls(message: Message, chars: int, least: int = LEAST_CHARS) -> dict[str, Any]:
    """The calls of a decision with shorter texts in their arguments, which remain JSON."""
    calls = message.get("tool_calls")
    if not calls:
        return {}
    each = max(chars // len(calls), least)
    return {"tool_calls": [{**call, "arguments": _arguments(call.get("arguments"), each)} for call in calls]}


def _arguments(text: Any, chars: int) -> Any:
    if not isinstance(text, str) or len(text) <= chars:
        return text
    try:
        given = cut_texts(json.loads(text), chars)
    except (ValueError, RecursionError):
        given = {}
    made = json.dumps(given, ensure_ascii=False)
    return made if len(made) <= 2 * chars else json.dumps({"left_out": shortened(text, chars)}, ensure_ascii=False)
