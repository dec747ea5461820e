"""The GenAI semantic conventions of OpenTelemetry as far as we use them: names, and messages in their form.

They are still in development, so every name is in this file. https://github.com/open-telemetry/semantic-conventions-genai
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agent.core.budget import Usage
from agent.core.prompt import Prompt
from agent.model.response import Response
from sandbox.envelope import jsonable
from sandbox.text.excerpt import without_middle

INVOKE_AGENT, CHAT, EXECUTE_TOOL = "invoke_agent", "chat", "execute_tool"

OPERATION_NAME = "gen_ai.operation.name"
PROVIDER_NAME = "gen_ai.provider.name"
CONVERSATION_ID = "gen_ai.conversation.id"
AGENT_NAME = "gen_ai.agent.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
TOOL_NAME = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
TOOL_CALL_ID = "gen_ai.tool.call.id"
TOOL_DESCRIPTION = "gen_ai.tool.description"
ERROR_TYPE = "error.type"
EXIT_CODE = "process.exit.code"

# Content, only on opt-in.
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
SYSTEM_INSTRUCTIONS = "gen_ai.system_instructions"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_RESULT = "gen_ai.tool.call.result"

# Not in the conventions.
RUN_ID = "gamebox.run.id"
RUN_STATUS = "gamebox.run.status"
RUN_STEPS = "gamebox.run.steps"
FAILED_CALLS = "gamebox.usage.failed_calls"
COST_USD = "gamebox.usage.cost_usd"

CAPTURE_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_CAPTURING = frozenset({"true", "1", "span_only", "span_and_event"})

# The provider of a model that is not called through litellm, as in a script.
NO_PROVIDER = "gamebox"
# By litellm's name of the provider; every other provider has the same name here.
_PROVIDERS = {
    "azure": "azure.ai.openai",
    "azure_ai": "azure.ai.inference",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "moonshot": "moonshot_ai",
    "vertex_ai": "gcp.vertex_ai",
    "watsonx": "ibm.watsonx.ai",
    "xai": "x_ai",
}
_WITHOUT_PREFIX = (
    (re.compile(r"(chatgpt|gpt|o\d)\b"), "openai"),
    (re.compile(r"claude\b"), "anthropic"),
    (re.compile(r"gemini\b"), "gcp.vertex_ai"),
)
# Options of a model that the conventions name, by the type of their values.
_OPTIONS: Mapping[str, type] = {"temperature": float, "top_p": float, "max_tokens": int, "seed": int}

MessagePart = dict[str, Any]
Masked = Callable[[Any], Any]


def is_capturing(environ: Mapping[str, str]) -> bool:
    """Return whether the environment variable of the conventions asks for content in spans."""
    return environ.get(CAPTURE_VARIABLE, "").strip().lower() in _CAPTURING


def provider_and_model(model: str) -> tuple[str, str]:
    """Return the provider, and the model's name at the provider, of a name in litellm's form; ("gamebox", "") for ""."""
    prefix, slash, name = model.partition("/")
    if slash and prefix and name:
        return _PROVIDERS.get(prefix, prefix), name
    known = (provider for pattern, provider in _WITHOUT_PREFIX if pattern.match(model))
    return next(known, NO_PROVIDER), model


def request_options(options: object) -> dict[str, Any]:
    """Return the attributes for options of a model, those that the conventions name."""
    found: dict[str, Any] = {}
    for name, kind in _OPTIONS.items():
        value = options.get(name) if isinstance(options, Mapping) else None
        if isinstance(value, int | float) and not isinstance(value, bool):
            found[f"gen_ai.request.{name}"] = kind(value)
    return found


def usage_attributes(used: Usage) -> dict[str, Any]:
    """Return the attributes for what calls of a model used; {} if there were none. Cached tokens are part of the input, and
    reasoning tokens part of the output.
    """
    if not used.calls:
        return {}
    counts = {
        "gen_ai.usage.cache_read.input_tokens": used.cached_tokens,
        "gen_ai.usage.cache_creation.input_tokens": used.cache_write_tokens,
        "gen_ai.usage.reasoning.output_tokens": used.reasoning_tokens,
        FAILED_CALLS: used.failed_calls,
    }
    return {
        "gen_ai.usage.input_tokens": used.input_tokens,
        "gen_ai.usage.output_tokens": used.output_tokens,
        **{name: count for name, count in counts.items() if count},
        **({} if used.unpriced_calls else {COST_USD: used.cost_usd}),
    }


def finish_reason(reply: Response) -> str:
    """Return why the model stopped: stop, length, content_filter or tool_call."""
    if reply.cut:
        return "length"
    if reply.refusal:
        return "content_filter"
    return "tool_call" if reply.tool_calls else "stop"


# --- content ------------------------------------------------------------------
def prompt_attributes(prompt: Any, masked: Masked, most: int) -> dict[str, str]:
    """Return the attributes for a prompt: its system messages, and its newest messages, each at most ``most`` characters."""
    messages: Sequence[Any] = (
        prompt.messages if isinstance(prompt, Prompt) else [{"role": "user", "content": str(prompt)}]
    )
    system = [part for message in messages if message.get("role") == "system" for part in _text_parts(message)]
    rest = [message for message in messages if message.get("role") != "system"]
    found = {INPUT_MESSAGES: _newest(rest, masked, most)}
    return {**found, SYSTEM_INSTRUCTIONS: _as_json(masked(system), most)} if system else found


def reply_attribute(reply: Response, masked: Masked, most: int) -> str:
    """Return the attribute for a reply, at most ``most`` characters."""
    parts: list[MessagePart] = [{"type": "reasoning", "content": reply.thinking}] if reply.thinking else []
    parts += [{"type": "text", "content": text} for text in (reply.text, reply.refusal) if text]
    parts += [_call_part(call.id, call.name, call.arguments) for call in reply.tool_calls]
    message = {"role": "assistant", "parts": parts, "finish_reason": finish_reason(reply)}
    return _as_json([masked(message)], most)


def data_attribute(value: Any, masked: Masked, most: int) -> str:
    """Return the attribute for arguments or a result, at most ``most`` characters."""
    return _as_json(masked(jsonable(value)), most)


def text_message(role: str, value: Any, masked: Masked, most: int) -> str:
    """Return the attribute for one message with a text, or a value as JSON."""
    text = value if isinstance(value, str) else json.dumps(jsonable(value), ensure_ascii=False)
    message = {"role": role, "parts": [{"type": "text", "content": text}]}
    return _as_json([masked({**message, "finish_reason": "stop"} if role == "assistant" else message)], most)


def _newest(messages: Sequence[Any], masked: Masked, most: int) -> str:
    """The newest messages that fit, as JSON. Only those are masked: a long conversation costs no more than a short one."""
    chosen: list[Any] = []
    room = most - 200  # for the sentence below
    for message in reversed(messages):
        each = _bounded(masked(_message(message)), most // 4)
        room -= len(json.dumps(each, ensure_ascii=False)) + 2
        if room < 0 and chosen:
            break
        chosen.append(each)
    left_out = len(messages) - len(chosen)
    if left_out:
        text = f"[{left_out} earlier messages are left out here]"
        chosen.append({"role": "user", "parts": [{"type": "text", "content": text}]})
    return _as_json(chosen[::-1], most)


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    role = str(message.get("role", "user"))
    if role == "tool" and message.get("tool_call_id"):
        response = "".join(str(part["content"]) for part in _text_parts(message))
        parts = [{"type": "tool_call_response", "id": str(message["tool_call_id"]), "response": response}]
        return {"role": role, "parts": parts}
    calls = [each for each in message.get("tool_calls") or () if isinstance(each, Mapping)]
    return {"role": role, "parts": [*_text_parts(message), *map(_asked_call, calls)]}


def _asked_call(call: Mapping[str, Any]) -> MessagePart:
    function = call.get("function")
    source = function if isinstance(function, Mapping) else call
    return _call_part(str(call.get("id", "")), str(source.get("name", "")), source.get("arguments"))


def _call_part(ident: str, name: str, arguments: Any) -> MessagePart:
    part: MessagePart = {"type": "tool_call", "name": name, "arguments": _parsed(arguments)}
    return {**part, "id": ident} if ident else part


def _parsed(arguments: Any) -> Any:
    """Arguments as the object that they are; malformed ones as the text that the model wrote."""
    if not isinstance(arguments, str):
        return jsonable(arguments)
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def _text_parts(message: Mapping[str, Any]) -> list[MessagePart]:
    content = message.get("content")
    if isinstance(content, list | tuple):
        return [_part(part) for part in content]
    if content is None or content == "":
        return []
    text = content if isinstance(content, str) else json.dumps(jsonable(content), ensure_ascii=False)
    return [{"type": "text", "content": text}]


def _part(part: Any) -> MessagePart:
    if isinstance(part, str):
        return {"type": "text", "content": part}
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return {"type": "text", "content": part["text"]}
    kind = str(part.get("type", "other")) if isinstance(part, Mapping) else "other"
    return {"type": kind, "content": "[left out]"}  # an image would be larger than the rest of the trace


def _bounded(value: Any, most: int) -> Any:
    """The value with each text in it cut to ``most`` characters."""
    if isinstance(value, str):
        return without_middle(value, most)
    if isinstance(value, Mapping):
        return {name: _bounded(each, most) for name, each in value.items()}
    return [_bounded(each, most) for each in value] if isinstance(value, list | tuple) else value


def _as_json(value: Any, most: int) -> str:
    """The value as JSON: with its texts cut if it is too long, and if that is not enough, cut in its middle."""
    text = json.dumps(value, ensure_ascii=False)
    if len(text) > most:
        text = json.dumps(_bounded(value, most // 4), ensure_ascii=False)
    return clean(without_middle(text, most - 100) if len(text) > most else text)


def clean(text: str) -> str:
    """Return the text with ? for lone surrogates: an exporter drops all spans that it was to send with one."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
