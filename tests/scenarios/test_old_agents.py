"""Agents written to the two old contracts, as their pages had it, at work in a sandbox on our loop; they know nothing of it."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agent import Budget, Hooks, Memory, RunStatus, ScriptedModel, Step
from agent.contracts import CommandManager, Event, State, early_spec, late_spec, old_modules
from agent.contracts.actions import (
    Action,
    AddTaskAction,
    AgentDelegateAction,
    AgentFinishAction,
    AgentRecallAction,
    AgentRejectAction,
    BrowseInteractiveAction,
    BrowseURLAction,
    CmdKillAction,
    CmdRunAction,
    FileReadAction,
    FileWriteAction,
    IPythonRunCellAction,
    MessageAction,
    ModifyTaskAction,
    NullAction,
)
from agent.contracts.late import LateKit
from agent.contracts.observations import (
    BrowserOutputObservation,
    CmdOutputObservation,
    ErrorObservation,
    IPythonRunCellObservation,
    Observation,
)
from agent.core.run import AgentRun
from agent.hub import Hub, Setting, build
from sandbox import DockerEnvironment

pytestmark = pytest.mark.engine
SERVER = "echo up; sleep 60"


class EarlyAgent:
    """The early contract: ``step``, ``add_event``, ``search_memory``; its script goes on when the output it wants has come."""

    def __init__(self, events: Sequence[Any]) -> None:
        self.script: Iterator[Any] = iter(events)
        self.history: list[Event] = []
        self.seen: list[list[int]] = []

    def step(self, cmd_mgr: CommandManager) -> Event:
        self.seen.append(list(cmd_mgr.background_commands))
        event: Event = next(self.script)
        return event

    def add_event(self, event: Event) -> None:
        self.history.append(event)

    def search_memory(self, query: str) -> list[str]:
        return [json.dumps(e.to_dict()) for e in self.history if query in str(e.args)]


def run(spec: Any, env: Any, task: str = "do it", **options: Any) -> AgentRun:
    return build(spec, Setting(environment=env, hub=Hub(), **options)).execute(task)


def test_an_agent_of_the_early_contract(env: DockerEnvironment) -> None:
    agent = EarlyAgent([
        Event("think", {"thought": "look first"}),
        Event("write", {"path": "early.txt", "contents": "one\ntwo\n"}),
        Event("read", {"path": "early.txt"}),
        Event("run", {"command": "wc -l early.txt; exit 3"}),
        Event("run", {"command": SERVER, "background": True}),
        Event("recall", {"query": "wc -l"}),
        Event("fly", {}),
        {"action": "run", "args": {"command": "sleep 0.5"}},
        Event("kill", {"id": 0}),
        Event("read", {"path": "missing.txt"}),
        Event("browse", {"url": "http://127.0.0.1:9/"}),
        Event("finish"),
    ])  # fmt: skip
    outcome = run(early_spec("early", lambda: agent), env)
    assert outcome.status is RunStatus.finished, outcome
    told = [(e.action, e.args) for e in agent.history]
    assert told[0] == ("message", {"message": "do it"})
    assert told[1][0] == "think"
    assert told[3] == ("output", {"output": "", "path": "early.txt"})
    assert told[5] == ("output", {"output": "one\ntwo\n", "path": "early.txt"})
    assert (told[7][1]["output"], told[7][1]["exit_code"]) == ("2 early.txt\n", 3)
    assert told[9][1]["command_id"] == 0
    assert "wc -l" in told[[name for name, _ in told].index("recall") + 1][1]["memories"][0]
    assert "up\n" in "".join(args["output"] for name, args in told if name == "output")
    assert [args["error"][:24] for name, args in told if name == "error"] == [
        "There is no action 'fly'", "ERROR path_not_found: 'm", "ERROR connection_failed:",
    ]  # fmt: skip
    assert told[-1][0] == "finish"
    assert agent.seen == [[]] * 5 + [[0]] * 4 + [[]] * 3
    assert not [p for p in env.processes().unwrap().commands if p.running and p.command == SERVER]


class LateAgent:
    """The late contract: a model that is told the memory of what happened, and answers with an action as JSON."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm

    def step(self, state: State) -> Action:
        from agent.contracts import action_from_dict

        told = [[a.to_memory(), o.to_memory()] for a, o in state.history]
        messages = [{"role": "user", "content": f"{state.get_current_user_intent()}\n{json.dumps(told)}"}]
        reply = self.llm.completion(messages=messages, stop=["</action>"], temperature=0.0)
        return action_from_dict(json.loads(reply["choices"][0]["message"]["content"]))

    def search_memory(self, query: str) -> list[str]:
        return []


