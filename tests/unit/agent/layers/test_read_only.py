"""Agents that only read: what they may do, and that the workspace is as it was whatever a command did."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent import Action, ActionRegistry, Agent, Goal, ScriptedModel
from agent.core.loop.layers import Layer
from agent.core.run import AgentRun, Step
from agent.core.status import RunStatus
from agent.hub import AgentSpec, Hub, Setting, build
from agent.layers.own_sessions import OwnSessions
from agent.layers.read_only import READING, ReadOnly, ReadOnlyEnvironment
from agent.memory import Memory, WindowMemory
from agent.tools import SandboxAction, finish_action
from sandbox import LocalEnvironment
from sandbox.environment.base import Environment
from sandbox.operations import OPERATIONS
from sandbox.operations import Run as RunRequest
from sandbox.testing import FakeEnvironment


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalEnvironment]:
    (tmp_path / "work").mkdir()
    (tmp_path / "work/a.txt").write_text("a\n")
    (tmp_path / "work/sub").mkdir()
    (tmp_path / "work/sub/b.txt").write_text("b\n")
    with LocalEnvironment(tmp_path / "work") as env:
        yield env


def tree(env: LocalEnvironment) -> dict[str, Any]:
    base = Path(env.workspace)
    return {
        str(p.relative_to(base)): (p.stat().st_mode, p.read_bytes() if p.is_file() else None) for p in sorted(base.rglob("*"))
    }


def run(env: Environment, command: str, **args: Any) -> dict[str, Any]:
    return env.execute_action(SandboxAction("run"), {"command": command, **args})


def test_looking_is_as_ever(local: LocalEnvironment) -> None:
    env = ReadOnlyEnvironment(local)
    assert run(env, "cat a.txt")["result"]["output"] == "a\n"
    assert run(env, "ls; exit 3")["result"]["exit_code"] == 3
    assert env.read("a.txt").unwrap().content == "a\n"
    assert env.run("cd sub").ok
    assert env.run("pwd").unwrap().output.rstrip().endswith("sub")
    assert env.run("echo x > $TMPDIR/x; cat $TMPDIR/x").unwrap().output == "x\n"


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("echo more >> a.txt", "~ a.txt"),
        ("touch new", "+ new"),
        ("mkdir -p deep/er", "+ deep/"),
        ("rm sub/b.txt", "- sub/b.txt"),
        ("mv a.txt c.txt", "+ c.txt"),
        ("chmod 777 a.txt", "mode 644 to 777"),
        ("ln -s a.txt link", "+ link"),
        ("rm -rf *", "- a.txt"),
        ("mkdir .git && touch .git/HEAD", "+ .git/HEAD"),
        ("touch new; exit 4", "+ new"),
        ("mkdir node_modules; touch node_modules/x", "node_modules/x"),
    ],
)
def test_what_a_command_changed_is_undone_and_named(local: LocalEnvironment, command: str, named: str) -> None:
    before = tree(local)
    env = ReadOnlyEnvironment(local)
    answer = run(env, f"echo said; {command}")
    assert (answer["tool_executed"], answer["code"], answer["effects"]) == (False, "read_only", "none")
    assert named in answer["error"]
    assert answer["result"]["output"].startswith("said\n")  # what it said is not lost
    assert tree(local) == before
    assert run(env, "cat a.txt")["result"]["output"] == "a\n"  # and it goes on
    failure = env.run(command)
    assert not failure.ok
    assert failure.code.value == "read_only"
    assert tree(local) == before


def test_a_command_that_was_too_slow_changed_nothing_either(local: LocalEnvironment) -> None:
    before = tree(local)
    for seconds in (0.5, 4, 16):  # until the machine let it begin
        answer = run(ReadOnlyEnvironment(local), "touch new; sleep 30", timeout_seconds=seconds)
        if answer["code"] != "timeout":
            break
    assert (answer["code"], tree(local)) == ("read_only", before)


def test_what_a_command_leaves_running_changes_nothing_later(local: LocalEnvironment) -> None:
    before = tree(local)
    env = ReadOnlyEnvironment(local)
    run(env, "(sleep 0.7; touch later) >/dev/null 2>&1 &")
    assert env.run("sleep 1.2").ok
    assert tree(local) == before


@pytest.mark.parametrize("more", [{"background": True}, {"wait_seconds": 0.1}, {"wait_seconds": 0}, {"pty": True}])
def test_nothing_goes_on_in_the_background(local: LocalEnvironment, more: dict[str, Any]) -> None:
    answer = run(ReadOnlyEnvironment(local), "sleep 1; touch later", **more)
    assert answer["code"] == "read_only"
    assert "foreground" in answer["hint"]


@pytest.mark.parametrize("operation", sorted(set(OPERATIONS) - READING))
def test_what_writes_is_refused_however_it_is_asked_for(local: LocalEnvironment, operation: str) -> None:
    before = tree(local)
    env = ReadOnlyEnvironment(local)
    args = {"path": "a.txt", "content": "x", "source": "a.txt", "target": "b.txt", "id": "c1"}
    known = {name: value for name, value in args.items() if name in OPERATIONS[operation].model_fields}

    class Bound:
        name = operation

        def __init__(self) -> None:
            self.operation = operation

        def execute(self, /, **kwargs: Any) -> Any:
            raise AssertionError

    assert env.execute_action(Bound(), known)["code"] == "read_only"
    failure = env.execute(operation, known)
    assert not failure.ok
    assert failure.code.value == "read_only"
    assert tree(local) == before


def test_requests_uploads_and_functions(local: LocalEnvironment) -> None:
    before = tree(local)
    env = ReadOnlyEnvironment(local)
    done = env.perform(RunRequest.model_validate({"command": "touch new"}))
    assert not done.ok
    assert done.code.value == "read_only"
    assert not env.upload(b"x", "new").ok
    assert env.execute_action(Action("count", lambda: 3, "Counts."), {})["result"] == 3
    assert tree(local) == before


def test_a_python_tool_cannot_go_back_to_other_files(local: LocalEnvironment) -> None:
    before = local.checkpoint().unwrap().id
    local.write("a.txt", "new").unwrap()
    read_only = ReadOnlyEnvironment(local)
    for answer in (read_only.rollback(before), read_only.delete_checkpoint(before)):
        assert not answer.ok
        assert (answer.code.value, answer.effects) == ("read_only", "none")
    assert local.read("a.txt").unwrap().content == "new"
    assert [one.id for one in local.checkpoints().unwrap().checkpoints] == [before]


def test_a_python_tool_that_writes_is_refused_too(local: LocalEnvironment) -> None:
    def note(text: str, environment: Environment) -> str:
        """Write a note."""
        environment.write("note.txt", text).unwrap()
        return "written"

    replies = [{"tool": "note", "args": {"text": "x"}}, {"tool": "finish", "args": {"summary": "done"}}]
    before = tree(local)
    brain = ScriptedModel(replies)
    registry = ActionRegistry([note, finish_action()])
    agent = Agent("Note.", action_registry=registry, generate_response=brain, environment=ReadOnlyEnvironment(local))
    steps = agent.execute("Note x.").steps
    assert [(step.envelope or {}).get("code") for step in steps] == ["read_only", None]
    assert tree(local) == before


def test_caches_of_tools_are_no_change(local: LocalEnvironment) -> None:
    env = ReadOnlyEnvironment(local)
    local.write("sub/m.py", "x = 1\n").unwrap()
    imported = "cd sub && PYTHONDONTWRITEBYTECODE= python3 -c 'import m; print(m.x)'"
    answer = run(env, f"({imported}) && mkdir .pytest_cache && touch .pytest_cache/x")
    assert answer["tool_executed"] is True, answer
    assert (Path(local.workspace) / "sub/__pycache__").is_dir()
    assert run(env, "touch sub/__pycache__/mine; touch sub/mine")["code"] == "read_only"


FORGED = """PYTHONDONTWRITEBYTECODE= python3 -c '
import importlib._bootstrap_external as inner, importlib.util, os
was = os.stat("sub/m.py")
code = inner._code_to_timestamp_pyc(compile("x = 666", "m.py", "exec"), int(was.st_mtime), was.st_size)
path = importlib.util.cache_from_source("sub/m.py")
os.makedirs(os.path.dirname(path))
open(path, "wb").write(code)
'"""


