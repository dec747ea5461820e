"""Options of parts in a file: what no part would take is told when the file is read, with its line, and the rest is loaded."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.hub import AgentSpec, Problem, Setting, catalogue, default, finding, part_options
from agent.hub.checking import misfit
from agent.hub.files import scan
from agent.stuck import Thresholds
from agent.tools.asking import AskUserKit
from agent.tools.delegate import DelegateKit
from sandbox.errors import SandboxError
from sandbox.testing import FakeEnvironment

HEAD = "---\nname: one\ndescription: One.\n{more}---\nDo it.\n"
EDITOR = "actions: [editor, finish]\nkit_options:\n  editor:\n"
MCP = "actions: [mcp, finish]\nkit_options:\n  mcp:\n    servers:\n      notes:\n        "


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("more", "line", "said"),
    [
        ("memory_options: {limit: 0}\n", 4, "memory_options.limit: 0 is less than the minimum of 1"),
        ("memory_options:\n  keep_first: 1\n  limt: 9\n", 6, "did you mean 'limit'?"),
        ("memory_options:\n  limit: 9.0\n", 5, "9.0 is not of type 'integer'"),
        ("memory_options:\n  limit: true\n", 5, "True is not of type 'integer'"),
        ("memory_options:\n  limit: 3\n  step: 4\n", 4, "step is at most limit (3), not 4"),
        ("memory_options: {over: {memory: window}}\n", 4, "the memory 'window' stands over no other"),
        ("memory: condensing\nmemory_options:\n  threshold_tokens: 499\n", 6, "499 is less than the minimum of 500"),
        ("memory: condensing\nmemory_options:\n  over:\n    memory: recal\n", 7, "did you mean 'recall'?"),
        ("memory: condensing\nmemory_options:\n  over:\n    memory: window\n    limit: 0\n", 8, "minimum of 1"),
        ("memory: condensing\nmemory_options:\n  over: window\n", 6, "is written as {memory: NAME, ...}"),
        ("memory: recall\nmemory_options:\n  embed: yes\n", 6, "there is no such option: there are path, run"),
        ("language_options: {tags: {a: run}}\n", 4, "the language 'function_calling' takes no options, not 'tags'"),
        ("language: tags\nlanguage_options:\n  tags:\n    '1': run\n", 6, "no name of a tag"),
        ("stuck:\n  same_answer: 1\n", 5, "stuck.same_answer: must be 0 (off) or at least 2, not 1"),
        ("stuck:\n  patience: 0\n", 5, "0 is less than the minimum of 1"),
        ("stuck:\n  same_anser: 3\n", 5, "did you mean 'same_answer'?"),
        ("stuck:\n  talking: think\n", 5, "'think' is not of type 'array'"),
        (EDITOR + "    windw: 9\n", 7, "did you mean 'window'?"),
        (EDITOR + "    window: 2\n", 6, "a window of 2 lines cannot overlap by 2"),
        ("actions: [plan, finish]\nkit_options: {plan: {depth: 3}}\n", 5, "the kit 'plan' takes no options, not 'depth'"),
        ("actions: [delegate, finish]\nkit_options:\n  delegate:\n    max_depth: 0\n", 7, "minimum of 1"),
        ("actions: [delegate, finish]\nkit_options:\n  delegate:\n    agents:\n    - x\n    - 7\n", 9, "not of type 'string'"),
        ("actions: [ask_user, finish]\nkit_options:\n  ask_user:\n    absent: wait\n", 7, "is not one of"),
        ("actions: [mcp, finish]\n", 4, "'servers' is a required property"),
        (MCP + "commnd: x\n", 9, "did you mean 'command'?"),
        (MCP + "timeout_seconds: 5\n", 8, "needs either command or url"),
        (MCP + "command: x\n        timeout_seconds: 0\n", 10, "less than or equal to the minimum of 0"),
        (MCP + "url: ftp://x\n", 9, "must be an address"),
        ("actions: [mcp, finish]\nkit_options: {mcp: {servers: {Notes: {command: x}}}}\n", 5, "no name of a server"),
        ("actions: [late, finish]\n", 4, "cannot be named in a file"),
        ("actions:\n- mini\n- run\n", 6, "'run' and 'mini' both bring an action 'run'"),
        ("actions:\n- finish\n- write\nread_only: true\n", 6, "the agent is read_only, and 'write' writes"),
        ("actions: [finish]\nmiddleware: [finish_when_plan_closed]\n", 5, "needs 'plan' among the actions"),
        ("middleware:\n- retry_format\n- nonsense\n", 6, "no middleware 'nonsense'"),
    ],
)  # fmt: skip
def test_what_no_part_takes_is_told_with_its_line_and_the_rest_is_loaded(tmp_path: Path, more: str, line: int, said: str) -> None:
    path = tmp_path / "one.md"
    path.write_text(HEAD.format(more=more))
    (tmp_path / "two.md").write_text(HEAD.format(more="").replace("one", "two"))
    problem, other = scan(tmp_path)
    assert isinstance(problem, Problem), problem
    assert said in problem.what
    assert problem.where == f"{path}:{line}"
    assert isinstance(other, AgentSpec)


def test_what_the_parts_take_is_taken(tmp_path: Path) -> None:
    more = (
        "memory: condensing\nmemory_options: {threshold_tokens: 500, over: {memory: recall, over: {memory: window, limit: 1}}}\n"
        "language: tags\nlanguage_options: {tags: {look: read}}\nstuck: {same_answer: 0, talking: [think], nudges: 0}\n"
        "actions: [editor, delegate, ask_user, mcp, finish]\nmiddleware: [retry_format]\n"
        "kit_options:\n  editor: {window: 1, overlap: 0}\n  delegate: {agents: [coder], max_depth: 1}\n"
        "  ask_user: {absent: pause}\n"
        "  mcp: {servers: {a-1: {command: x, env: {A: 1}, tools: [t], optional: true}, b: {url: 'http://127.0.0.1/'}}}\n"
    )
    (tmp_path / "one.md").write_text(HEAD.format(more=more))
    [found] = scan(tmp_path)
    assert isinstance(found, AgentSpec), found


def test_an_agent_that_delegates_to_one_that_is_not_there_is_told_and_so_are_those_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv(finding.FOLDERS_VARIABLE, raising=False)
    for name, agents in (("a", "[coder, b]"), ("b", "\n    - coder\n    - codr"), ("c", "[coder]")):
        more = f"actions: [delegate, finish]\nkit_options:\n  delegate:\n    agents: {agents}\n"
        (tmp_path / f"{name}.md").write_text(HEAD.format(more=more).replace("one", name))
    hub = default([tmp_path])
    assert {"c", "coder"} <= set(hub.names())
    assert not {"a", "b"} & set(hub.names())
    assert [(p.where, p.what) for p in hub.problems] == [
        (f"{tmp_path}/b.md:9", "it delegates to 'codr', and there is no such agent: did you mean 'coder'?"),
        (f"{tmp_path}/a.md:7", "it delegates to 'b', and there is no such agent"),
    ]


def test_the_lists_name_what_the_parts_have() -> None:
    """Each schema has the options of its part, but for what only Python can give."""
    own = {"self", "setting", "inner", "summariser", "embed", "actions"}
    places = (
        (catalogue.KITS, part_options.KITS),
        (catalogue.LANGUAGES, part_options.LANGUAGES),
        (catalogue.MEMORIES, part_options.MEMORIES),
    )
    for known, schemas in places:
        assert set(schemas) <= set(known)
        for name in set(known) - catalogue.OF_PYTHON:
            parameters = inspect.signature(catalogue._found("part", known, name)).parameters.values()
            named = {p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)} - own
            assert set(schemas.get(name, part_options.NONE)["properties"]) == named, name
    assert set(part_options.STUCK["properties"]) == set(inspect.signature(Thresholds).parameters)
    memories = {name: catalogue._found("memory", catalogue.MEMORIES, name) for name in catalogue.MEMORIES}
    assert {n for n, m in memories.items() if "inner" in inspect.signature(m).parameters} == part_options.LAYERED


def test_the_actions_of_the_kits_are_those_in_the_catalogue() -> None:
    with FakeEnvironment() as environment:
        setting = Setting(environment=environment, hub=default())
        for name in set(catalogue.KITS) - catalogue.OF_PYTHON - {"mcp"}:
            made = catalogue.kit(name, setting, {})
            assert tuple(a.name for a in made.actions()) == catalogue.ACTIONS_OF.get(name, (name,)), name


_TYPES: dict[Any, tuple[type, ...]] = {
    "integer": (int,), "number": (int, float), "string": (str,), "array": (list,), "null": (type(None),), "object": (dict,),
}  # fmt: skip
_VALUES: list[Any] = [-1, 0, 1, 2, 3, 4, 99, 100, 101, 200, 201, 499, 500, 0.0, 0.5, 1.0, None, "x", "pause", [], ["x"]]


def _well_typed(schema: Mapping[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Options of the right types, whatever their sizes: beyond types, part and schema must agree."""

    def of(inner: Mapping[str, Any]) -> list[Any]:
        kinds = inner.get("type", "string")
        types = tuple(t for kind in ([kinds] if isinstance(kinds, str) else kinds) for t in _TYPES[kind])
        return [value for value in _VALUES if isinstance(value, types)]

    return st.fixed_dictionaries({}, optional={name: st.sampled_from(of(s)) for name, s in schema["properties"].items()})


