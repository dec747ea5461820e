"""Agent files that name Python tools, languages and memories of the user: when they are imported, and when never."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent import AgentLanguage, Environment, Memory, ScriptedModel
from agent.cli.app import app
from agent.hub import AgentSpec, Problem, Setting, build, default
from agent.hub.files import scan
from agent.hub.python_parts import MAX_SOURCE_BYTES, without_python
from agent.job.options import AgentOptions
from agent.views.trajectory.run_lookup import equip_from
from sandbox import LocalEnvironment
from sandbox.errors import SandboxError

HEAD = "---\nname: {name}\ndescription: One.\n{more}---\nDo it.\n"
# Says that it was imported, so that a test can see that it was not.
LOUD = 'from pathlib import Path\nPath(__file__).with_name("imported").touch()\n'
TOOLS = (
    LOUD
    + '''
from datetime import date

import neighbour


def days_between(first: date, last: date) -> int:
    """Count the days between two dates.

    Args:
        first: The first day.
        last: The last day.
    """
    return (last - first).days * neighbour.FACTOR


NOT_A_TOOL = 3
'''
)
PARTS = '''
from agent import FunctionCallingLanguage, Memory


class Polite(FunctionCallingLanguage):
    pass


class Last(Memory):
    def __init__(self, count: int = 2) -> None:
        super().__init__()
        self.count = count

    def get_memories(self, limit=None):
        return self.items[-self.count :]


def nothing() -> None:
    """Return nothing."""
'''


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own folder of agents."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("GAMEBOX_AGENTS", raising=False)
    folder = tmp_path / "config/gamebox/agents"
    folder.mkdir(parents=True)
    return folder


def written(
    folder: Path, more: str = 'actions: ["tools:days_between", finish]\n', tools: str = TOOLS, name: str = "counter"
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(HEAD.format(name=name, more=more))
    (folder / "tools.py").write_text(tools)
    (folder / "parts.py").write_text(PARTS)
    (folder / "neighbour.py").write_text("FACTOR = 1\n")
    return folder


def imported(folder: Path) -> bool:
    return (folder / "imported").exists()


FINISH = {"tool": "finish", "args": {"summary": "x"}}


def run(spec: AgentSpec, *script: Any) -> Any:
    setting = Setting(
        environment=Environment(),
        hub=default(),
        brain=ScriptedModel([*script, {"tool": "finish", "args": {"summary": "x"}}]),
    )
    return build(spec, setting).execute("go")


CALL = {"tool": "days_between", "args": {"first": "2026-02-01", "last": "2026-03-01"}}


def test_an_agent_of_the_users_own_folder_calls_its_tool(config: Path) -> None:
    written(config)
    spec = default().load("counter")
    assert not imported(config)
    steps = run(spec, CALL, {"tool": "days_between", "args": {"first": "soon", "last": "2026-03-01"}}).steps
    assert steps[0].envelope["result"] == 28
    assert steps[1].envelope["code"] == "invalid_arguments"
    assert imported(config)
    assert str(config) not in sys.path


def test_two_agents_may_have_files_of_the_same_names(tmp_path: Path) -> None:
    one = written(tmp_path / "one", name="one")
    two = written(tmp_path / "two", tools=TOOLS.replace(").days", ").days + 1"), name="two")
    (two / "neighbour.py").write_text("FACTOR = 10\n")
    hub = default([one, two])
    assert [run(hub.load(name), CALL).steps[0].envelope["result"] for name in ("one", "two", "one")] == [28, 38, 28]
    assert "neighbour" not in sys.modules


SCRIBBLE = """
from agent import Environment


def scribble(text: str, environment: Environment) -> dict:
    '''Write a file.'''
    return environment.write("a.txt", text).to_dict()
