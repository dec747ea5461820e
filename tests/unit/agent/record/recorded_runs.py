"""Recorded runs for tests: one real kind of each, and any that hypothesis can think of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from agent import Agent, Budget, FunctionCallingLanguage, Goal, ScriptedModel, standard_registry
from agent.core.budget import Usage
from agent.record.store import RunRecord, StepRecord
from agent.views.trajectory.run_file import of_run
from sandbox import LocalEnvironment

SCRIPT: list[Any] = [
    {
        "thought": "look\nfirst",
        "tool": "run",
        "args": {"command": "echo start > log.txt; mkdir -p sub; cd sub; export WHO=me; exit 3"},
    },
    {"tool": "write", "args": {"path": "sub/a.py", "content": "x = 1\nEND\ny = 'ü'\n"}},
    {"tool": "write", "args": {"path": "no newline", "content": "it's $HOME `id`"}},
    {"tool": "edit", "args": {"path": "sub/a.py", "old_text": "x = 1", "new_text": "x = '2'\nz = \"$x\""}},
    {"tool": "run", "args": {"command": "pwd | sed 's/.*\\///' > where; echo $WHO >> where; cat a.py >> where"}},
    "no action at all",
    {"tool": "read", "args": {"path": "missing"}},
    {"tool": "make_dir", "args": {"path": "made/deep"}},
    {"tool": "move", "args": {"source": "no newline", "target": "made/deep/moved"}},
    {"tool": "run", "args": {"command": "cat", "session": None}},
    {"tool": "run", "args": {"command": "echo begun > begun; sleep 30; echo over > over", "timeout_seconds": 1}},
    {"tool": "run", "args": {"command": "sleep 40", "background": True}},
    {"tool": "delete", "args": {"path": "log.txt"}},
    {"tool": "finish", "args": {"summary": "all </script> done"}},
]


def real_run(workspace: Path, script: list[Any] | None = None) -> RunRecord:
    """A run of the standard tools in a folder of this host."""
    with LocalEnvironment(workspace=workspace) as environment:
        brain = ScriptedModel(SCRIPT if script is None else script)
        agent = Agent([Goal("g")], FunctionCallingLanguage(), standard_registry(), brain, environment, budget=Budget())
        return of_run(agent.execute("do <b>it</b>"), task="do <b>it</b>", agent="tester", ident="r1")


# Such runs are large values: fewer of them, and no haste on a busy machine.
FEW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
TEXT = st.text(st.characters(), max_size=8) | st.sampled_from([
    "</script><script>alert(1)</script>", "\x1b[31mred\x1b[0m", "a\u202eb", "\ud800", "'; rm -rf ~; '", "END\nEND_\n",
    "$(id) `id` \\",    "a\nb\r\nc", "--- x\n@@ -1 +1 @@\n-a\n+b",
])  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda v: st.lists(v, max_size=3) | st.dictionaries(TEXT, v, max_size=3),
    max_leaves=3,
)
ARGS = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(("command", "path", "content", "old_text", "new_text", "source", "target", "id", "stdin", "cwd"), TEXT),
)
ENVELOPES = st.none() | st.builds(
    lambda ok, result, error, effects: (
        {"tool_executed": True, "result": result, "timestamp": "2026-01-01T00:00:00.000+00:00", "duration_ms": 1.0, "notices": []}
        if ok
        else {"tool_executed": False, "error": error, "code": "io_error", "hint": "", "effects": effects, "result": result}
    ),
    st.booleans(), JSON, TEXT, st.sampled_from(["none", "partial", "unknown"]),
)  # fmt: skip
TOOLS = (
    st.none()
    | TEXT
    | st.sampled_from(["run", "write", "edit", "move", "delete", "make_dir", "read", "delegate", "kill", "finish"])
)
USAGES = st.builds(
    Usage,
    calls=st.integers(0, 3),
    input_tokens=st.integers(0, 999),
    cost_usd=st.floats(0, 9),
    unpriced_calls=st.integers(0, 1),
)


@st.composite
def runs(draw: st.DrawFn, depth: int = 1) -> RunRecord:
    """Any run, hostile ones above all."""
    steps = [
        StepRecord.of(number, at=draw(st.sampled_from(["", "2026-01-01T00:00:00.000+00:00", "yesterday"])), thought=draw(TEXT),
            tool=draw(TOOLS), args=draw(ARGS | JSON), envelope=draw(ENVELOPES), usage=draw(st.none() | USAGES),
            seconds=draw(st.floats(0, 99)),
        )
        for number in range(1, draw(st.integers(0, 3)) + 1)
    ]  # fmt: skip
    children = draw(st.lists(runs(depth=depth - 1), max_size=1)) if depth else []
    return RunRecord(
        run=draw(TEXT), task=draw(TEXT), agent=draw(TEXT), options={"model": draw(TEXT)},
        began=draw(TEXT), status=draw(st.none() | TEXT),
        reason=draw(TEXT), result=draw(JSON), usage=draw(USAGES), seconds=draw(st.floats(0, 999)), steps=steps,
        subruns=children,
    )  # fmt: skip