def decide(prompt: Any) -> str:
    """A model that does what it reads, and knows nothing else: it counts the numbers of a file with a mistake in between."""
    text = prompt.messages[0]["content"]
    if "path_not_found" not in text:
        chosen = {"action": "read", "args": {"path": "numbers"}}
    elif match := re.search(r'"observation": "run", "content": "(\d+)', text):
        chosen = {"action": "finish", "args": {"outputs": {"sum": int(match[1])}}}
    else:
        chosen = {"action": "run", "args": {"command": "awk '{s+=$1} END {print s}' numbers.txt"}}
    return json.dumps(chosen) + "</action> and so on"


def test_an_agent_of_the_late_contract_with_its_model(env: DockerEnvironment) -> None:
    env.write("numbers.txt", "1\n2\n39\n").unwrap()
    model = ScriptedModel([decide] * 5)
    outcome = run(late_spec("late", LateAgent), env, "sum the numbers", brain=model)
    assert outcome.status is RunStatus.finished, outcome
    assert outcome.result == {"sum": 42}
    assert [step.tool for step in outcome.steps] == ["read", "run", "finish"]
    assert "sum the numbers" in model.prompts[0].messages[0]["content"]


class Script:
    """An agent of the late contract that goes by a script and keeps what it was shown."""

    def __init__(self, *actions: Any) -> None:
        self.actions = list(actions)
        self.new: list[list[tuple[Action, Observation]]] = []
        self.state: State | None = None

    def step(self, state: State) -> Action:
        self.state = state
        self.new.append(state.updated_info)
        action: Action = self.actions[state.iteration - 1]
        return action

    def search_memory(self, query: str) -> list[str]:
        return [f"found {query}"]


def test_every_action_of_the_late_contract(env: DockerEnvironment) -> None:
    answers = iter(["blue"])
    script = Script(
        AddTaskAction("", "the first", ["inner"]), AddTaskAction("7", "nowhere"), ModifyTaskAction("0.0", "in_progress"),
        MessageAction("which colour?", wait_for_response=True), FileWriteAction("a.txt", "0\n1\n2\n3\n"),
        FileWriteAction("a.txt", "one\n", 1, 3), FileReadAction("a.txt"), FileReadAction("a.txt", 1, 2), AgentRecallAction("x"),
        CmdRunAction("echo out; echo err >&2; exit 2"), CmdRunAction(SERVER, background=True), NullAction(), CmdKillAction(0),
        IPythonRunCellAction("print(6 * 7)"), BrowseURLAction("http://127.0.0.1:9/"), BrowseInteractiveAction("click('3')"),
        AgentDelegateAction("CoderAgent", {"task": "x"}), AgentFinishAction({"done": True}),
    )  # fmt: skip
    outcome = run(late_spec("script", lambda: script), env, ask_user=lambda question: next(answers))
    assert outcome.status is RunStatus.finished, outcome
    state = script.state
    assert state is not None
    told = [(a.type, o) for a, o in state.history]
    kinds = [
        (name, o.type) for name, o in told if (name, o.type) != ("null", "run")
    ]  # that is output, whenever it came
    assert kinds == [
        ("message", "null"), ("add_task", "null"), ("add_task", "error"), ("modify_task", "null"), ("message", "null"),
        ("message", "null"), ("write", "write"), ("write", "write"), ("read", "read"), ("read", "read"), ("recall", "recall"),
        ("run", "run"), ("run", "run"), ("null", "null"), ("kill", "run"), ("run_ipython", "run_ipython"),
        ("browse", "browse"), ("browse_interactive", "browse"), ("delegate", "error"), ("finish", "null"),
    ]  # fmt: skip
    assert [a.content for a, _ in state.history if isinstance(a, MessageAction)] == ["do it", "which colour?", "blue"]
    assert [a.source for a, _ in state.history if isinstance(a, MessageAction)] == ["user", "agent", "user"]
    contents = {f"{name}{n}": o.content for n, (name, o) in enumerate(told)}
    assert (contents["read8"], contents["read9"]) == ("0\none\n3\n", "one\n")
    ran = next(o for name, o in told if name == "run")
    assert isinstance(ran, CmdOutputObservation)
    assert (sorted(ran.content.split()), ran.exit_code, ran.error) == (["err", "out"], 2, True)
    up = [o for name, o in told if name == "null" and isinstance(o, CmdOutputObservation)]
    assert "".join(o.content for o in up) == "up\n"
    assert (up[0].command_id, up[0].command) == (0, SERVER)
    assert next(o.content for name, o in told if name == "run_ipython") == "42\n"
    assert [t.to_string() for t in state.root_task.subtasks] == ["💪 0 the first\n    💪 0.0 inner"]
    assert all(o.content for _, o in told if isinstance(o, ErrorObservation))
    assert script.new[0] == state.history[:1]  # each step is told what came since the last one
    assert [pair for new in script.new for pair in new] == state.history[:-1]
    assert state.outputs == {"done": True}