"""


@pytest.mark.parametrize("read_only", [True, False])
def test_a_python_tool_of_a_read_only_agent_cannot_write(config: Path, read_only: bool) -> None:
    """It gets the environment as the agent has it, not the sandbox below."""
    more = f'actions: ["tools:scribble", finish]\nread_only: {str(read_only).lower()}\n'
    spec = default([written(config, more, SCRIBBLE)]).load("counter")
    with LocalEnvironment() as env:
        brain = ScriptedModel([{"tool": "scribble", "args": {"text": "x"}}, FINISH])
        agent_run = build(spec, Setting(environment=env, hub=default(), brain=brain)).execute("go")
        assert env.stat("a.txt").ok is not read_only
    assert (agent_run.steps[0].envelope or {})["tool_executed"] is not read_only


def test_an_agent_in_a_folder_of_its_own(tmp_path: Path) -> None:
    folder = written(tmp_path / "agents/deep")
    (folder / "counter.md").unlink()
    (folder / "agent.yaml").write_text('name: deep\ndescription: One.\nactions: ["tools:days_between", finish]\n')
    (folder / "prompt.md").write_text("Do it.\n")
    assert run(default([tmp_path / "agents"]).load("deep"), CALL).steps[0].envelope["result"] == 28


def test_a_language_and_a_memory_of_the_user(config: Path) -> None:
    written(config, 'language: "parts:Polite"\nmemory: "parts:Last"\nmemory_options: {count: 3}\n')
    agent = build(default().load("counter"), Setting(environment=Environment(), hub=default(), brain=ScriptedModel([])))
    memory = agent.new_memory()
    assert (type(agent.agent_language).__name__, type(memory).__name__, vars(memory)["count"]) == ("Polite", "Last", 3)
    assert isinstance(agent.agent_language, AgentLanguage)
    assert isinstance(memory, Memory)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('language: "parts:nothing"\n', "'parts:nothing' returns a NoneType, which is not a language"),
        ('memory: "parts:Polite"\n', "'parts:Polite' returns a Polite, which is not a memory"),
        ('memory: "parts:Last"\nmemory_options: {size: 3}\n', "does not take these options"),
        (
            'actions: ["tools:NOT_A_TOOL", finish]\n',
            "cannot use tools:NOT_A_TOOL as a tool: A registry takes",
        ),
        ('actions: ["tools:days_between"]\n', "has no action that ends a run"),
    ],
)
def test_what_is_not_such_a_part_is_refused_when_the_agent_is_built(config: Path, more: str, said: str) -> None:
    written(config, more)
    with pytest.raises(SandboxError, match=said):
        run(default().load("counter"))


@pytest.mark.parametrize(
    "tools",
    [
        "raise ValueError('no')\ndays_between = 1\n",
        "raise SystemExit(3)\ndays_between = 1\n",
        "import not_there\ndays_between = 1\n",
    ],
)
def test_a_file_that_cannot_be_imported_is_named(config: Path, tools: str) -> None:
    written(config, tools=tools)
    with pytest.raises(SandboxError, match=r"tools\.py, which the agent 'counter' names, cannot be imported: "):
        run(default().load("counter"))
    assert not [
        name
        for name in sys.modules
        if name.startswith("gamebox_part_") and sys.modules[name].__dict__.get("days_between") == 1
    ]


@pytest.mark.parametrize(
    ("more", "line", "said"),
    [
        (
            'actions: [finish,\n  "tools:days_betwen"]\n',
            5,
            "tools.py has no 'days_betwen': did you mean 'days_between'?",
        ),
        ('actions: ["tool:days_between", finish]\n', 4, "there is no file tool.py beside it"),
        ('actions: ["deep.tools:days_between", finish]\n', 4, "there is no file deep/tools.py beside it"),
        ('actions: ["os:system", finish]\n', 4, "there is no file os.py beside it"),
        ('actions: ["../tools:days_between", finish]\n', 4, "is not written as module:name"),
        ('actions: ["..tools:days_between", finish]\n', 4, "is not written as module:name"),
        ('actions: ["/etc/x:y", finish]\n', 4, "is not written as module:name"),
        ('actions: ["tools:days_between()", finish]\n', 4, "is not written as module:name"),
        ('actions: ["tools:", finish]\n', 4, "is not written as module:name"),
        ('language: "tools:Nothing"\n', 4, "tools.py has no 'Nothing'"),
        ('memory: recall\nmemory_options:\n  over: {memory: "tools:Nothing"}\n', 6, "tools.py has no 'Nothing'"),
        ('memory: "tools:Nothing"\n', 4, "tools.py has no 'Nothing'"),
        ('actions: ["tools:days_between", "parts:days_between", finish]\n', 4, "both have an action 'days_between'"),
        ('actions: ["broken:x", finish]\n', 4, "broken.py:2: "),
        ('actions: ["binary:x", finish]\n', 4, "binary.py"),
        ('actions: ["large:x", finish]\n', 4, "large.py is larger than 1 MiB"),
        ('actions: ["outside:days_between", finish]\n', 4, "outside.py is a link that leads out of"),
        ('actions: ["pipe:x", finish]\n', 4, "there is no file pipe.py beside it"),
    ],
)
def test_what_is_wrong_with_a_name_is_told_with_its_line_and_without_an_import(
    config: Path, tmp_path: Path, more: str, line: int, said: str
) -> None:
    import os

    written(config, more)
    (config / "broken.py").write_text("x = 1\ndef (\n")
    (config / "binary.py").write_bytes(b"x = '\x00\xff'\n")
    (config / "large.py").write_bytes(b"#" * (MAX_SOURCE_BYTES + 1))
    (config / "outside.py").symlink_to(written(tmp_path / "elsewhere") / "tools.py")
    os.mkfifo(config / "pipe.py")
    [problem] = [each for each in scan(config) if isinstance(each, Problem)]
    assert said in problem.what
    assert problem.where == f"{config / 'counter.md'}:{line}"
    assert not imported(config)


def test_listing_and_showing_agents_imports_nothing(config: Path, tmp_path: Path) -> None:
    written(
        config,
        'actions: ["tools:days_between", finish]\nlanguage: "tools:days_between"\nmemory: "tools:days_between"\n',
    )
    named = written(tmp_path / "named", name="other")
    for command in (["ls"], ["ls", "--json"], ["show", "counter"], ["show", "other"]):
        done = CliRunner().invoke(app, ["hub", *command, "--agents", str(named)])
        assert done.exit_code == 0, done.output
        assert "tools:days_between" in done.stdout or command == ["ls"]
    assert not imported(config)
    assert not imported(named)


@pytest.mark.parametrize("named", [".gamebox/agents", ".gamebox", ".gamebox/agents/deep"])
def test_the_python_of_a_repositorys_folder_is_never_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    """Also where the folder is named: a model that reads its agents cannot leave the sandbox, its Python could."""
    folder = written(tmp_path / "repo" / named)
    link = tmp_path / "link"
    link.symlink_to(folder)
    monkeypatch.chdir(tmp_path / "repo")
    monkeypatch.setenv("GAMEBOX_AGENTS", str(folder))
    for path in (folder, Path(named), link):
        hub = default([path])
        assert "counter" not in hub.names()
        assert {problem.what.partition(",")[0] for problem in hub.problems} == {"'tools:days_between' names Python"}
    assert not imported(folder)


def test_a_spec_without_a_folder_imports_nothing(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry point, or a spec that a program makes, names no folder."""
    written(config)
    monkeypatch.chdir(config)
    with pytest.raises(SandboxError, match="names Python, which is imported only for agents in your own folder"):
        run(AgentSpec(name="counter", description="One.", actions=("tools:days_between", "finish")))
    assert not imported(config)


def test_a_log_decides_on_no_import(tmp_path: Path) -> None:
    """The folder of agents that a log names is read, and its Python is not."""
    folder = written(tmp_path / "named")
    data = {**AgentOptions(task="x", agents=(folder,), agent="counter").to_data(), "python": True}
    assert "python" not in AgentOptions(task="x").to_data()
    options = AgentOptions.of_data(data, "run")
    assert not options.python
    with pytest.raises(SandboxError, match="names Python"):
        options.found()
    assert options.with_python().found()[1].name == "counter"
    assert not imported(folder)


def test_a_replay_does_not_call_the_users_tools(config: Path) -> None:
    """The log chooses the arguments."""
    written(config, 'actions: ["tools:days_between", read, finish]\nlanguage: "parts:Polite"\nmemory: "parts:Last"\n')
    _, registry = equip_from(default())("counter", Environment())
    assert [each.name for each in registry.get_actions()] == ["read", "finish"]
    assert not imported(config)
    bare = without_python(default().load("counter"))
    assert (bare.language, bare.memory) == ("function_calling", "window")
    written(config, 'memory: recall\nmemory_options: {over: {memory: "parts:Last"}}\n')
    assert without_python(default().load("counter")).memory_options == {}
