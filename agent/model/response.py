"""A model's reply as one value, whatever shape it came in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool as the model wrote it: ``arguments`` is JSON text, not yet parsed, and may be malformed."""

    name: str
    arguments: str = "{}"
    id: str = ""


@dataclass(frozen=True, slots=True)
class Response:
    """Text, calls of tools, or both. ``cut`` is true when the reply ended at the model's output limit."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    cut: bool = False

    @classmethod
    def of(cls, value: Any) -> Response:
        """The reply in ``value``: a Response, text, a mapping or an object of a model's client.

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
            message = choices[0].message
            cut = getattr(choices[0], "finish_reason", None) == "length"
            data = (
                message
                if isinstance(message, Mapping)
                else {k: getattr(message, k, None) for k in ("content", "tool_calls")}
            )
            return _of_message(data, cut)
        raise TypeError(f"A reply must be text, a mapping or a response of a model, not {type(value).__name__}.")


def text_of_reply(value: Any) -> str:
    """The text that a reply holds, its action in it where that is written as text; "" for what is no reply."""
    try:
        return Response.of(value).text.strip()
    except TypeError:
        return ""


def text_of_content(content: Any) -> str:
    """The text of a message's content: text as it is, parts joined, everything that is no text left out."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        return ""
    parts = [p if isinstance(p, str) else p.get("text") for p in content if isinstance(p, str | Mapping)]
    return "".join(p for p in parts if isinstance(p, str))


def _of_invocation(value: Mapping[str, Any]) -> Response:
    args = value.get("args", {})
    arguments = args if isinstance(args, str) else json.dumps(args, ensure_ascii=False, default=repr)
    return Response(str(value.get("thought", "")), (ToolCall(str(value["tool"]), arguments),))


def _of_message(value: Mapping[str, Any], cut: bool = False) -> Response:
    calls = tuple(_call(c) for c in value.get("tool_calls") or ())
    return Response(text_of_content(value.get("content")), calls, cut)


def _call(value: Any) -> ToolCall:
    function, name, arguments, ident = _get(value, "function"), None, None, _get(value, "id")
    if function is not None:
        name, arguments = _get(function, "name"), _get(function, "arguments")
    else:
        name, arguments = _get(value, "name"), _get(value, "arguments")
    if arguments is None or arguments == "":
        arguments = "{}"
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=repr)
    return ToolCall(str(name or ""), text, str(ident or ""))


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, Mapping) else getattr(value, key, None)