SITE = """
from http.server import BaseHTTPRequestHandler, HTTPServer
class Pages(BaseHTTPRequestHandler):
    def do_GET(self):
        links = "<a href='/two'>second</a> <a href='/gone'>third</a>" if self.path == "/one" else "x " * 15000
        self.send_response(404 if self.path == "/gone" else 302 if self.path == "/moved" else 200)
        if self.path == "/moved":
            self.send_header("location", "/one")
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(f"<title>page {self.path}</title><p>text of {self.path}</p>{links}<p>end</p>".encode())
    def log_message(self, *args): pass
server = HTTPServer(("127.0.0.1", 8123), Pages)
print("up", flush=True)
server.serve_forever()
"""


def seen(script: Script) -> list[Observation]:
    assert script.state is not None
    return [o for a, o in script.state.history if a.type in ("run_ipython", "browse", "browse_interactive")]


def test_cells_of_the_late_contract_share_a_kernel(env: DockerEnvironment) -> None:
    script = Script(
        IPythonRunCellAction("x = 41"), IPythonRunCellAction("print('said'); x + 1"), IPythonRunCellAction("1 / 0"),
        IPythonRunCellAction("import os; os.write(1, b'last words'); os._exit(1)"), IPythonRunCellAction("x"),
        AgentFinishAction(), IPythonRunCellAction("'x' in dir()"), AgentFinishAction(),
    )  # fmt: skip
    made = build(late_spec("script", lambda: script), Setting(environment=env, hub=Hub()))
    assert made.execute("count").ok
    first, second, third, fourth, fifth = seen(script)
    assert [type(o) for o in seen(script)] == [IPythonRunCellObservation] * 5
    assert (first.content, second.content) == ("", "said\n42\n")
    assert "ZeroDivisionError" in third.content
    assert "its variables are lost" in fourth.content
    assert "NameError" in fifth.content
    script.actions = script.actions[6:]
    assert made.execute("count").ok  # another run begins with a kernel of its own
    assert [o.content for o in seen(script)] == ["False\n"]


def test_a_browser_of_the_late_contract_has_tabs_and_links(env: DockerEnvironment) -> None:
    env.write("site.py", SITE).unwrap()
    at = "http://127.0.0.1:8123"
    server = env.run("python3 site.py", background=True).unwrap()
    env.wait_for(id=server.id, log="up").unwrap()
    calls = [
        f'goto("{at}/moved")', 'click("1")', "scroll(0, 1)", "go_back()", f'new_tab()\ngoto("{at}/two")', "tab_focus(0)\nclick(2)",
        "tab_focus(1)\ntab_close()", 'send_msg_to_user("look")', 'fill("3", "x")', "goto(open('/etc/passwd'))", 'click("77")',
        "goto()", "go_forward()", 'goto("http://127.0.0.1:9/")', "noop()",
    ]  # fmt: skip
    script = Script(*map(BrowseInteractiveAction, calls), BrowseURLAction(f"{at}/one"), AgentFinishAction())
    outcome = run(late_spec("script", lambda: script), env)
    assert outcome.status is RunStatus.finished, outcome
    pages = dict(zip([*calls, "browse"], seen(script), strict=True))
    assert all(isinstance(page, BrowserOutputObservation) for page in pages.values())

    def told(call: str) -> tuple[Any, ...]:
        page = pages[call]
        assert isinstance(page, BrowserOutputObservation)
        assert page.last_browser_action == (call if call != "browse" else f"goto('{at}/one')")
        return page.url, page.status_code, page.error, page.open_pages_urls, page.active_page_index

    one, two, gone = f"{at}/one", f"{at}/two", f"{at}/gone"
    assert told(calls[0]) == (one, 200, False, [one], 0)
    assert f"[1] second: {two}" in pages[calls[0]].content
    assert told(calls[1]) == (two, 200, False, [two], 0)
    assert "scroll(0, 1) shows what follows" in pages[calls[1]].content
    assert "text of" not in pages[calls[2]].content
    assert "end" in pages[calls[2]].content
    assert told(calls[3]) == (one, 200, False, [one], 0)
    assert told(calls[4]) == (two, 200, False, [one, two], 1)
    assert told(calls[5]) == (gone, 404, True, [gone, two], 0)
    assert told(calls[6]) == (gone, 404, True, [gone], 0)
    assert told(calls[7])[0] == gone
    for call in calls[8:14]:
        assert told(call)[1:3] == (0, True), call
        assert told(call)[3] == [gone]
    assert "This browser cannot do 'fill'" in pages[calls[8]].content
    assert told(calls[14]) == (gone, 404, True, [gone], 0)
    last = pages["browse"]
    assert isinstance(last, BrowserOutputObservation)
    assert told("browse") == (one, 200, False, [one], 0)
    nodes = last.axtree_object["nodes"]
    assert [n["name"]["value"] for n in nodes if n["role"]["value"] == "link"] == ["second", "third"]
    assert [n.get("browsergym_id") for n in nodes] == [None, None, "1", "2"]
    assert "axtree_object" not in last.to_memory()["extras"]


