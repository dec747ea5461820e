"""Messages that are too long for a prompt, shown shorter: what is left out is said, and what is kept stays as it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agent.envelopes import cut_texts, shown_chars

from .base import Message
from .shapes import BYTES_PER_TOKEN, is_envelope, shortened, text_of_message, tokens

LEAST_CHARS = 100


class Shortened(dict[str, Any]):
    """A message as it is shown; ``original`` is the one in the memory."""

    def __init__(self, message: Mapping[str, Any], original: Message) -> None:
        super().__init__(message)
        self.original = original


def original(message: Message) -> Message:
    """The message of the memory that ``message`` is, or is shown for."""
    return message.original if isinstance(message, Shortened) else message


def fitted(message: Message, most: int) -> Message:
    """``message``, or one of about ``most`` tokens in its place: head and tail of its texts, with what was left out said.

    The same message and ``most`` always give the same. Names and numbers of calls stay, however many there are.
    """
    size = tokens(message)
    chars = most * BYTES_PER_TOKEN
    while size > most and chars > LEAST_CHARS:
        shown = _cut(message, chars)
        size = tokens(shown)
        if size <= most:
            return shown
        # Escapes and long scripts take more bytes than characters; a result of many texts more than one of them.
        chars = max(min(chars * most // size, chars * 3 // 4), LEAST_CHARS)
    return message if size <= most else _as_text(message, max(most * BYTES_PER_TOKEN // 16, LEAST_CHARS))


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
    """For what is no long text but very many small values."""
    alone = {"role": message["role"], "content": message["content"]}
    calls = _calls(message, chars, LEAST_CHARS // 2)
    return Shortened({**message, "content": shortened(text_of_message(alone), chars), **calls}, message)


def _calls(message: Message, chars: int, least: int = LEAST_CHARS) -> dict[str, Any]:
    """The calls of a decision with shorter texts in their arguments, which stay JSON."""
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