def ended(layer: Layer) -> None:
    layer.after_run(AgentRun(status=RunStatus.finished, reason="", memory=WindowMemory()))


def test_compiled_code_that_a_command_forged_is_not_run_by_the_next(local: LocalEnvironment) -> None:
    """A .pyc counts where time and size of its source fit, which any command can see to."""
    local.write("sub/m.py", "x = 1\n").unwrap()
    env = ReadOnlyEnvironment(local)
    layer = ReadOnly(env).for_run(None)
    answer = run(env, FORGED)
    assert answer["tool_executed"] is True, answer
    assert local.run("cd sub; python3 -c 'import m; print(m.x)'", session=None).unwrap().output == "666\n"
    ended(layer)
    assert local.run("cd sub; python3 -c 'import m; print(m.x)'", session=None).unwrap().output == "1\n"
    assert not (Path(local.workspace) / "sub/__pycache__").exists()


def test_compiled_code_goes_where_something_else_runs_too(local: LocalEnvironment) -> None:
    local.write("sub/m.py", "x = 1\n").unwrap()
    other = local.run("sleep 60", background=True).unwrap()
    env = ReadOnlyEnvironment(local)
    layer = ReadOnly(env).for_run(None)
    run(env, "mkdir -p sub/__pycache__; echo forged > sub/__pycache__/m.cpython-311.pyc")
    ended(layer)
    assert list((Path(local.workspace) / "sub/__pycache__").iterdir()) == []
    local.kill(other.id).unwrap()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "left",
    [
        "echo evil > ~/.bashrc",
        "mkdir -p ~/.local/lib && touch ~/.local/lib/evil.pth",
        "git() { echo evil; }; export PYTHONSTARTUP=evil; cd sub",
        "mkdir .pytest_cache && touch .pytest_cache/evil",
        "mkdir .hypothesis && ln -s /etc .hypothesis/evil",
        "touch $TMPDIR/evil.py",
        "mkdir $TMPDIR/d && touch $TMPDIR/d/x && chmod 0 $TMPDIR/d",
        "ln -s ~ $TMPDIR/..evil",
        "echo 'print(2)' > $TMPDIR/own.py; touch -d @1000000000 $TMPDIR/own.py",
        "rm $TMPDIR/own.py",
        "rm $TMPDIR/own.py; ln -s evil $TMPDIR/own.py",
        "chmod 777 $TMPDIR/tools/run.sh; mkfifo $TMPDIR/tools/pipe{1..50}",
        "rm -r $TMPDIR/tools; echo evil > $TMPDIR/tools",
        "cd $TMPDIR; seq 9000 | xargs touch",
        "cd $TMPDIR; mkdir -p tools/pkg; touch tools/pkg/evil.py; chmod 0 tools/pkg; ln tools/run.sh hard",
        "cd $TMPDIR; touch 'a b' $'c\\nd' -- -rf",
    ],
)
def test_nothing_is_left_that_the_next_could_execute(local: LocalEnvironment, left: str) -> None:
    look = "cd; find . $TMPDIR ~- -printf '%p %y %m %l\n' | sort; cat $TMPDIR/own.py $TMPDIR/tools/*; declare -f; env | sort"
    local.run("echo 'print(1)' > $TMPDIR/own.py; touch -d @1000000000 $TMPDIR/own.py; mkdir $TMPDIR/tools")
    local.run("echo tool > $TMPDIR/tools/run.sh; chmod 700 $TMPDIR/tools/run.sh; touch \"$TMPDIR/a*[b]?\\\\c\" $TMPDIR/-x")
    before = local.run(look, session="looking").unwrap().output, local.run("pwd; declare -f; env | sort").unwrap().output
    local.end_session("looking")
    env = ReadOnlyEnvironment(local)
    layer = ReadOnly(env).for_run(None)
    answer = run(env, left)
    assert answer["tool_executed"] is True, answer
    ended(layer)
    after = local.run(look, session="looking").unwrap().output, local.run("pwd; declare -f; env | sort").unwrap().output
    assert after == before


