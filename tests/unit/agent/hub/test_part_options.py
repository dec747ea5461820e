"""Options of parts in a file: what no part would take is told when the file is read, with its line, and the rest is loaded."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from agent.hub import AgentSpec, Problem, Setting, catalogue, default, finding, options
from agent.hub.files import scan
from agent.layers.stuck import Thresholds
from agent.tools.ask_user import AskUserKit
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
        ("memory_options: {limit: 0}\n", 4, "memory_options.limit must be at least 1, not 0"),
        ("memory_options:\n  keep_first: 1\n  limt: 9\n", 6, "did you mean 'limit'?"),
        ("memory_options:\n  limit: 9.0\n", 5, "limit must be a whole number, not 9.0"),
        ("memory_options:\n  limit: true\n", 5, "limit must be a whole number, not True"),
        ("memory_options:\n  limit: 3\n  step: 4\n", 4, "step must be at most limit (3), not 4"),
        ("memory_options: {over: {memory: window}}\n", 4, "the memory 'window' cannot be put over another"),
        ("memory: condensing\nmemory_options:\n  threshold_tokens: 499\n", 6, "must be at least 500, not 499"),
        ("memory: condensing\nmemory_options:\n  over:\n    memory: recal\n", 7, "did you mean 'recall'?"),
        ("memory: condensing\nmemory_options:\n  over:\n    memory: window\n    limit: 0\n", 8,
         "memory_options.over.limit must be at least 1, not 0"),
        ("memory: condensing\nmemory_options:\n  over: window\n", 6, "must have the form {memory: NAME, ...}, not 'window'"),
        ("memory: recall\nmemory_options:\n  embed: yes\n", 6, "there is no such option: there are over, path, run"),
        ("language_options: {tags: {a: run}}\n", 4, "the language 'function_calling' takes no options, not 'tags'"),
        ("language: tags\nlanguage_options:\n  tags:\n    '1': run\n", 7, "must be the name of a tag, not '1'"),
        ("stuck:\n  same_answer: 1\n", 5, "stuck.same_answer must be 0 (off) or at least 2, not 1"),
        ("stuck:\n  patience: 0\n", 5, "stuck.patience must be at least 1, not 0"),
        ("stuck:\n  same_anser: 3\n", 5, "did you mean 'same_answer'?"),
        ("stuck:\n  talking: think\n", 5, "stuck.talking must be a list, not 'think'"),
        (EDITOR + "    windw: 9\n", 7, "did you mean 'window'?"),
        (EDITOR + "    window: 2\n", 6, "a window of 2 lines cannot overlap by 2"),
        ("actions: [plan, finish]\nkit_options: {plan: {depth: 3}}\n", 5, "kit_options.plan takes no options, not 'depth'"),
        ("actions: [delegate, finish]\nkit_options:\n  delegate:\n    max_depth: 0\n", 7, "max_depth must be at least 1, not 0"),
        ("actions: [delegate, finish]\nkit_options:\n  delegate:\n    agents:\n    - x\n    - 7\n", 9,
         "kit_options.delegate.agents.1 must be a text, not 7"),
        ("actions: [ask_user, finish]\nkit_options:\n  ask_user:\n    absent: wait\n", 7,
         "absent must be 'refuse', 'reply' or 'pause', not 'wait'"),
        ("actions: [mcp, finish]\n", 4, "the kit 'mcp' needs servers"),
        (MCP + "commnd: x\n", 9, "did you mean 'command'?"),
        (MCP + "timeout_seconds: 5\n", 8, "needs either command or url"),
        (MCP + "command: x\n        timeout_seconds: 0\n", 10, "timeout_seconds must be greater than 0, not 0"),
        (MCP + "url: ftp://x\n", 9, "must be an address"),
        ("actions: [mcp, finish]\nkit_options: {mcp: {servers: {Notes: {command: x}}}}\n", 5, "must be the name of a server"),
        ("actions: [late, finish]\n", 4, "cannot be named in a file"),
        ("actions:\n- mini\n- run\n", 6, "'run' and 'mini' both have an action 'run'"),
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
        (f"{tmp_path}/b.md:9", "it delegates to 'codr', but there is no such agent: did you mean 'coder'?"),
        (f"{tmp_path}/a.md:7", "it delegates to 'b', but there is no such agent"),
    ]


LANGUAGES: dict[str, type[options.Options]] = {"tags": options.TagsOptions}
MEMORIES: dict[str, type[options.Options]] = {
    "window": options.WindowOptions,
    "condensing": options.CondensingOptions,
    "recall": options.RecallOptions,
}


def model_of_kit(name: str) -> Any:
    """Return the model of a kit's options; that of ``mcp`` may be None in a file."""
    annotation: Any = options.KitOptions.model_fields[name].annotation
    return next(iter(get_args(annotation)), annotation)


