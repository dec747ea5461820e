"""The files of a new agent: its declaration, a tool, and a test that passes."""

from __future__ import annotations

import shutil
from pathlib import Path

from agent.hub.finding import default
from sandbox.errors import ErrorCode, SandboxError
from sandbox.names import RULES, is_agent_name

DECLARATION = """\
---
name: NAME
description: Answers questions about dates.
inputs: {task: string}
actions: ["tools:days_between", finish]
---
Answer this question: {{ inputs.task }}

## way_of_working
Count days with days_between, never in your head. Then call finish with the answer.
"""

TOOLS = '''\
"""The tools of NAME. They run on this host, not in the sandbox."""

from datetime import date


def days_between(first: date, last: date) -> int:
    """Count the days from one date to another.

    Args:
        first: The first day, such as 2026-02-28.
        last: The last day.
    """
    return (last - first).days
'''

TEST = '''\
"""Tests of NAME with a scripted model. They need neither a key nor Docker."""

from pathlib import Path

from agent import Environment, ScriptedModel
from agent.hub import Setting, build, default


def test_it_counts_days() -> None:
    script = [
        {"tool": "days_between", "args": {"first": "2026-02-01", "last": "2026-03-01"}},
        {"tool": "finish", "args": {"summary": "28 days"}},
    ]
    task = "How many days does February 2026 have?"
    hub = default([Path(__file__).parent])
    setting = Setting(environment=Environment(), hub=hub, brain=ScriptedModel(script), inputs={"task": task})
    run = build(hub.load("NAME"), setting).execute(task)
    assert run.ok
    assert run.steps[0].envelope["result"] == 28
'''


def write_agent(name: str, parent: Path) -> list[Path]:
    """Write the folder ``parent/name`` with a new agent of that name, and return its files.

    Raises SandboxError ``invalid_arguments`` for a name that no agent can have or that another one has, and if the folder exists
    or cannot be made; nothing is overwritten.
    """
    if not is_agent_name(name):
        raise SandboxError(
            ErrorCode.invalid_arguments,
            f"{name[:100]!r} cannot be the name of an agent.",
            f"A name consists of {RULES['agent']}.",
        )
    hub = default(python=False)
    if name in hub.names():
        raise SandboxError(
            ErrorCode.invalid_arguments,
            f"There is an agent {name!r} already ({hub.load(name).source}).",
            "Choose another name; gamebox hub ls lists those that are taken.",
        )
    folder = parent / name
    try:
        folder.mkdir()
    except FileExistsError as error:
        raise SandboxError(
            ErrorCode.invalid_arguments, f"{folder} exists already.", "Choose another name. Nothing was written."
        ) from error
    except OSError as error:
        raise SandboxError(
            ErrorCode.invalid_arguments,
            f"The folder {folder} cannot be made in {parent.absolute()}: {error.strerror}.",
            "Start in a folder that you can write to.",
        ) from error
    texts = {f"{name}.md": DECLARATION, "tools.py": TOOLS, f"test_{name.replace('-', '_')}.py": TEST}
    try:
        for file, text in texts.items():
            (folder / file).write_text(text.replace("NAME", name), encoding="utf-8")
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return [folder / file for file in texts]