def test_real_changes_are_seen_beside_any_number_of_caches(local: LocalEnvironment) -> None:
    before = tree(local)
    env = ReadOnlyEnvironment(local)
    answer = run(env, "mkdir -p 0/__pycache__; cd 0/__pycache__; seq 3000 | xargs touch; touch ../../zzz")
    assert answer["code"] == "read_only"
    assert "zzz" in answer["error"]
    assert tree(local) == before


def test_where_something_else_runs_it_says_that_nothing_was_undone(local: LocalEnvironment) -> None:
    other = local.run("sleep 60", background=True).unwrap()
    env = ReadOnlyEnvironment(local)
    answer = run(env, "touch new")
    assert (answer["code"], answer["effects"]) == ("read_only", "partial")
    assert "NOT be undone" in answer["hint"]
    local.kill(other.id).unwrap()


def test_where_no_state_can_be_kept_no_command_is_run() -> None:
    ran: list[str] = []

    class Stateless(Environment):
        def execute(self, operation: str, args: Any, *, watch: Any = None) -> Any:
            ran.append(operation)
            return super().execute(operation, args)

    answer = run(ReadOnlyEnvironment(Stateless()), "true")
    assert (answer["code"], ran) == ("read_only", [])


def test_a_sandbox_that_is_lost_is_told_as_that() -> None:
    with FakeEnvironment(commands={"true": ""}) as fake:
        env = ReadOnlyEnvironment(fake)
        assert run(env, "true")["tool_executed"] is True
        fake.lose()
        assert run(env, "true")["code"] == "sandbox_unavailable"
        failure = env.run("true")
        assert not failure.ok
        assert failure.code.value == "sandbox_unavailable"