def test_the_models_have_the_options_of_the_parts() -> None:
    """All but what can only be given in Python."""
    own = {"self", "setting", "inner", "summariser", "embed", "actions"}
    kits: dict[str, type[options.Options]] = {name: model_of_kit(name) for name in options.KitOptions.model_fields}
    places: list[tuple[dict[str, str], dict[str, type[options.Options]]]] = [
        (catalogue.KITS, kits),
        (catalogue.LANGUAGES, LANGUAGES),
        (catalogue.MEMORIES, MEMORIES),
    ]  # fmt: skip
    for known, models in places:
        assert set(models) <= set(known)
        for name in set(known) - catalogue.OF_PYTHON:
            parameters = inspect.signature(catalogue._found("part", known, name)).parameters.values()
            model = models.get(name, options.NoOptions)
            named = {p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)} - own
            assert set(model.names()) - {"over"} == named, name
    assert set(kits) == set(catalogue.KITS) - catalogue.OF_PYTHON
    assert set(options.StuckOptions.names()) == set(inspect.signature(Thresholds).parameters)
    memories = {name: catalogue._found("memory", catalogue.MEMORIES, name) for name in catalogue.MEMORIES}
    layered = {name for name, memory in memories.items() if "inner" in inspect.signature(memory).parameters}
    assert layered == {name for name, model in MEMORIES.items() if "over" in model.names()}


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


def _well_typed(model: type[BaseModel], names: Iterable[str]) -> st.SearchStrategy[dict[str, Any]]:
    """Options of the right types, whatever their sizes: beyond types, part and model must agree."""
    schema = model.model_json_schema()
    properties = schema.get("properties") or schema["$defs"][model.__name__]["properties"]

    def of(schema: Mapping[str, Any]) -> list[Any]:
        kinds = [each.get("type") for each in schema.get("anyOf", [schema])]
        return [value for value in _VALUES if any(isinstance(value, _TYPES[kind]) for kind in kinds)]

    return st.fixed_dictionaries({}, optional={name: st.sampled_from(of(properties[name])) for name in names})


def _is_taken(make: Callable[[], Any]) -> bool:
    try:
        make()
    except (SandboxError, ValueError, TypeError):
        return False
    return True


@cache
def _setting() -> Setting:
    return Setting(environment=FakeEnvironment(), hub=default())


_PARTS: list[tuple[str, type[options.Options], Callable[..., Any]]] = [
    ("window", options.WindowOptions, lambda **o: catalogue.memory("window", o)),
    ("condensing", options.CondensingOptions, lambda **o: catalogue.memory("condensing", o)),
    ("stuck", options.StuckOptions, Thresholds),
    ("editor", options.EditorOptions, lambda **o: catalogue.kit("editor", _setting(), o)),
    ("delegate", options.DelegateOptions, lambda **o: DelegateKit(_setting(), **o)),
    ("ask_user", options.AskUserOptions, lambda **o: AskUserKit(_setting(), **o)),
]


def _is_valid(model: type[options.Options], values: dict[str, Any]) -> bool:
    try:
        model.model_validate(values)
    except ValidationError:
        return False
    return True


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "model", "make"), _PARTS, ids=[name for name, _, _ in _PARTS])
def test_model_and_part_accept_the_same(name: str, model: type[options.Options], make: Callable[..., Any]) -> None:
    named = {model.discriminator: name} if model.discriminator else {}

    # Whether an agent to delegate to exists is another question than whether an option has a valid value.
    @settings(deadline=None)
    @given(_well_typed(model, set(model.names()) - {"over", "agents"}))
    def agree(values: dict[str, Any]) -> None:
        assert _is_valid(model, {**named, **values}) == _is_taken(lambda: make(**values)), values

    agree()


def test_listing_the_agents_imports_no_part_and_no_validator() -> None:
    code = (
        "import sys; from agent.hub import finding; list(finding.built_in());"
        "bad = {'jsonschema', 'litellm', 'agent.memory', 'agent.tools', 'agent.mcp', 'agent.contracts'} & set(sys.modules);"
        "sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
