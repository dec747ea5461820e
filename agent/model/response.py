"""A model's reply as one value, whatever form it arrived in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field
from itertools import islice
from typing import Any

from sandbox.envelope import jsonable
from sandbox.frozen import dataclass

# A provider refuses thinking that was shortened, so a reply with more than this loses all of its extras.
MAX_EXTRA_CHARS = 400_000
# Of one reply; the rest is as if it had not been written. No model means to make so many, and each would be remembered and logged.
MAX_TOOL_CALLS = 256
# What a provider needs back with the message, in litellm's names. Thinking is signed and must come back byte for byte.
EXTRA_KEYS = ("thinking_blocks", "reasoning_content", "provider_specific_fields")
_REPEATED = frozenset({"thinking_blocks", "reasoning_content", "refusal"})


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call as the model wrote it: ``arguments`` is JSON text, not yet parsed, and may be malformed.

    ``extra`` is what the provider needs back with the call (Gemini signs calls there).
    """

    name: str
    arguments: str = "{}"
    id: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Response:
    """Text, tool calls, or both. ``cut`` is true when the reply ended at the model's output limit.

    ``extra`` is what the provider needs back with the next prompt: ``thinking_blocks`` with their signatures,
    ``reasoning_content``, ``provider_specific_fields``. ``refusal`` says why a model or a content filter refused to answer.
    ``model`` is the model that answered, where the brain knows it.
    """

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    cut: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)
    refusal: str = ""
    model: str = ""

    @classmethod
    def of(cls, value: Any) -> Response:
        """Return the reply in ``value``: a Response, text, a mapping or an object of a model's client.

        Mappings are ``{"tool", "args"}`` (and "thought"), or a chat message with content and tool_calls. Raises
        TypeError for anything else.
        """
        if isinstance(value, Response):
            return value
        if isinstance(value, str):
            return cls(text=value)
        if isinstance(value, Mapping):
            return _of_invocation(value) if "tool" in value else _of_message(value)
        choices = getattr(value, "choices", None)
        if choices:
            return _of_message(choices[0].message, str(getattr(choices[0], "finish_reason", None) or ""))
        raise TypeError(f"A reply must be text, a mapping or a response of a model, not {type(value).__name__}.")

    @property
    def thinking(self) -> str:
        """The model's reasoning as text; "" if the provider does not show it."""
        blocks = self.extra.get("thinking_blocks")
        texts = (
            [b.get("thinking") for b in blocks if isinstance(b, Mapping)] if isinstance(blocks, list | tuple) else []
        )
        found = "\n\n".join(t for t in texts if isinstance(t, str) and t)
        return found or text_of_content(self.extra.get("reasoning_content"))


def text_of_reply(value: Any) -> str:
    """Return the text of a reply, with an action that is written as text in it; "" for a value that is not a reply."""
    try:
        return Response.of(value).text.strip()
    except TypeError:
        return ""


def text_of_content(content: Any) -> str:
    """Return the text of a message's content: text as it is, text parts joined, other parts left out."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        return ""
    parts = [p if isinstance(p, str) else p.get("text") for p in content if isinstance(p, str | Mapping)]
    return "".join(p for p in parts if isinstance(p, str))


def extra_of(message: Any) -> dict[str, Any]:
    """Return what the provider needs back with ``message``, as JSON-ready data; {} if it is nothing or too much to keep.

    litellm repeats the thinking in up to three fields; it is kept once. Values of another type than a provider sends are left
    out: replies and logs can hold anything.
    """
    found = {key: jsonable(value) for key in EXTRA_KEYS if _is_sent_back(key, value := _get(message, key))}
    fields = found.pop("provider_specific_fields", {})
    if "thinking_blocks" in found:
        found.pop("reasoning_content", None)
    if own := {k: v for k, v in fields.items() if v is not None and k not in _REPEATED}:
        found["provider_specific_fields"] = own
    written = json.dumps(found, default=repr, ensure_ascii=False) if found else ""
    return found if len(written) <= MAX_EXTRA_CHARS and written == _valid(written) else {}


def _is_sent_back(key: str, value: Any) -> bool:
    if key == "thinking_blocks":
        return isinstance(value, list | tuple) and bool(value) and all(isinstance(block, Mapping) for block in value)
    return bool(value) and isinstance(value, str if key == "reasoning_content" else Mapping)


def _of_invocation(value: Mapping[str, Any]) -> Response:
    args = value.get("args", {})
    arguments = args if isinstance(args, str) else json.dumps(args, ensure_ascii=False, default=repr)
    return Response(str(value.get("thought", "")), (ToolCall(str(value["tool"]), arguments),))


def _of_message(value: Any, finish: str = "") -> Response:
    calls = tuple(_call(c) for c in islice(_get(value, "tool_calls") or (), MAX_TOOL_CALLS))
    text = _valid(text_of_content(_get(value, "content")))
    refusal = str(_get(value, "refusal") or _get(_get(value, "provider_specific_fields"), "refusal") or "")
    if not refusal and finish == "content_filter":
        refusal = "The provider's content filter stopped the reply."
    return Response(text, calls, finish == "length", extra_of(value), refusal)


def _call(value: Any) -> ToolCall:
    function, ident = _get(value, "function"), _get(value, "id")
    source = value if function is None else function
    name, arguments = _get(source, "name"), _get(source, "arguments")
    if arguments is None or arguments == "":
        arguments = "{}"
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=repr)
    return ToolCall(_valid(str(name or "")), _valid(text), _valid(str(ident or "")), extra_of(value))


def _valid(text: str) -> str:
    """The text with ? for lone surrogates: no later prompt with one could be sent."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, Mapping) else getattr(value, key, None)
