"""The hub: which agents there are, whose counts, what a bad one does to the others, and the commands on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import typer
from jsonschema import Draft202012Validator

from agent import hub
from agent.core.registry import ActionWarning
from agent.hub import AgentSpec, Hub, Problem, Setting, build, finding, templates
from agent.hub.agents.delegator import SPECS
from agent.hub.inputs import parse_inputs
from agent.language.structured import StructuredLanguage
from agent.memory import Memory
from agent.model.scripted import ScriptedModel
from sandbox import LocalEnvironment
from sandbox.errors import SandboxError
from sandbox.testing import FakeEnvironment
from tests.programs import run_gamebox

MICRO = [
    "coder", "commit_writer", "manager", "math", "postgres", "repo_explorer", "study_repo_for_task", "typo_fixer", "verifier",
]  # fmt: skip


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nobody's own agents, and no repository's."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv(finding.FOLDERS_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "config/gamebox/agents"


def declare(folder: Path, name: str, description: str = "Of a file.", more: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.md"
    path.write_text(f"---\nname: {name}\ndescription: {description}\n{more}---\nDo it.\n")
    return path


def gamebox(*args: str) -> subprocess.CompletedProcess[str]:
    return run_gamebox(*args)


def test_the_agents_there_are() -> None:
    made = hub.default()
    assert made.problems == []
    assert {*MICRO, "coding", "delegator", "dummy"} <= set(hub.names())
    assert hub.names() == sorted(hub.names())
    assert hub.load("coder").description == made.load("coder").description
    assert hub.load(finding.DEFAULT_AGENT).source == "built in"


def test_names_stay_functions_whatever_is_imported() -> None:
    code = "from agent import hub; hub.names(); assert hub.load('math') and callable(hub.default); import agent; agent.hub.names()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", finding.default().names())
def test_every_agent_is_whole(name: str) -> None:
    """What the files of users are looked over for, and that a model can use its actions."""
    spec = hub.load(name)
    for schema in (spec.inputs, spec.outputs):
        Draft202012Validator.check_schema(dict(schema))
    for goal in spec.goals:
        templates.check(goal.description, spec.inputs)
    inputs = {key: templates._sample(schema) for key, schema in spec.inputs["properties"].items()}
    starts_programs = "mcp" in spec.actions
    with LocalEnvironment() if starts_programs else FakeEnvironment() as env, pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", _refuse)
        agent = build(spec, Setting(environment=env, hub=hub.default(), brain=ScriptedModel([]), inputs=inputs))
        ending = [kit.name for kit in getattr(agent.environment, "kits", ()) if kit.ends_runs]
        assert ending or [action.name for action in agent.actions.get_actions() if action.terminal]
        agent.construct_prompt(agent.goals, Memory(), agent.actions)


def _refuse(message: str, kind: Any = None, **options: Any) -> None:
    assert not (isinstance(kind, type) and issubclass(kind, ActionWarning)), message


def test_reading_agents_have_no_action_that_writes() -> None:
    for name in ("commit_writer", "repo_explorer", "study_repo_for_task", "verifier"):
        spec = hub.load(name)
        assert spec.read_only
        assert not {"write", "edit", "make_dir", "move", "delete", "send"} & set(spec.actions)


def test_a_read_only_agent_with_an_action_that_writes_is_not_built() -> None:
    spec = AgentSpec(name="one", description="One.", actions=("write", "finish"), read_only=True)
    with FakeEnvironment() as env, pytest.raises(SandboxError, match="read-only and names the action 'write'"):
        build(spec, Setting(environment=env, hub=Hub(), brain=ScriptedModel([])))


def test_whose_agent_counts(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declare(config, "math", "The user's.")
    assert hub.load("math").description == "The user's."
    declare(tmp_path / "set_up", "math", "Of the variable.")
    monkeypatch.setenv(finding.FOLDERS_VARIABLE, str(tmp_path / "set_up"))
    assert hub.load("math").description == "Of the variable."
    for name in ("first", "second"):
        declare(tmp_path / name, "math", f"Of the {name}.")
    assert hub.default([tmp_path / "first", tmp_path / "second"]).load("math").description == "Of the second."
    assert hub.default().problems == []


def test_a_repository_does_not_replace_an_agent_unasked(tmp_path: Path) -> None:
    declare(tmp_path / ".gamebox/agents", "coding", "Of the repository.")
    assert hub.load("coding").source == "built in"
    done = gamebox("hub", "ls")
    assert "Of the repository." not in done.stdout
    assert "not loaded: the agents of .gamebox/agents" in done.stderr
    assert done.returncode == 0
    named = gamebox("hub", "ls", "--agents", ".gamebox/agents")
    assert "Of the repository." in named.stdout
    assert named.stderr == ""


def test_a_bad_file_is_a_problem_and_the_others_are_loaded(config: Path, tmp_path: Path) -> None:
    bad = declare(config, "bad", more="actons: []\n")
    declare(config, "good")
    twice = declare(config, "z_twice")
    twice.write_text(twice.read_text().replace("z_twice", "good"))
    made = hub.default()
    assert made.problems == [
        Problem(f"{bad}:4", "the key 'actons' is not known: did you mean 'actions'?"),
        Problem(str(twice), f"the name 'good' is already used by that of {config / 'good.md'}"),
    ]
    assert "good" in made.names()
    done = gamebox("hub", "ls")
    assert done.returncode == 1
    assert f"{bad}:4" in done.stderr
    assert "good" in done.stdout


class _Point:
    """An entry point, as packages have them."""

    def __init__(self, name: str, loaded: Any) -> None:
        self.name = self.value = name
        self.dist = None
        self._loaded = loaded

    def load(self) -> Any:
        if isinstance(self._loaded, BaseException):
            raise self._loaded
        return self._loaded


def spec(name: str) -> AgentSpec:
    return AgentSpec(name=name, description="Of a package.", source="a package")


def test_agents_of_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises() -> AgentSpec:
        raise RuntimeError("out of order")

    points = [
        _Point("a", spec("theirs")), _Point("b", [spec("b1"), spec("b2")]), _Point("c", lambda: spec("made")),
        _Point("d", lambda: [spec("m1")]), _Point("e", ImportError("no module")), _Point("f", SystemExit(3)), _Point("g", raises),
        _Point("h", "text"), _Point("i", spec("coding")), _Point("j", spec("theirs")),
    ]  # fmt: skip
    monkeypatch.setattr(metadata, "entry_points", lambda group: points if group == "gamebox.agents" else [])
    made = hub.default()
    assert {"theirs", "b1", "b2", "made", "m1"} <= set(made.names())
    assert made.load("coding").source == "built in"
    assert [(p.where[-1], p.what.split(":")[0]) for p in made.problems] == [
        ("e", "it cannot be loaded"), ("f", "it cannot be loaded"), ("g", "it cannot be loaded"), ("h", "it cannot be loaded"),
        ("i", "the name 'coding' is already used by that of built in"),
        ("j", "the name 'theirs' is already used by that of a package"),
    ]  # fmt: skip


def test_the_table_and_the_list() -> None:
    shown = gamebox("hub", "ls").stdout.splitlines()
    assert shown[0].split() == ["NAME", "NEEDS", "ACTIONS", "SOURCE", "DESCRIPTION"]
    row = next(line for line in shown if line.startswith("dummy "))
    assert row.split()[1] == "-"
    assert next(line for line in shown if line.startswith("delegator ")).split()[1] == "model"
    told = json.loads(gamebox("hub", "ls", "--json").stdout)
    assert [a["name"] for a in told["agents"]] == hub.names()
    assert told["problems"] == []


def test_parts_of_an_agent_are_found_and_not_listed(capsys: pytest.CaptureFixture[str]) -> None:
    from agent.cli.hub import ls

    parts = {"dummy_old", "dummy_refuser", "dummy_second"}
    assert parts <= set(hub.default().names())
    assert not parts & set(hub.names())
    with pytest.raises(typer.Exit):
        ls(agents=[], as_json=False)
    assert "dummy_" not in capsys.readouterr().out
    with pytest.raises(SandboxError) as caught:
        hub.load("dummy_secnd")
    assert "dummy_" not in caught.value.hint


@pytest.mark.exhaustive
@pytest.mark.parametrize("as_json", [False, True])
def test_every_agent_can_be_shown(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    from agent.cli.hub import show

    for name in hub.default().names():
        show(name, agents=[], as_json=as_json)
        told = capsys.readouterr().out
        assert name in told
        assert not as_json or json.loads(told)["name"] == name
        assert "object at 0x" not in told


def test_one_agent_is_shown_with_its_goals_filled_in() -> None:
    shown = gamebox("hub", "show", "coder").stdout
    assert "actions: read, write" in shown
    assert "<task>" in shown
    assert "{{" not in shown
    told = json.loads(gamebox("hub", "show", "verifier", "--json").stdout)
    assert told["read_only"] is True
    assert told["outputs"]["required"] == ["completed", "summary"]
    done = gamebox("hub", "show", "codr")
    assert (done.returncode, "Did you mean 'coder'?" in done.stderr) == (2, True)


def test_an_agent_that_cannot_be_read_is_not_replaced_by_an_unknown_name(tmp_path: Path) -> None:
    path = declare(tmp_path / "own", "counter", more="actons: [read]\nmax_iterations: 0\n")
    done = gamebox("agent", "count", "--agents", "own", "--agent", "counter")
    assert done.returncode == 2
    assert f"{path.relative_to(tmp_path)}:4: the key 'actons' is not known" in done.stderr
    assert "(and 1 more)" in done.stderr
    missing = gamebox("agent", "count", "--agents", "oven", "--agent", "counter")
    assert "oven: the folder cannot be read: No such file or directory" in missing.stderr
    known = gamebox("agent", "count", "--agents", "oven", "--agent", "math")
    assert "oven" not in known.stderr, "what is missing does no harm"


def test_what_a_file_says_cannot_steer_a_terminal(config: Path) -> None:
    declare(config, "sly", '"\\e[31mred\\e]0;title\\a \\u202e."')
    for args in (("hub", "ls"), ("hub", "show", "sly")):
        shown = gamebox(*args).stdout
        assert "red" in shown
        assert not {"\x1b", "\x07", "\u202e"} & set(shown)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("do it",), "hint: Name its folder with --repo"),
        (("do it", "--agent", "codr"), "Did you mean 'coder'?"),
        (("do it", "--agent", "math", "--apply"), "--apply has no effect without --repo"),
        (("do it", "--agent", "math", "--input", "task"), "is not KEY=VALUE"),
        (("do it", "--agent", "math", "--input", "tsk=1"), "has no input 'tsk'"),
        (("do it", "--agent", "dummy", "--model", "a/b"), "--model has no effect with the agent dummy"),
        (("do it", "--agent", "math"), "No model was named"),
        (("do it", "--agent", "math"), "GAMEBOX_MODEL or the file gamebox/config.toml"),
        (("do it", "--agent", "math", "--language", "latin"), "'latin' is not known"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_begins(args: tuple[str, ...], said: str) -> None:
    done = gamebox("agent", *args)
    assert done.returncode == 2
    assert said in done.stderr


def test_inputs_of_the_command_line(tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "properties": {"task": {"type": "string"}, "n": {"type": "integer"}, "l": {"type": "array"}},
        "required": ["task", "n"],
    }
    one = AgentSpec(name="one", description="One.", inputs=schema)
    assert parse_inputs(one, "do", ["n=3", 'l=["a=b"]']) == {"task": "do", "n": 3, "l": ["a=b"]}
    assert parse_inputs(one, "do", ["n=3", "task=other"])["task"] == "other"
    for given, said in ((["n=x"], "not JSON"), (["n=1.5"], "do not fit"), ([], "do not fit")):
        with pytest.raises(SandboxError, match=said):
            parse_inputs(one, "do", given)


def test_inputs_that_cannot_be_checked_do_not_fit() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "number", "multipleOf": 0.5}}}
    one = AgentSpec(name="one", description="One.", inputs=schema)
    with pytest.raises(SandboxError, match="do not fit: the arguments cannot be checked"):
        parse_inputs(one, "do", [f"n={10**400}"])


def test_the_delegator_decides_by_the_last_answer() -> None:
    """The table: study, coder, verifier, and back to the coder with what is missing, three times at most."""
    brain = SPECS[0].brain
    assert brain is not None
    with FakeEnvironment() as env:
        decide = brain(Setting(environment=env, hub=Hub(), inputs={"task": "T"}))
        memory = Memory()
        memory.add_memory({"role": "user", "content": "T"})
        answers: Iterator[dict[str, Any]] = iter([
            {"summary": "a.py"}, {}, {"completed": False, "summary": "tests"}, {}, {"completed": False}, {}, {"completed": "true"},
        ])  # fmt: skip
        calls = []
        while True:
            call = decide(StructuredLanguage().construct_prompt([], env, [], memory))
            calls.append(call["args"])
            if call["tool"] != "delegate":
                break
            memory.add_memory({"role": "assistant", "content": call})
            memory.add_memory({"role": "tool", "content": {"tool_executed": True, "result": {"outputs": next(answers)}}})
    assert [c.get("agent") for c in calls] == ["study_repo_for_task", *["coder", "verifier"] * 3, None]
    given = [c["inputs"].get("summary") for c in calls[1:7:2]]
    assert given[:2] == ["a.py", "tests"]
    assert "not what is missing" in given[2]
    assert calls[-1]["reason"].startswith("Not done after 3 rounds")


def test_the_delegator_with_answers_that_are_none() -> None:
    def after(agent: str, **envelope: Any) -> dict[str, Any]:
        brain = SPECS[0].brain
        assert brain is not None
        call = {"tool": "delegate", "args": {"agent": agent, "inputs": {}}}
        memory = [{"role": "assistant", "content": call}, {"role": "tool", "content": envelope}]
        with FakeEnvironment() as env:
            decided: dict[str, Any] = brain(Setting(environment=env, hub=Hub(), inputs={"task": "T"})).decide(memory)  # type: ignore[attr-defined]
        return decided

    study = after("study_repo_for_task", tool_executed=False, error="x", result=None)
    assert "look around first" in study["args"]["inputs"]["summary"]
    assert after("coder", tool_executed=False, error="x")["args"]["agent"] == "verifier"
    assert after("verifier", tool_executed=False, error="gone")["tool"] == "reject"
    done = after("verifier", tool_executed=True, result={"outputs": {"completed": True}})
    assert (done["tool"], done["args"]["summary"]) == ("finish", "The verifier says that the task is done.")


def test_listing_is_fast_enough_to_be_used() -> None:
    """What would make it slow is not imported: neither the sandbox's operations nor anything of a model. (pydantic is typer's.)"""
    code = (
        "import contextlib, io, sys\nfrom agent.cli.app import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n    main(['hub', 'ls'])\n"
        "print(sorted({'litellm', 'docker', 'jsonschema', 'jinja2', 'rich', 'sandbox.operations'} & set(sys.modules)))"
    )
    environment = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines()[-1] == "[]"
