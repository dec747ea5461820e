"""What goes to a provider: the messages of a prompt in the form that this model takes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agent.core.images import described, image_part, is_image
from agent.core.prompt import Prompt
from sandbox.frozen import dataclass

from .response import EXTRA_KEYS

Message = dict[str, Any]
# Images of old steps cost much in each prompt and say little: those before the latest ones are described in words.
MAX_IMAGES_PER_PROMPT = 12
# Providers that refuse fields of a message which they do not know. They do not want thinking back.
_STRICT = frozenset({"openai", "azure", "text-completion-openai", "groq", "mistral", "cerebras", "sambanova", "xai"})
# Providers where a Claude model caches the beginning of a prompt only up to a marker.
_MARKED = frozenset({"anthropic", "bedrock", "vertex_ai", "openrouter", "azure_ai", "databricks"})
_MARKER = {"type": "ephemeral"}


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a model takes: images, markers for the cache, a schema for its reply, and its own thinking back."""

    model: str
    provider: str = ""
    sees: bool = False
    marked: bool = False
    structured: bool = False

    @classmethod
    def of(cls, litellm: Any, model: str, address: str | None) -> Abilities:
        """Return what litellm knows of ``model``; a model that it does not know takes text alone."""
        try:
            name, provider, _, _ = litellm.get_llm_provider(model, api_base=address)
        except Exception:  # noqa: BLE001 - litellm raises a bare Exception for a model it does not know
            return cls(model)
        return cls(
            model,
            provider,
            sees=_knows(litellm.supports_vision, name, provider),
            marked=provider in _MARKED and "claude" in name.lower(),
            # For Claude litellm makes a tool of the schema and forces its call, which forbids thinking.
            structured="claude" not in name.lower() and _knows(litellm.supports_response_schema, name, provider),
        )


def request_of(prompt: Any, able: Abilities | None = None) -> dict[str, Any]:
    """Return messages and tools of a prompt: a Prompt, a mapping with messages, or anything else as text of the user.

    Images become words for a model that cannot see; thinking goes back only to the provider that wrote it.
    """
    able = able or Abilities("")
    stable = prompt.stable_messages if isinstance(prompt, Prompt) else None
    further = _further(prompt, able) if isinstance(prompt, Prompt) else {}
    if isinstance(prompt, Prompt):
        prompt = prompt.to_dict()
    if not isinstance(prompt, Mapping) or "messages" not in prompt:
        text = prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False, default=repr)
        return {"messages": [{"role": "user", "content": text}]}
    messages = [_without_foreign(message, able) for message in prompt["messages"]]
    if able.marked:
        messages = _marked(messages, stable)
    messages = _with_images(messages, able)
    request: dict[str, Any] = {"messages": messages, **further}
    return {**request, "tools": list(prompt["tools"])} if prompt.get("tools") else request


def _further(prompt: Prompt, able: Abilities) -> dict[str, Any]:
    further: dict[str, Any] = {}
    if prompt.tools and prompt.parallel_calls is not None:
        further["parallel_tool_calls"] = prompt.parallel_calls
    if prompt.response_format is not None and able.structured:
        schema = {"name": "reply", "schema": prompt.response_format}
        further["response_format"] = {"type": "json_schema", "json_schema": schema}
    return further


def _knows(ask: Any, model: str, provider: str) -> bool:
    try:
        return bool(ask(model, provider))
    except Exception:  # noqa: BLE001 - litellm raises a bare Exception for a model it does not know
        return False


# --- thinking ----------------------------------------------------------------------------
def _without_foreign(message: Message, able: Abilities) -> Message:
    """The message without what another provider signed, and without fields that a strict one refuses."""
    writer = message.get("model")
    own = able.provider not in _STRICT and (not writer or _family(str(writer)) == _family(able.model))
    dropped = {"model"} if own else {"model", *EXTRA_KEYS}
    if not own and message.get("tool_calls"):
        calls = [{k: v for k, v in call.items() if k not in EXTRA_KEYS} for call in message["tool_calls"]]
        message = {**message, "tool_calls": calls}
    return {k: v for k, v in message.items() if k not in dropped} if dropped & message.keys() else message


def _family(model: str) -> str:
    return model.partition("/")[0]


def has_thinking_gap(messages: Sequence[Message]) -> bool:
    """Return whether the last decision with calls lacks thinking: Anthropic then refuses a request that asks to think.

    Another model wrote it, or it is older than the option.
    """
    decisions = [m for m in messages if m.get("role") == "assistant" and m.get("tool_calls")]
    return bool(decisions) and not decisions[-1].get("thinking_blocks")


# --- the cache ----------------------------------------------------------------------------
def _marked(messages: list[Message], stable: int | None) -> list[Message]:
    """The messages with markers at the system message and at the end of what the next prompt begins with.

    The marker of the step before is within reach of the new one: a provider looks back twenty blocks from each.
    """
    ends = {0} if messages and messages[0].get("role") == "system" else set()
    if stable is not None and 0 < stable <= len(messages):
        ends.add(stable - 1)
    return [
        {**m, "cache_control": dict(_MARKER)} if n in ends and m.get("content") else m for n, m in enumerate(messages)
    ]


# --- images ------------------------------------------------------------------------------
def _with_images(messages: Iterable[Message], able: Abilities) -> list[Message]:
    """The messages with the latest images as parts where the model and the role take them, and the others in words."""
    listed = list(messages)
    left = MAX_IMAGES_PER_PROMPT if able.sees else 0
    chosen: set[int] = set()
    for message in reversed(listed):
        for part in reversed(message["content"] if isinstance(message.get("content"), list) else []):
            if left and is_image(part) and image_part(part) is not None:
                chosen.add(id(part))
                left -= 1
    made: list[Message] = []
    waiting: list[Message] = []
    for message in listed:
        if message.get("role") != "tool" and waiting:
            made.append(_pictures(waiting))
            waiting = []
        made.append(_one(message, chosen, waiting, able))
    return [*made, _pictures(waiting)] if waiting else made


def _one(message: Message, chosen: set[int], waiting: list[Message], able: Abilities) -> Message:
    content = message.get("content")
    if not isinstance(content, list) or not any(is_image(part) for part in content):
        return message
    words = [p for p in content if not is_image(p)]
    shown = [p for p in content if id(p) in chosen]
    hidden = [described(p) for p in content if is_image(p) and id(p) not in chosen]
    if message.get("role") == "tool" and able.provider != "anthropic":
        waiting += shown  # most providers take images from the user alone
        shown = []
    note = f"Not shown: {', '.join(hidden)}" if hidden and message.get("role") != "tool" else ""
    texts = [str(p.get("text", "")) for p in words] + ([note] if note else [])
    if not shown:
        return {**message, "content": "\n".join(t for t in texts if t)}
    return {**message, "content": [{"type": "text", "text": t} for t in texts if t] + shown}


def _pictures(parts: Sequence[Message]) -> Message:
    count = f"{len(parts)} images" if len(parts) > 1 else "image"
    return {"role": "user", "content": [{"type": "text", "text": f"The {count} of the results above:"}, *parts]}
