"""A run of each built-in agent, carried out once more in a fresh sandbox: nothing differs; and what was changed is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from agent import Budget
from agent.core.loop.hooks import Hooks, Step
from agent.hub import Setting, build, default
from agent.hub.spec import EMPTY
from agent.memory import Memory
from agent.record.store import RunRecord, StepRecord
from agent.views.trajectory.replay import replay
from agent.views.trajectory.run_file import of_run
from agent.views.trajectory.run_lookup import equip_from
from sandbox import DockerEnvironment

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

FILE = "def add(a, b):\n    return a - b\n\n\nprint(add(2, 1))\n"
SERVER = "python3 -u -m http.server --bind 127.0.0.1 0"
# What a shell says otherwise each time: times, processes, names of temporary files, commits, addresses.
PASSING = (
    "date; date +%s; ls -l; mktemp; (sleep 0.01 & ); sleep 0.5; python3 -c 'import time; print(object(), time.ctime())'; "
    "python3 -m unittest 2>&1; git init -q . 2>/dev/null && git add -A && "
    "git -c user.name=a -c user.email=a@example.com commit -m one; git log | cat; rm -rf .git"
)
Call = tuple[str, Callable[[list[Any]], Mapping[str, Any]] | Mapping[str, Any]]


def last(name: str) -> Callable[[list[Any]], Mapping[str, Any]]:
    """The id of the last command in the background, with that call's further arguments."""

    def args(results: list[Any]) -> Mapping[str, Any]:
        ident = next(
            (r["id"] for r in reversed(results) if isinstance(r, dict) and r.get("running") and r.get("id")), "c1"
        )
        more: Mapping[str, Mapping[str, Any]] = {"wait_for": {"log": r"port (\d+)"}, "send": {"eof": True}}
        return {"id": ident, **more.get(name, {})}

    return args


def served(results: list[Any]) -> Mapping[str, Any]:
    """The page of the server that was waited for."""
    port = next((r["groups"][0] for r in reversed(results) if isinstance(r, dict) and r.get("groups")), "1")
    return {"url": f"http://127.0.0.1:{port}/a.py"}


# One after the other, as far as an agent has the action.
CALLS: tuple[Call, ...] = (
    ("think", {"thought": "One after the other."}),
    ("write", {"path": "a.py", "content": FILE}),
    ("create", {"path": "b.py"}),
    ("make_dir", {"path": "d/e"}),
    ("run", {"command": PASSING}),
    ("run", {"command": f"printf '%s' '{FILE}' > a.py; python3 a.py; cd / && pwd"}),
    ("run", {"command": "(exit 3)"}),
    ("run", {"command": "no-such-program", "session": "other"}),
    ("run", {"command": "echo begun; sleep 60", "timeout_seconds": 1, "session": "slow"}),
    ("run", {"command": SERVER, "background": True, "cwd": "/workspace"}),
    ("wait_for", last("wait_for")),
    ("browse", served),
    ("logs", last("logs")),
    ("processes", {}),
    ("kill", last("kill")),
    ("open", {"path": "a.py"}),
    ("goto", {"line": 2}),
    ("scroll_down", {}),
    ("scroll_up", {}),
    ("search_dir", {"pattern": "return"}),
    ("search_file", {"pattern": "return"}),
    ("find_file", {"name": "*.py"}),
    ("ipython", {"code": "import time, os\nprint(time.ctime(), os.getpid() > 0)\nx = 20\nx + 1"}),
    ("ipython", {"code": "raise ValueError(x)"}),
    ("ipython_restart", {}),
    ("read", {"path": "/workspace/a.py"}),
    ("read", {"path": "missing"}),
    ("edit", {"path": "/workspace/a.py", "old_text": "a - b", "new_text": "a + b"}),
    ("list", {"path": "/workspace"}),
    ("search", {"pattern": "add", "path": "/workspace"}),
    ("move", {"source": "/workspace/a.py", "target": "/workspace/c.py"}),
    ("delete", {"path": "/workspace/d", "recursive": True}),
    ("usage", {}),
    ("end_session", {"session": "other"}),
    ("add_task", {"parent": "", "goal": "all of it", "subtasks": ["a part"]}),
    ("modify_task", {"task_id": "0", "state": "completed"}),
    ("message", {"content": "So far."}),
    ("recall", {"query": "so far"}),
    ("submit", {"summary": "done"}),
    ("finish", {}),
    ("reject", {"reason": "enough"}),
)