def test_what_the_user_says_in_mid_run_is_told(env: DockerEnvironment) -> None:
    class Interrupting(Hooks):
        def on_result(self, step: Step, memory: Memory) -> None:
            if step.number == 1:
                memory.add_memory({"role": "user", "content": "make it blue"})

    script = Script(CmdRunAction("true"), CmdRunAction("true"), AgentRejectAction({"reason": "no paint"}))
    outcome = run(late_spec("script", lambda: script), env, hooks=[Interrupting()])
    assert [[a.message for a, _ in new if isinstance(a, MessageAction)] for new in script.new] == [
        ["do it"],
        ["make it blue"],
        [],
    ]
    assert (outcome.status, outcome.result) == (RunStatus.rejected, {"reason": "no paint"})


def test_an_agent_that_answers_nonsense_is_told_and_bounded(env: DockerEnvironment) -> None:
    script = Script(*[{"tool": "run", "args": {"command": "touch /tmp/evil"}}] * 20)
    outcome = run(late_spec("script", lambda: script), env, budget=Budget(max_invalid_replies=3))
    assert outcome.status is RunStatus.no_valid_action
    state = script.state
    assert state is not None
    assert ["'action' is missing" in o.content for _, o in state.history] == [False, True, True, True]
    assert env.run("test -e /tmp/evil").unwrap().exit_code != 0


def test_the_state_of_a_run_is_taken_over_by_another_process(env: DockerEnvironment) -> None:
    first = Script(CmdRunAction("echo kept"), MessageAction("so far"))
    agent = build(late_spec("script", lambda: first), Setting(environment=env, hub=Hub()))
    stopped = agent.execute("do it", max_iterations=2)
    assert stopped.status is RunStatus.max_iterations
    kit = next(kit for kit in agent.environment.kits if isinstance(kit, LateKit))  # type: ignore[attr-defined]
    stored = json.loads(json.dumps(kit.snapshot()))
    second = Script(*[AgentFinishAction()] * 3)
    later = build(late_spec("script", lambda: second), Setting(environment=env, hub=Hub()))
    later.environment.kits[0].restore(stored)  # type: ignore[attr-defined]
    outcome = later.execute("do it")
    assert outcome.status is RunStatus.finished
    assert second.state is not None
    assert [o.content for _, o in second.state.history if o.type == "run"] == ["kept\n"]
    assert second.state.iteration == 3
    with pytest.raises(ValueError, match="not the state of a run"):
        kit.restore({"state": 1})


OLD_MODULE = """
from opendevin.controller.agent import Agent
from opendevin.controller.state.state import State
from opendevin.events.action import Action, AgentFinishAction, CmdRunAction
from opendevin.events.observation import CmdOutputObservation
from opendevin.llm.llm import LLM


class EchoAgent(Agent):
    def __init__(self, llm: LLM):
        super().__init__(llm)

    def step(self, state: State) -> Action:
        for action, observation in state.updated_info:
            if isinstance(observation, CmdOutputObservation):
                return AgentFinishAction(outputs={"said": observation.content})
        return CmdRunAction(command=f"echo {state.get_current_user_intent()}")


Agent.register("EchoAgent", EchoAgent)
"""


def test_a_module_of_that_time_is_imported_and_run_as_it_is(
    env: DockerEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "echo_agent_of_old.py").write_text(OLD_MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    with old_modules():
        module = importlib.import_module("echo_agent_of_old")
    assert not [name for name in sys.modules if name.split(".")[0] == "opendevin"]
    outcome = run(late_spec("echo", module.EchoAgent), env, "hello")
    assert (outcome.status, outcome.result) == (RunStatus.finished, {"said": "hello\n"})
    with pytest.raises(ValueError, match="already registered"):
        module.Agent.register("EchoAgent", module.EchoAgent)
    with pytest.raises(ValueError, match="No agent class"):
        module.Agent.get_cls("Nobody")
