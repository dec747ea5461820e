"""Hints over MCP name tools that the server offers, or say what the model can tell its user."""

from __future__ import annotations

import re

import pytest

from sandbox.envelope import Failure, Notice, Success
from sandbox.errors import ErrorCode
from sandbox.mcp.hints import for_tools, hint_for_tools
from sandbox.mcp.tools import DEFAULT_TOOLS
from sandbox.operations import OPERATIONS, RunResult
from sandbox.readers import Hint, attach
from tests.messages.files import TEXTS, read_page

# Operations that models have elsewhere, as hints name them; the other words of this kind are verbs and nouns, too.
AS_A_TOOL = re.compile(r"\b(?:with|see|and|or|,) processes\b(?! and)|\bprocesses shows\b|\bend_session\b|\bmake_dir\b|\bscreen\(")
SHOWN = {path.stem: read_page(path.stem).text for path in sorted(TEXTS.glob("*.txt"))}


def advice(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(("HINT", "NOTICE"))]


def test_no_situation_advises_a_tool_that_is_not_offered() -> None:
    lines = [line for text in SHOWN.values() for line in advice(text)]
    assert any(AS_A_TOOL.search(line) for line in lines), "elsewhere they do"
    named = {name for name in OPERATIONS if name not in DEFAULT_TOOLS}
    for line in lines:
        worded = hint_for_tools(line, DEFAULT_TOOLS)
        assert AS_A_TOOL.search(worded) is None, worded
        assert not re.search(rf"\b(?:{'|'.join(named)})\([a-z_]+=", worded), worded


def test_a_tool_that_is_offered_is_named() -> None:
    hint = "See with processes what runs."
    assert hint_for_tools(hint, (*DEFAULT_TOOLS, "processes")) == hint
    assert hint_for_tools(hint, DEFAULT_TOOLS) == "See with run and ps what runs."
    assert hint_for_tools(hint, ("read",)) == hint, "without run there is nothing else"


@pytest.mark.parametrize("tool", ["processes", "kill"])
def test_the_next_tool_is_one_that_is_offered(tool: str) -> None:
    failure = for_tools(Failure(ErrorCode.path_not_found, "No.", "Look.", next_tool=tool), DEFAULT_TOOLS)
    assert isinstance(failure, Failure)
    assert failure.next_tool == (tool if tool in DEFAULT_TOOLS else None)


@pytest.mark.parametrize(
    "hint",
    [
        Hint("Resume it: POST /v1/sandboxes/abc/resume.", "Call resume().", "Call resume()."),
        "List yours with GET /v1/sandboxes, or create one with POST /v1/sandboxes.",
        attach("work").model,
        "Start Docker, or name an engine that runs with DOCKER_HOST.",
    ],
)
def test_what_no_tool_does_is_for_the_user(hint: str) -> None:
    worded = hint_for_tools(hint, DEFAULT_TOOLS)
    assert worded == f"Tell the user: {hint}"
    assert hint_for_tools(worded, DEFAULT_TOOLS) == worded
    again = hint_for_tools(hint, DEFAULT_TOOLS, retryable=True)
    assert again.startswith("Do it again in a moment; if that does not help, tell the user: ")


def test_notices_too() -> None:
    result = RunResult(id="c1", exit_code=0)
    answer = for_tools(Success(result, notices=(Notice("memory_nearly_full", "Full.", "See with processes."),)), DEFAULT_TOOLS)
    assert [each.hint for each in answer.notices] == ["See with run and ps."]
    assert answer.result is result