class Answers(Hooks):
    """What was answered so far."""

    def __init__(self) -> None:
        self.results: list[Any] = []

    def on_result(self, step: Step, memory: Memory) -> None:
        self.results.append((step.envelope or {}).get("result"))


class Walker:
    """Says one call after the other of those that the agent has."""

    def __init__(self, has: Mapping[str, Any], answers: Answers) -> None:
        self.calls: Iterator[Call] = iter(
            [call for call in CALLS if call[0] in has and self._takes(has[call[0]], call[1])]
        )
        self.has, self.answers = has, answers

    @staticmethod
    def _takes(action: Any, args: Any) -> bool:
        """Whether the action has these arguments: without a time limit a command may be none that ends."""
        return callable(args) or action.name == "edit" or set(args) <= set(action.parameters["properties"])

    def __call__(self, prompt: Any) -> Any:
        tool, args = next(self.calls)
        given = dict(args(self.answers.results) if callable(args) else args)
        schema = self.has[tool].parameters
        given = {name: value for name, value in given.items() if name in schema["properties"]}
        for name in schema.get("required", ()):
            kind = schema["properties"][name].get("type")
            given.setdefault(name, {"boolean": True, "integer": 1, "array": [], "object": {}}.get(kind, "it"))
        return {"tool": tool, "args": given}


def carried_out(name: str, environment: DockerEnvironment) -> RunRecord:
    hub = default()
    spec = replace(hub.load(name), brain=None, language="structured", middleware=(), goals=(), inputs=EMPTY, stuck=None)
    answers = Answers()
    probe = build(spec, Setting(environment=environment, hub=hub, brain=lambda _: None))
    brain = Walker({each.name: each for each in probe.actions.get_actions()}, answers)
    setting = Setting(environment=environment, hub=hub, brain=brain, hooks=(answers,), budget=Budget(max_iterations=60))
    run = build(spec, setting).execute("one of everything")
    assert run.iterations > 3 or name in ("delegator", "dummy_refuser", "manager"), run.reason
    return of_run(run, task="one of everything", agent=name)


# Together they have every action and every language; the others have a part of what "coding" has.
REPLAYED = ("codeact", "coding", "delegator", "dummy_old", "mini", "monologue", "planner", "postgres", "swe_agent", "verifier")


@pytest.mark.parametrize("name", REPLAYED)
def test_a_faithful_replay_shows_no_difference(name: str, docker_env: Callable[..., DockerEnvironment]) -> None:
    image = default().load(name).image or "gamebox/base"
    run = carried_out(name, docker_env(image=image))
    found = [difference for _, difference in replay(run, docker_env(image=image), equip_from(default())) if difference]
    assert found == []


def test_what_was_changed_is_shown(docker_env: Callable[..., DockerEnvironment]) -> None:
    """A file, an exit code, an output, a notice: each in turn was another one then."""
    run = carried_out("coding", docker_env())

    def changed(step: StepRecord, **result: Any) -> StepRecord:
        assert step.envelope is not None
        assert step.executed is not None
        return replace(step, executed=replace(step.executed, envelope={**step.envelope, "result": {**step.result, **result}}))

    steps = {step.number: step for step in run.steps}
    at = {
        tool: next(n for n, step in steps.items() if step.tool == tool and step.succeeded)
        for tool in ("run", "read", "search")
    }
    exits = next(n for n, step in steps.items() if step.result.get("exit_code") == 3)
    steps[at["run"]] = changed(steps[at["run"]], output="3\n/\n")
    steps[at["read"]] = changed(steps[at["read"]], content=FILE.replace("print", "Print"))
    steps[exits] = changed(steps[exits], exit_code=4)
    other = replace(run, steps=list(steps.values()))
    found = {step.number: d for step, d in replay(other, docker_env(), equip_from(default())) if d}
    assert sorted(found) == sorted({at["run"], at["read"], exits})
    assert found[exits].lines == ("-exit_code: 4", "+exit_code: 3")
    assert "-3" in found[at["run"]].lines
    assert "-Print(add(2, 1))" in found[at["read"]].lines