def test_nothing_is_kept_after_the_run(local: LocalEnvironment) -> None:
    spec = AgentSpec(
        name="one", description="One.", goals=(Goal("Look."),), actions=("run", "read", "finish"), read_only=True
    )
    steps = [{"tool": "run", "args": {"command": "touch new"}}, {"tool": "finish", "args": {"summary": "seen"}}]
    agent = build(spec, Setting(environment=local, hub=Hub(), brain=ScriptedModel(steps)))
    run = agent.execute("look")
    assert run.ok
    assert (run.steps[0].envelope or {})["code"] == "read_only"
    assert local.checkpoints().unwrap().checkpoints == ()


def test_two_runs_of_one_agent_share_no_state(local: LocalEnvironment) -> None:
    guards: list[Environment] = []
    kept: list[list[str]] = []

    def look(environment: Environment) -> str:
        """Read the file with a command."""
        guards.append(environment)
        output = environment.run("cat a.txt; touch $TMPDIR/mark").unwrap().output
        kept.append([checkpoint.id for checkpoint in local.checkpoints().unwrap().checkpoints])
        return output

    spec = AgentSpec(name="one", description="One.", goals=(Goal("Look."),), actions=("finish",), read_only=True)
    steps = [{"tool": "look", "args": {}}, {"tool": "finish", "args": {"summary": "seen"}}]
    agent = build(spec, Setting(environment=local, hub=Hub(), brain=ScriptedModel([*steps, *steps])))
    agent.actions.register(Action.of(look))
    assert (agent.execute("look").steps[0].envelope or {})["result"] == "a\n"
    late = guards[0].run("true")
    assert not late.ok
    assert (late.code.value, "the run is over" in late.error) == ("read_only", True)
    local.write("a.txt", "changed by its owner\n").unwrap()
    assert (agent.execute("look").steps[0].envelope or {})["result"] == "changed by its owner\n"
    assert [len(ids) for ids in kept] == [1, 1]
    assert kept[0] != kept[1]
    assert local.read("a.txt").unwrap().content == "changed by its owner\n"
    assert local.checkpoints().unwrap().checkpoints == ()


