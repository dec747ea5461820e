"""The dummy itself, and the agent that rejects what it is asked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from agent.core.goals import Goal
from agent.hub.spec import AgentSpec

from . import old, second

if TYPE_CHECKING:
    from agent.hub.hub import Setting

    from .expecting import Answers, Expected, ExpectingScript

FOLDER = "gamebox-dummy"
REFUSER = "dummy_refuser"
_SERVER = f"python3 -u -m http.server --bind 127.0.0.1 --directory {FOLDER} 0"
ACTIONS = (
    "think",
    "make_dir",
    "write",
    "read",
    "edit",
    "list",
    "search",
    "move",
    "run",
    "end_session",
    "wait_for",
    "browse",
    "browse_interact",
    "screenshot",
    "logs",
    "processes",
    "kill",
    "send",
    "screen",
    "resize",
    "usage",
    "message",
    "ask_user",
    "plan",
    "recall",
    "ipython",
    "delegate",
    "delete",
    "finish",
)
NOBODY = "Nobody answers a dummy."


def script() -> list[Expected]:
    """Return the steps: files, commands and their sessions, a server, interactive programs, a plan, cells, other
    agents.
    """
    return [*_files(), *_commands(), *_server(), *_talking(), *_words(), *_cells(), *_others(), *_end()]


def _files() -> list[Expected]:
    from .expecting import Expected

    path = f"{FOLDER}/hello.sh"
    return [
        Expected("think", {"thought": "One of everything."}, {"tool_executed": True}),
        Expected("make_dir", {"path": FOLDER}, _good(path=FOLDER, created=True)),
        Expected("write", {"path": path, "content": "echo hello\n"}, _good(path=path, size_bytes=11, created=True)),
        Expected("read", {"path": path}, _good(content="echo hello\n", total_lines=1, truncated=False)),
        Expected("edit", {"path": path, "old_text": "hello", "new_text": "hello, world"}, _good(replacements=1)),
        Expected("list", {"path": FOLDER}, _good(entries=[{"path": re.compile("hello.sh$"), "type": "file"}])),
        Expected(
            "search", {"pattern": "wor.d", "path": FOLDER}, _good(matches=[{"line": 1, "text": "echo hello, world"}])
        ),
        Expected("move", {"source": path, "target": f"{FOLDER}/greet.sh"}, _good(target=f"{FOLDER}/greet.sh")),
        Expected("read", {"path": path}, {"tool_executed": False, "code": "path_not_found", "effects": "none"}),
    ]


def _commands() -> list[Expected]:
    from .expecting import Expected

    session = {"session": "dummy"}
    return [
        Expected("run", {"command": f"sh {FOLDER}/greet.sh"}, _good(exit_code=0, output="hello, world\n")),
        Expected("run", {"command": "exit 3", "session": "dummy-exits"}, _good(exit_code=3)),
        Expected("run", {"command": f"cd {FOLDER}; export GREETING=hi", **session}, _good(exit_code=0)),
        Expected("run", {"command": 'echo "$GREETING $(ls)"', **session}, _good(output="hi greet.sh\n")),
        Expected("end_session", session, _good()),
    ]


def _server() -> list[Expected]:
    from .expecting import Expected

    def server(answers: Answers) -> Mapping[str, Any]:
        return {"id": _result(answers, -1)["id"]}

    def page(answers: Answers) -> Mapping[str, Any]:
        return {"url": f"http://127.0.0.1:{_result(answers, -1)['groups'][0]}/greet.sh"}

    def same(back: int) -> Callable[[Answers], Mapping[str, Any]]:
        return lambda answers: {"id": _result(answers, back)["id"]}

    return [
        Expected("run", {"command": _SERVER, "background": True}, _good(running=True)),
        Expected(
            "wait_for",
            lambda a: {**server(a), "log": r"port (\d+)"},
            _good(running=True, groups=[re.compile("^[0-9]+$")]),
        ),
        Expected("browse", page, _good(status=200, text=re.compile("echo hello, world"))),
        # Neither the default image nor a LocalEnvironment has a browser.
        Expected("browse_interact", {"steps": [{"action": "back"}]}, {"tool_executed": False, "code": "browser_not_available"}),
        Expected("screenshot", {}, {"tool_executed": False, "code": "browser_not_available"}),
        Expected("logs", same(-4), _good(running=True, content=re.compile("GET /greet.sh"))),
        Expected("processes", same(-5), {"tool_executed": True}),
        Expected("kill", same(-6), _good(survivors=0, already_ended=False)),
    ]


def _talking() -> list[Expected]:
    from .expecting import Expected

    def it(back: int, **more: Any) -> Callable[[Answers], Mapping[str, Any]]:
        return lambda answers: {"id": _result(answers, back)["id"], **more}

    asks = "read -p 'name? ' name; echo \"hello, $name\""
    return [
        Expected("run", {"command": asks, "wait_seconds": 0.5}, _good(running=True)),
        Expected(
            "send", it(-1, text="dummy\n", wait_seconds=10), _good(output=re.compile("hello, dummy"), exit_code=0)
        ),
        Expected(
            "run", {"command": "cat", "pty": True, "wait_seconds": 0.5, "rows": 10, "cols": 40}, _good(running=True)
        ),
        Expected("send", it(-1, text="on a screen\n", wait_seconds=1), _good(running=True, terminal=True)),
        Expected("screen", it(-1), _good(text=re.compile("^on a screen\non a screen"), rows=10, cols=40)),
        Expected("resize", it(-1, rows=20, cols=60), {"tool_executed": True}),
        Expected("kill", it(-2), _good(survivors=0, already_ended=False)),
    ]


def _words() -> list[Expected]:
    from .expecting import Expected

    plan = {"parent": "", "goal": "see that plans work", "subtasks": ["add a task", "close it"]}
    early = {"summary": "This is too early."}
    return [
        Expected(
            "message",
            {"content": "Half of it is done."},
            {"tool_executed": True, "result": re.compile("Nobody is there")},
        ),
        Expected("ask_user", {"question": "Is anybody there?"}, {"tool_executed": True, "result": NOBODY}),
        Expected("recall", {"message": 1}, _good(recalled=[{"message": 1, "role": "user"}])),
        Expected("recall", {"query": "greet.sh", "limit": 1}, _good(recalled=[{"text": re.compile("greet")}])),
        Expected("add_task", plan, {"tool_executed": True, "result": re.compile(r"0\.1 \[open\] close it$")}),
        Expected("finish", early, {"tool_executed": False, "code": "tasks_open", "next_tool": "modify_task"}),
        Expected(
            "modify_task",
            {"task_id": "0", "state": "completed"},
            {"result": re.compile(r"0\.1 \[completed\] close it$")},
        ),
    ]


def _cells() -> list[Expected]:
    from .expecting import Expected

    return [
        Expected("ipython", {"code": "answer = 6 * 7\nanswer"}, _good(ok=True, output="42\n")),
        Expected("ipython", {"code": "print(answer + 1)"}, _good(ok=True, output="43\n")),
        Expected("ipython_restart", {}, {"tool_executed": True, "result": re.compile("^A fresh kernel is running")}),
        Expected("ipython", {"code": "answer"}, _good(ok=False, output=re.compile("NameError"))),
    ]


def _others() -> list[Expected]:
    from .expecting import Expected

    def rejected(reason: str) -> dict[str, Any]:
        result = {"status": "rejected", "outputs": {"reason": reason}, "usage": {"calls": 0}}
        return {"tool_executed": False, "code": "delegate_not_finished", "result": result}

    def done(**outputs: Any) -> dict[str, Any]:
        return _good(status="finished", outputs=outputs, usage={"calls": 0})

    return [
        Expected("delegate", {"agent": REFUSER, "inputs": {"task": "Refuse."}}, rejected(_REASON)),
        Expected("delegate", {"agent": second.NAME, "inputs": {}}, done(summary=second.DONE)),
        Expected("delegate", {"agent": old.NAME, "inputs": {"end": "finish"}}, done(reason=old.DONE)),
        Expected("delegate", {"agent": old.NAME, "inputs": {"end": "reject"}}, rejected(old.DONE)),
    ]


def _end() -> list[Expected]:
    from .expecting import Expected

    return [
        Expected("usage", {}, {"tool_executed": True}),
        Expected("delete", {"path": FOLDER, "recursive": True}, _good(entries_deleted=7)),
        Expected(
            "finish", {"summary": "One of everything was done, and answered as it should be."}, {"tool_executed": True}
        ),
    ]


_REASON = "It is asked only to see how a task is rejected."


def _good(**result: Any) -> dict[str, Any]:
    return {"tool_executed": True, "result": result}


def _result(answers: Answers, at: int) -> Mapping[str, Any]:
    result: Mapping[str, Any] = answers[at]["result"]
    return result


def _dummy(setting: Setting) -> ExpectingScript:  # noqa: ARG001  a spec's brain is made of a setting
    from .expecting import ExpectingScript

    return ExpectingScript(script())


def _refuser(setting: Setting) -> ExpectingScript:  # noqa: ARG001
    from .expecting import Expected, ExpectingScript

    return ExpectingScript([Expected("reject", {"reason": _REASON})])


SPECS = (
    AgentSpec(
        name="dummy",
        description="Calls every action from a script and checks each answer, to test everything end to end. Needs no model.",
        goals=(Goal(1, "task", "Carry out the script, and check each answer."),),
        actions=ACTIONS,
        kit_options={
            "delegate": {"agents": [REFUSER, second.NAME, old.NAME]},
            "ask_user": {"absent": "reply", "reply": NOBODY},
        },
        asks_user=False,
        language="structured",
        memory_options={"limit": 10_000},
        brain=_dummy,
        delegable=False,
        source="built in",
    ),
    AgentSpec(
        name=REFUSER,
        description="Rejects every task; part of the dummy.",
        goals=(Goal(1, "task", "Reject the task."),),
        actions=("reject",),
        language="structured",
        brain=_refuser,
        delegable=False,
        listed=False,
        source="built in",
    ),
    *second.SPECS,
    *old.SPECS,
)
