"""Images of results and of the user go to models as parts of messages; they are bounded, and described where they are not shown."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import pytest

from agent import (
    Action,
    ActionRegistry,
    Agent,
    AgentLanguage,
    Environment,
    FunctionCallingLanguage,
    Goal,
    JsonLanguage,
    Memory,
    Response,
    ScriptedModel,
    ToolCall,
    WindowMemory,
)
from agent.core.envelopes import text_of
from agent.core.images import IMAGE_TOKENS, MAX_IMAGE_BYTES, MAX_IMAGES_PER_RESULT, described, image_block, image_part
from agent.core.result_budget import bounded, shown_size
from agent.mcp.results import shown_result
from agent.memory.messages import fitted, tokens
from agent.tools import finish_action
from sandbox.envelope import Success


def png(width: int = 3, height: int = 2, noise: bytes = b"") -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows = b"".join(b"\0" + b"\xff\0\0" * width for _ in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"tEXt", noise)
        + chunk(b"IEND", b"")
    )


BLOCK = image_block(png())
URL = f"data:image/png;base64,{base64.b64encode(png()).decode()}"
PART = {"type": "image_url", "image_url": {"url": URL}}
LOOK = Action("look", lambda: {"page": "a shop", "shot": BLOCK}, "Look.")
FINISH = Response("", (ToolCall("finish", '{"summary": "done"}', "call_2"),))


def last_answer(language: AgentLanguage, reply: Any, action: Action = LOOK) -> Any:
    brain = ScriptedModel([reply, FINISH])
    Agent([Goal("Look.")], language, ActionRegistry([action, finish_action()]), brain, Environment()).run("look")
    return brain.prompts[1].messages[3]["content"]


@pytest.mark.parametrize(
    ("language", "reply"),
    [(FunctionCallingLanguage(), Response("", (ToolCall("look", "{}", "1"),))), (JsonLanguage(), '{"tool": "look"}')],
)
def test_the_image_of_a_result_is_a_part_and_its_data_is_in_no_text(language: AgentLanguage, reply: Any) -> None:
    text, image = last_answer(language, reply)
    assert image == PART
    assert "a shop" in text["text"]
    assert "[image: image/png, 3×2 pixels" in text["text"]
    assert BLOCK["data"] not in text["text"]


def test_the_task_can_have_one() -> None:
    memory = Memory()
    memory.add_memory({"role": "user", "content": [{"type": "text", "text": "What is this?"}, PART]})
    (message,) = FunctionCallingLanguage().construct_prompt([], Environment(), [], memory).messages
    assert message["content"] == [{"type": "text", "text": "What is this?"}, PART]


@pytest.mark.parametrize(
    "bad",
    [
        {"type": "image", "data": "no base64!"},
        {"type": "image", "data": base64.b64encode(b"<svg/>").decode(), "mimeType": "image/png"},
        {"type": "image", "data": base64.b64encode(b"RIFF0000WAVE").decode()},
        {"type": "image_url", "image_url": {"url": "http://127.0.0.1/secret.png"}},
        {"type": "image_url", "image_url": None},
        {"type": "image", "data": "A" * (MAX_IMAGE_BYTES * 2)},
    ],
    ids=["not base64", "svg", "audio", "address", "nothing", "large"],
)
def test_what_is_not_an_image_is_described_and_never_sent(bad: dict[str, Any]) -> None:
    assert image_part(bad) is None
    assert described(bad).startswith("[image")
    answer = last_answer(
        FunctionCallingLanguage(), Response("", (ToolCall("look", "{}", "1"),)), Action("look", lambda: [bad], "Look.")
    )
    assert isinstance(answer, str)
    assert "[image" in answer


def test_the_images_of_an_mcp_server_are_kept() -> None:
    other = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
    shown = shown_result({"content": [{"type": "text", "text": "a shop"}, BLOCK, other]})
    assert shown["images"] == [BLOCK]
    assert shown["text"] == f"a shop\n{described(BLOCK)}\n[image, image/png, 3 bytes, not shown]"
    assert "images" not in shown_result({"content": [other]})


def test_of_very_many_the_first_ones_are_kept() -> None:
    envelope = bounded(Success([BLOCK] * 50).to_dict())
    assert [isinstance(each, dict) for each in envelope["result"]] == [True] * MAX_IMAGES_PER_RESULT + [False] * (
        50 - MAX_IMAGES_PER_RESULT
    )


def test_an_image_is_never_cut() -> None:
    """It is longer than the bound on one text, and half of it is none."""
    block = image_block(png(noise=bytes(range(256)) * 2000))
    assert len(block["data"]) > 400_000
    envelope = bounded(Success({"shot": block, "note": "x" * 300_000}).to_dict())
    assert envelope["result"]["shot"] == block
    assert len(envelope["result"]["note"]) < 101_000


def test_an_image_counts_as_a_provider_counts_it() -> None:
    block = image_block(png(noise=b"n" * 1_000_000))
    envelope = bounded(Success({"shot": block}).to_dict())
    assert IMAGE_TOKENS <= shown_size(envelope) // 4 <= IMAGE_TOKENS + 100
    message = {"role": "user", "content": [{"type": "text", "text": "Look."}, image_part(block)]}
    assert IMAGE_TOKENS <= tokens(message) <= IMAGE_TOKENS + 50
    assert len(text_of(envelope)) < 200


def test_a_message_that_is_shown_shorter_has_whole_images() -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "x" * 50_000}, PART]}
    assert fitted(message, 3000)["content"][1] == PART
    memory = WindowMemory(limit_tokens=4000)
    memory.add_memory(message)
    assert memory.get_memories()[0]["content"][1] == PART
