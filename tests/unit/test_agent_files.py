"""Agents in files: what they may say, what is wrong with one by its line, and that the others are loaded."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.frontmatter import AgentFileError, sections, split, values
from agent.hub import AgentSpec, Problem
from agent.hub.files import MAX_BYTES, scan

HEAD = "---\nname: one\ndescription: One.\n{more}---\n{body}"


def written(folder: Path, more: str = "", body: str = "Do it.\n", name: str = "one.md") -> Path:
    path = folder / name
    path.write_text(HEAD.format(more=more, body=body))
    return path


def only(folder: Path) -> AgentSpec | Problem:
    [found] = scan(folder)
    return found


def test_a_file_becomes_a_spec(tmp_path: Path) -> None:
    written(
        tmp_path,
        "inputs:\n  task: string\n  files: list\n  deep: {type: integer, minimum: 1}\n"
        "outputs: {answer: number}\nactions: [read, run, finish]\nlanguage: json\nmemory_options: {limit: 9}\n"
        "max_iterations: 7\nimage: gamebox/base\nread_only: true\nneeds_repo: true\n",
        "First {{ inputs.task }}.\n\n## second goal ##\n```sh\n## no heading\n```\nend\n",
    )
    spec = only(tmp_path)
    assert isinstance(spec, AgentSpec)
    assert [(g.priority, g.name) for g in spec.goals] == [(1, "task"), (2, "second goal")]
    assert spec.goals[1].description == "```sh\n## no heading\n```\nend"
    assert spec.inputs["properties"]["files"] == {"type": "array"}
    assert spec.inputs["required"] == ["task", "files", "deep"]
    assert spec.outputs["additionalProperties"] is False
    assert (spec.actions, spec.language, spec.memory_options) == (("read", "run", "finish"), "json", {"limit": 9})
    assert (spec.max_iterations, spec.image, spec.read_only, spec.needs_repo) == (7, "gamebox/base", True, True)
    assert spec.source == str(tmp_path / "one.md")


def test_without_actions_it_has_the_standard_ones(tmp_path: Path) -> None:
    written(tmp_path)
    spec = only(tmp_path)
    assert isinstance(spec, AgentSpec)
    assert {"read", "run", "finish", "think"} <= set(spec.actions)
    assert not {"upload", "download", "delegate"} & set(spec.actions)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("more", "line", "said"),
    [
        ("actons: [read]\n", 4, "did you mean 'actions'?"),
        ("x: 1\nactions: [finish]\n", 4, "'x' is not known: known are"),
        ("actions: [raed, finish]\n", 4, "did you mean 'read'?"),
        ("actions: [read, upload, finish]\n", 4, "no action 'upload'"),
        ("actions: [read]\n", 4, 'no action ends a run: add "finish"'),
        ("actions: [finish, finish]\n", 4, "twice"),
        ("actions: finish\n", 4, "list of names"),
        ("language: jsn\n", 4, "did you mean 'json'?"),
        ("memory: windw\n", 4, "did you mean 'window'?"),
        ("middleware: [nonsense]\n", 4, "no middleware"),
        ("kit_options: {delegate: {}}\n", 4, "no kit 'delegate'"),
        ("image:\n", 4, "image is a text"),
        ("max_iterations: 0\n", 4, "whole number from 1"),
        ("max_iterations: true\n", 4, "whole number from 1"),
        ("read_only: 1\n", 4, "true or false"),
        ("inputs: {task: strng}\n", 4, "inputs.task is one of string"),
        ("inputs: {type: object, properties: {a: {type: strng}}}\n", 4, "no JSON schema"),
        ("inputs: [task]\n", 4, "inputs is a mapping"),
        ("\nname: two\n", 5, "'name' stands there twice"),
        ("inputs: {a: string,\n  a: string}\n", 5, "'a' stands there twice"),
        ("inputs: &x {a: string}\noutputs: *x\n", 4, "aliases"),
        ("1: 2\n", 4, "'1' is no text"),
        ("inputs: {a: 2020-01-01}\n", 4, "timestamp values are not allowed"),
        ("inputs: {a: {default: .nan}}\n", 4, "no number that JSON has"),
        ("inputs: !!python/object:os.system {}\n", 4, "values are not allowed"),
        ("inputs: {a: [\n", 4, "no YAML"),
        ("\tinputs: 1\n", 4, "no YAML"),
        ("inputs: " + "[" * 40 + "]" * 40 + "\n", 4, "deeper than"),
        ("inputs: " + "[" * 3000 + "]" * 3000 + "\n", None, "too deep"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, more: str, line: int | None, said: str) -> None:
    path = written(tmp_path, more)
    found = only(tmp_path)
    assert isinstance(found, Problem), found
    assert said in found.what
    if line is not None:
        assert found.where == f"{path}:{line}"


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("Do it.", 1, "does not begin with a line of three dashes"),
        ("", 1, "does not begin"),
        ("---\nname: one\n", 1, "not closed"),
        ("---\nname: one\n---\nDo it.", None, "'description' is missing"),
        ("---\nname: 1x\ndescription: One.\n---\nDo it.", 2, "name is a letter"),
        ("---\n- a\n---\nDo it.", 2, "no mapping"),
        ("---\n---\nDo it.", 2, "no mapping"),
        (HEAD.format(more="", body=""), 5, "there is no text"),
        (HEAD.format(more="", body="a\n## b\n\n## c\nd"), 6, "no text below the heading 'b'"),
        (HEAD.format(more="", body="a\n## \nd"), 6, "no name"),
        (HEAD.format(more="inputs: {task: string}\n", body="a\n\n## b\n\nx\n{{ inputs.tsk }}"), 11, "no input 'tsk'"),
    ],
)
def test_what_is_wrong_with_the_text_is_told_with_its_line(tmp_path: Path, text: str, line: int | None, said: str) -> None:
    (tmp_path / "one.md").write_text(text)
    found = only(tmp_path)
    assert isinstance(found, Problem), found
    assert said in found.what
    assert found.where == str(tmp_path / "one.md") + ("" if line is None else f":{line}")


def test_bytes_that_are_no_text_and_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_bytes(b"---\nname: a\n\xff\n---\nx")
    (tmp_path / "b.md").write_bytes(b"---\n" + b"x" * MAX_BYTES)
    os.mkfifo(tmp_path / "c.md")  # reading it would wait for ever
    (tmp_path / "d.md").symlink_to(tmp_path / "nowhere")
    written(tmp_path, name="e.md")
    written(tmp_path, name="_left_out.md")
    written(tmp_path, name="README.md")
    found = list(scan(tmp_path))
    problems = {Path(p.where.split(":")[0]).name: p.what for p in found if isinstance(p, Problem)}
    assert "no UTF-8" in problems["a.md"]
    assert "larger than" in problems["b.md"]
    assert "no file" in problems["c.md"]
    assert "missing" in problems["d.md"]
    assert [spec.name for spec in found if isinstance(spec, AgentSpec)] == ["one"]
    [missing] = scan(tmp_path / "none")
    assert isinstance(missing, Problem)
    assert "cannot be read" in missing.what


def test_a_file_of_another_system_is_read(tmp_path: Path) -> None:
    (tmp_path / "one.md").write_bytes(b"\xef\xbb\xbf" + HEAD.format(more="", body="Do it.").replace("\n", "\r\n").encode())
    assert isinstance(only(tmp_path), AgentSpec)


OLD = """name: MathAgent
description: Solves.
container: python:3.12
generates: Action
examples:
- inputs: {task: 1+1}
inputs:
  task: string
