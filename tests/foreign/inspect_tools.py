"""An evaluation of inspect_ai with its tools, in a sandbox that it finds by its name; its own mock model calls each tool once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiktoken
from inspect_ai import Task
from inspect_ai import eval as evaluate
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, get_model
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import bash, bash_session, grep, list_files, python, read_file, text_editor

CALLS: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("bash", {"command": "echo $(whoami) in $(pwd); cat data/given.txt"}, "agent in /workspace\ngiven\n"),
    ("python", {"code": "print(6 * 7)"}, "42\n"),
    ("bash_session", {"action": "type_submit", "input": "cd /tmp && A=5 && echo $A-$(pwd)"}, "5-/tmp"),
    ("text_editor", {"command": "create", "path": "/workspace/a.txt", "file_text": "one\ntwo\n"}, "created successfully"),
    ("text_editor", {"command": "view", "path": "/workspace/a.txt"}, "2\ttwo"),
    ("list_files", {"path": "/workspace"}, "/workspace/data/given.txt"),
    ("grep", {"pattern": "two", "path": "/workspace"}, "/workspace/a.txt:2:two"),
    ("read_file", {"file_path": "/workspace/a.txt"}, "2\ttwo"),
)


class _Words:
    """Counts tokens of the mock model: tiktoken would load a table from the network."""

    def encode(self, text: str, **_: Any) -> list[str]:
        return text.split()

    encode_ordinary = encode


def test_every_tool_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("get_encoding", "encoding_for_model"):
        monkeypatch.setattr(tiktoken, name, lambda *_: _Words())
    outputs = [ModelOutput.for_tool_call("mockllm/model", name, args) for name, args, _ in CALLS]
    model = get_model("mockllm/model", custom_outputs=[*outputs, ModelOutput.from_content("mockllm/model", "done")])
    tools = [bash(timeout=60), python(timeout=60), bash_session(), text_editor(), list_files(), grep(), read_file()]
    sample = Sample(input="Try the tools.", target="done", files={"data/given.txt": "given\n"})
    task = Task(dataset=[sample], solver=[use_tools(tools), generate()], sandbox="gamebox", message_limit=60)
    (log,) = evaluate(task, model=model, display="none", log_dir=str(tmp_path))
    assert log.status == "success", log.error
    assert log.samples is not None
    said = [message for message in log.samples[0].messages if message.role == "tool"]
    assert [message.error for message in said] == [None] * len(CALLS)
    for message, (name, _, expected) in zip(said, CALLS, strict=True):
        assert expected in message.text, (name, message.text)
