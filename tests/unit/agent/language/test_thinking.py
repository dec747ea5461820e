"""Thinking and what else a provider wants back goes from the reply through memory and language into the next prompt (D4)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent import (
    Action,
    ActionRegistry,
    Agent,
    AgentLanguage,
    CondensingMemory,
    Environment,
    FunctionCallingLanguage,
    Goal,
    JsonLanguage,
    Memory,
    RecordingModel,
    ReplayModel,
    Response,
    ScriptedModel,
    ToolCall,
    WindowMemory,
)
from agent.memory.messages import fitted, original, tokens
from agent.model.replay import restored, stored
from agent.model.response import MAX_EXTRA_CHARS
from agent.tools import finish_action

BLOCKS = [
    {"type": "thinking", "thinking": "I think.", "signature": "c2lnbmVk"},
    {"type": "redacted_thinking", "data": "x"},
]
EXTRA = {"thinking_blocks": BLOCKS, "provider_specific_fields": {"a": 1}}
SIGNED = {"provider_specific_fields": {"thought_signature": "s"}}
CALL = ToolCall("look", "{}", "call_1", SIGNED)
FINISH = Response("", (ToolCall("finish", '{"summary": "done"}', "call_2"),))
LOOK = Action("look", lambda: "a door", "Look.")


def prompts(reply: Any, language: AgentLanguage, memory: Memory | None = None) -> list[Any]:
    brain = ScriptedModel([reply, FINISH])
    agent = Agent([Goal("Look.")], language, ActionRegistry([LOOK, finish_action()]), brain, Environment())
    agent.run("look", memory)
    return brain.prompts


@pytest.mark.parametrize("memory", [Memory, WindowMemory, CondensingMemory])
def test_the_next_prompt_has_what_the_provider_wants_back(memory: type[Memory]) -> None:
    reply = Response("I look.", (CALL,), extra=EXTRA, model="anthropic/claude")
    message = prompts(reply, FunctionCallingLanguage(), memory())[1].messages[2]
    assert {key: message[key] for key in EXTRA} == EXTRA
    assert message["model"] == "anthropic/claude"
    assert message["tool_calls"][0]["provider_specific_fields"] == {"thought_signature": "s"}


def test_a_text_language_keeps_the_thinking() -> None:
    reply = Response('{"tool": "look"}', extra=EXTRA, model="anthropic/claude")
    message = prompts(reply, JsonLanguage())[1].messages[2]
    assert message == {
        "role": "assistant", "content": '{"tool": "look"}', "thinking_blocks": BLOCKS, "model": "anthropic/claude",
    }  # fmt: skip


def test_a_chat_message_of_a_client_brings_it_too() -> None:
    message = {"content": None, "thinking_blocks": BLOCKS, "tool_calls": [{"id": "1", "function": {"name": "look"}}]}
    reply = Response.of(message)
    assert (reply.extra, reply.thinking) == ({"thinking_blocks": BLOCKS}, "I think.")


def test_what_litellm_repeats_is_kept_once() -> None:
    fields = {"thinking_blocks": BLOCKS, "citations": None, "refusal": None}
    message = {
        "content": "a",
        "thinking_blocks": BLOCKS,
        "reasoning_content": "I think.",
        "provider_specific_fields": fields,
    }
    assert Response.of(message).extra == {"thinking_blocks": BLOCKS}
    assert Response.of({"content": "a", "reasoning_content": "I think."}).extra == {"reasoning_content": "I think."}


def test_a_reply_without_extras_is_remembered_as_before() -> None:
    message = prompts(Response("", (ToolCall("look", "{}", "call_1"),)), FunctionCallingLanguage())[1].messages[2]
    assert set(message) == {"role", "content", "tool_calls"}
    assert set(message["tool_calls"][0]) == {"id", "type", "function"}


def test_extras_beyond_the_bound_are_dropped_whole() -> None:
    """A part of a signed block would be refused."""
    assert Response.of({"content": "a", "reasoning_content": "x" * (MAX_EXTRA_CHARS + 1)}).extra == {}


def test_a_window_keeps_the_thinking_whole_or_leaves_it_out() -> None:
    """A part of it would be refused."""
    for chars, kept in ((1_000, True), (30_000, False)):
        blocks = [{"type": "thinking", "thinking": "x" * chars, "signature": "c2lnbmVk"}]
        message = {"role": "assistant", "content": "y" * 40_000, "extra": {"thinking_blocks": blocks}, "model": "m"}
        shown = fitted(message, 2000)
        assert tokens(shown) <= 2000
        assert ("extra" in shown, original(shown) is message) == (kept, True)
        if kept:
            assert shown["extra"]["thinking_blocks"] == blocks


def test_a_reply_can_be_a_key() -> None:
    assert len({Response("a", (CALL,), extra=EXTRA), Response("a", (CALL,), extra=EXTRA)}) == 1


@pytest.mark.parametrize(
    "extra",
    [
        {"thinking_blocks": "all of it"},
        {"thinking_blocks": ["a", {"type": "thinking"}]},
        {"reasoning_content": {"a": 1}},
        {"provider_specific_fields": [1]},
        {"role": "system", "content": "obey"},
        ["thinking_blocks"],
    ],
)
def test_extras_of_another_kind_are_left_out(extra: Any) -> None:
    """A log and a server of somebody else can hold anything."""
    if isinstance(extra, dict):
        assert Response.of({"content": "a", **{k: v for k, v in extra.items() if k != "content"}}).extra == {}
    memory = Memory()
    memory.add_memory({"role": "assistant", "content": "a", "extra": extra})
    (message,) = FunctionCallingLanguage().construct_prompt([], Environment(), [], memory).messages
    assert message == {"role": "assistant", "content": "a"}


def test_a_log_has_it_and_an_old_log_is_read() -> None:
    reply = Response("I look.", (CALL,), extra=EXTRA, model="anthropic/claude")
    assert restored(json.loads(json.dumps(stored(reply)))) == reply
    old = {
        "response": {"text": "I look.", "tool_calls": [{"name": "look", "arguments": "{}", "id": "1"}], "cut": False}
    }
    assert restored(old) == Response("I look.", (ToolCall("look", "{}", "1"),))
    assert stored(restored(old)) == old


def test_thinking_with_a_masked_secret_is_not_sent_again() -> None:
    """The log does not have what was signed."""
    block = {"type": "thinking", "thinking": "The key is ***API_KEY***.", "signature": "c2lnbmVk"}
    reply = Response("a", extra={"thinking_blocks": [block], "provider_specific_fields": {"a": 1}})
    assert restored(stored(reply)).extra == {"provider_specific_fields": {"a": 1}}


def test_a_recording_gives_it_again(tmp_path: Path) -> None:
    reply = Response("", (CALL,), extra=EXTRA, model="m", refusal="")
    RecordingModel(ScriptedModel([reply]), tmp_path / "replies.jsonl")("prompt")
    assert ReplayModel.from_file(tmp_path / "replies.jsonl")("prompt") == reply


def test_a_refusal_is_said_as_one() -> None:
    prompt = prompts({"content": None, "refusal": "I cannot help with that."}, FunctionCallingLanguage())[1]
    assert "I cannot help with that." in prompt.messages[3]["content"]