outputs:
  answer: string
"""


def test_a_folder_of_the_old_form(tmp_path: Path) -> None:
    (tmp_path / "math").mkdir()
    (tmp_path / "math/agent.yaml").write_text(OLD)
    (tmp_path / "math/prompt.md").write_text("Solve {{ state.inputs.task }}\n")
    spec = only(tmp_path)
    assert isinstance(spec, AgentSpec)
    assert (spec.name, spec.image, list(spec.outputs["properties"])) == ("MathAgent", "python:3.12", ["answer"])


@pytest.mark.parametrize(
    ("declaration", "prompt", "where", "said"),
    [
        (None, "x", "agent.yaml", "missing"),
        (OLD, None, "prompt.md", "missing"),
        (OLD + "actons: []\n", "x", "agent.yaml:11", "did you mean 'actions'"),
        (OLD, "x\n{{ instructions.actions.run }}", "prompt.md:2", "'instructions' is undefined"),
        (OLD, "x\n{{ state.inputs.codebase_summary }}", "prompt.md:2", "no input 'codebase_summary'"),
        (OLD, "\n", "prompt.md:1", "no text"),
    ],
)
def test_what_is_wrong_in_a_folder(
    tmp_path: Path, declaration: str | None, prompt: str | None, where: str, said: str
) -> None:
    (tmp_path / "math").mkdir()
    for name, text in (("agent.yaml", declaration), ("prompt.md", prompt)):
        if text is not None:
            (tmp_path / "math" / name).write_text(text)
    found = only(tmp_path)
    assert isinstance(found, Problem), found
    assert (found.where, said in found.what) == (str(tmp_path / "math" / where), True), found.what


def test_files_are_taken_in_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        written(tmp_path, name=f"{name}.md")
    assert [Path(s.source).name for s in scan(tmp_path) if isinstance(s, AgentSpec)] == ["a.md", "b.md", "c.md"]


@given(st.text(max_size=200), st.text(max_size=100))
def test_nothing_else_comes_of_any_file(head: str, body: str) -> None:
    calls: list[Callable[[], Any]] = [lambda: values(head), lambda: sections(body), lambda: split(f"---\n{head}\n---\n{body}")]
    for call in calls:
        with contextlib.suppress(AgentFileError):
            call()


@given(st.lists(st.sampled_from(["text", "## a", "## b", "```", "~~~~", "    ## c", "# d", ""]), max_size=12))
def test_no_line_of_a_body_is_lost(lines: list[str]) -> None:
    try:
        found = sections("\n".join(lines))
    except AgentFileError:
        return
    kept = [line for section in found for line in section.text.split("\n") if line]
    assert len(kept) + sum(s.name != "task" for s in found) == len([line for line in lines if line])
    for section in found:
        assert lines[section.line - 1] == section.text.split("\n")[0]