def test_a_run_that_a_fault_ends_undoes_what_it_left(local: LocalEnvironment) -> None:
    class Faulty(Layer):
        def after_answer(self, step: Step, memory: Memory) -> None:
            raise RuntimeError("a fault")

    spec = AgentSpec(name="one", description="One.", goals=(Goal("Look."),), actions=("run", "finish"), read_only=True)
    steps = [{"tool": "run", "args": {"command": "touch $TMPDIR/left"}}]
    agent = build(spec, Setting(environment=local, hub=Hub(), brain=ScriptedModel(steps), hooks=[Faulty()]))
    with pytest.raises(RuntimeError, match="a fault"):
        agent.execute("look")
    assert local.run("ls $TMPDIR", session=None).unwrap().output == ""
    assert local.checkpoints().unwrap().checkpoints == ()


def test_an_agent_without_a_spec_and_layers_of_one_run_leave_nothing_either(local: LocalEnvironment) -> None:
    steps = [{"tool": "run", "args": {"command": "touch $TMPDIR/left"}}, {"tool": "finish", "args": {"summary": "seen"}}]
    registry = ActionRegistry([SandboxAction("run"), finish_action()])
    brain = ScriptedModel([*steps, *steps])
    agent = Agent("Look.", action_registry=registry, generate_response=brain, environment=ReadOnlyEnvironment(local))
    for layers in (None, ()):
        run = agent.execute("look", layers=layers)
        assert [(step.envelope or {})["tool_executed"] for step in run.steps] == [True, True]
        assert local.run("ls $TMPDIR", session=None).unwrap().output == ""
        assert local.checkpoints().unwrap().checkpoints == ()


@pytest.mark.parametrize("own_sessions", [True, False])
def test_a_run_below_does_not_end_the_guard_of_the_run_above(local: LocalEnvironment, own_sessions: bool) -> None:
    script = [{"tool": "finish", "args": {"summary": "below"}}]

    def below(environment: Environment) -> str:
        """Run an agent below, then a command."""
        inner = OwnSessions(environment, "below", "above") if own_sessions else environment
        agent = Agent("Look.", action_registry=[finish_action()], generate_response=ScriptedModel(script), environment=inner)
        assert agent.execute("look").ok
        return environment.run("echo goes on").unwrap().output

    steps = [{"tool": "below", "args": {}}, {"tool": "finish", "args": {"summary": "done"}}]
    registry = ActionRegistry([Action.of(below), finish_action()])
    guarded = ReadOnlyEnvironment(local)
    run_above = Agent("Look.", action_registry=registry, generate_response=ScriptedModel(steps), environment=guarded).execute("t")
    assert (run_above.steps[0].envelope or {})["result"] == "goes on\n"
    assert local.checkpoints().unwrap().checkpoints == ()


def test_an_agent_that_reads_below_one_that_reads_leaves_no_checkpoint(local: LocalEnvironment) -> None:
    before = tree(local)
    spec = AgentSpec(name="one", description="One.", goals=(Goal("Look."),), actions=("run", "finish"), read_only=True)
    steps = [{"tool": "run", "args": {"command": "touch new"}}, {"tool": "finish", "args": {"summary": "seen"}}]

    def below(environment: Environment) -> str:
        """Run an agent below."""
        inner = OwnSessions(environment, "below", "above")
        run = build(spec, Setting(environment=inner, hub=Hub(), brain=ScriptedModel(steps))).execute("look")
        return str((run.steps[0].envelope or {})["code"])

    registry = ActionRegistry([Action.of(below), finish_action()])
    brain = ScriptedModel([{"tool": "below", "args": {}}, {"tool": "finish", "args": {"summary": "done"}}])
    run = Agent("Look.", action_registry=registry, generate_response=brain, environment=ReadOnlyEnvironment(local)).execute("t")
    assert (run.steps[0].envelope or {})["result"] == "read_only"
    assert tree(local) == before
    assert local.checkpoints().unwrap().checkpoints == ()
