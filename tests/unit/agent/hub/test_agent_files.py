"""Agents in files: what they may say, what is wrong with one by its line, and that the others are loaded."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent.hub import AgentSpec, Problem
from agent.hub.agent_file import AgentFile, spec_of
from agent.hub.files import MAX_BYTES, MAX_FAULTS, scan
from agent.hub.frontmatter import AgentFileError, Section, Values, sections, split, values

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
        ("x: 1\nactions: [finish]\n", 4, "'x' is not known: there are"),
        ("actions: [raed, finish]\n", 4, "did you mean 'read'?"),
        ("actions: [read, finsh]\n", 4, "there is no action 'finsh': did you mean 'finish'?"),
        ("actions: [read, upload, finish]\n", 4, "no action 'upload'"),
        ("actions: [read]\n", 4, 'no action ends a run: add "finish"'),
        ("actions: [finish, finish]\n", 4, "twice"),
        ("actions: finish\n", 4, "list of names"),
        ("language: jsn\n", 4, "did you mean 'json'?"),
        ("memory: windw\n", 4, "did you mean 'window'?"),
        ("middleware: [nonsense]\n", 4, "no middleware"),
        ("kit_options: {delegate: {}}\n", 4, "no kit 'delegate'"),
        ("image:\n", 4, "image must be a text"),
        ("max_iterations: 0\n", 4, "max_iterations must be at least 1, not 0"),
        ("max_iterations: true\n", 4, "max_iterations must be a whole number, not True"),
        ("read_only: 1\n", 4, "true or false"),
        ("inputs: {task: strng}\n", 4, "inputs.task must be one of string"),
        ("inputs: {type: object, properties: {a: {type: strng}}}\n", 4, "inputs is not a JSON schema"),
        ("inputs: [task]\n", 4, "inputs must be a mapping"),
        ("inputs:\n  type: object\n  required: task\n", 6, "inputs.required must be a list of names, not 'task'"),
        ("inputs:\n  type: object\n  properties: []\n", 6, "inputs.properties must be a mapping"),
        ("kit_options: 5\n", 4, "kit_options must be a mapping, not 5"),
        ("memory: 5\n", 4, "memory must be a text, not 5"),
        ("memory_options: []\n", 4, "memory_options must be a mapping, not []"),
        ("memory_options: {memory: window}\n", 4, "memory_options.memory: there is no such option"),
        ("\nname: two\n", 5, "'name' appears twice"),
        ("inputs: {a: string,\n  a: string}\n", 5, "'a' appears twice"),
        ("inputs: &x {a: string}\noutputs: *x\n", 4, "aliases"),
        ("1: 2\n", 4, "'1' is not a text"),
        ("inputs: {a: 2020-01-01}\n", 4, "timestamp values are not allowed"),
        ("inputs: {a: {default: .nan}}\n", 4, "not a number in JSON"),
        ("inputs: !!python/object:os.system {}\n", 4, "values are not allowed"),
        ("inputs: {a: [\n", 4, "not valid YAML"),
        ("\tinputs: 1\n", 4, "not valid YAML"),
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
        ("---\nname: 1x\ndescription: One.\n---\nDo it.", 2, "name must consist of up to 64 letters"),
        ("---\n- a\n---\nDo it.", 2, "not a mapping"),
        ("---\n---\nDo it.", 2, "not a mapping"),
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


EVERYTHING_WRONG = """---
name: 1x
actons: [read]
actions: [raed, run, finsh]
max_iterations: 0
memory: windw
memory_options: {limit: 0}
language_options: {language: json}
kit_options: {editor: {windw: 3, overlap: -1}, nonsense: {}}
middleware: [nonsense, finish_when_plan_closed]
inputs: {task: string}
outputs: {type: object, properties: {a: {type: strng}}}
---
{{ inputs.tsk }}

## second
{{ tusk }}
"""


def test_every_fault_of_a_file_is_reported_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "one.md"
    path.write_text(EVERYTHING_WRONG)
    found = [(problem.where.removeprefix(str(path)), problem.what) for problem in scan(tmp_path) if isinstance(problem, Problem)]
    assert [(where, what.split(":")[0].split(" must")[0]) for where, what in found] == [
        ("", "the key 'description' is missing"),
        (":2", "name"),
        (":3", "the key 'actons' is not known"),
        (":4", "there is no action 'raed'"),
        (":4", "there is no action 'finsh'"),
        (":5", "max_iterations"),
        (":6", "there is no memory 'windw'"),
        (":8", "language_options.language"),
        (":9", "kit_options.editor.windw"),
        (":9", "there is no kit 'nonsense'"),
        (":10", "there is no middleware 'nonsense'"),
        (":12", "outputs is not a JSON schema"),
        (":14", "there is no input 'tsk'; there are inputs.task"),
        (":17", "'tusk' is undefined; there are inputs.task"),
    ]


@pytest.mark.parametrize(
    ("more", "body", "lines"),
    [
        ("1: 2\ninputs: {a: .nan}\ninputs: {}\n", "Do it.", [4, 5, 6]),
        ("language: x\n", "## a\n\n## \n", [4, 6, 8]),
        ("read_only: true\nactions: [write, read, move]\n", "Do it.", [5, 5, 5]),  # and none of them ends a run
        ("language: a.b:C\nmemory: d:E\n", "Do it.", [4, 5]),
    ],
)
def test_every_fault_of_each_half_is_reported(tmp_path: Path, more: str, body: str, lines: list[int]) -> None:
    path = written(tmp_path, more, body)
    found = list(scan(tmp_path))
    assert [problem.where for problem in found if isinstance(problem, Problem)] == [f"{path}:{line}" for line in lines], found


def test_many_faults_are_counted(tmp_path: Path) -> None:
    path = written(tmp_path, "".join(f"key_{number}: 1\n" for number in range(1000)))
    *_, last = found = list(scan(tmp_path))
    assert len(found) == MAX_FAULTS + 1
    assert last == Problem(str(path), f"there are {1000 - MAX_FAULTS} more faults")


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
    assert "not UTF-8" in problems["a.md"]
    assert "larger than" in problems["b.md"]
    assert "not a file" in problems["c.md"]
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


KEYS = st.sampled_from([*AgentFile.model_fields, "memory_options", "language_options", "over", "servers", "mcp", "window"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.floats() | st.text(max_size=3) | KEYS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.exhaustive
@settings(deadline=None)
@given(st.dictionaries(KEYS, ANYTHING, max_size=6))
@example({"read_only": True})
def test_whatever_the_keys_hold_a_file_is_an_agent_or_a_fault_with_its_line(keys: dict[str, Any]) -> None:
    made = spec_or_fault(keys)
    if isinstance(made, AgentFileError):
        for fault in (made, *made.others):
            assert fault.line is not None
            assert 0 < len(fault.what) <= 700


def spec_or_fault(keys: dict[str, Any]) -> AgentSpec | AgentFileError:
    every = {"name": "one", "description": "One.", **keys}
    found = Values(every, {(key,): line for line, key in enumerate(every, 2)})
    try:
        return spec_of(found, [Section("task", "Do it.", 9)], "x.md")
    except AgentFileError as fault:
        return fault


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


def test_a_file_that_is_read_again_is_read_as_it_was() -> None:
    """Short files are parsed once: what one reader changes is not changed for the next."""
    values("a: [1]\n").values["a"].append(2)
    assert values("a: [1]\n").values == {"a": [1]}
    assert values("a: [1]\n", 5).line("a") == 5