def _is_taken(make: Callable[[], Any]) -> bool:
    try:
        make()
    except (SandboxError, ValueError, TypeError):
        return False
    return True


@cache
def _setting() -> Setting:
    return Setting(environment=FakeEnvironment(), hub=default())


_PARTS: list[tuple[str, Mapping[str, Any], Callable[..., Any]]] = [
    ("window", part_options.MEMORIES["window"], lambda **o: catalogue.memory("window", o)),
    ("condensing", part_options.MEMORIES["condensing"], lambda **o: catalogue.memory("condensing", o)),
    ("stuck", part_options.STUCK, Thresholds),
    ("editor", part_options.KITS["editor"], lambda **o: catalogue.kit("editor", _setting(), o)),
    ("delegate", {"properties": {"max_depth": part_options.KITS["delegate"]["properties"]["max_depth"]}},
     lambda **o: DelegateKit(_setting(), **o)),
    ("ask_user", part_options.KITS["ask_user"], lambda **o: AskUserKit(_setting(), **o)),
]  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "schema", "make"), _PARTS, ids=[name for name, _, _ in _PARTS])
def test_schema_and_part_take_the_same(name: str, schema: Mapping[str, Any], make: Callable[..., Any]) -> None:
    @settings(deadline=None)
    @given(_well_typed(schema))
    def agree(options: dict[str, Any]) -> None:
        together = part_options.TOGETHER.get(name)
        fits = misfit(schema, options) is None and (together is None or together(options) is None)
        assert fits == _is_taken(lambda: make(**options)), options

    agree()


def test_listing_the_agents_imports_no_part_and_no_validator() -> None:
    code = (
        "import sys; from agent.hub import finding; list(finding.built_in());"
        "bad = {'jsonschema', 'litellm', 'agent.memory', 'agent.tools', 'agent.mcp', 'agent.adapters'} & set(sys.modules);"
        "sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
