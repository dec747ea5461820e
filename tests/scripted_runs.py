"""How tests of the command begin a run that follows a script, and what it leaves."""

from __future__ import annotations

from pathlib import Path

from agent.record.store import EventLog
from sandbox.docker.engine.client import connect
from sandbox.docker.kept.inventory import Listed, sandboxes


def coding(repo: Path, steps: str, task: str = "t") -> list[str]:
    """The arguments of ``gamebox`` for the agent coding at work on ``repo`` by the script ``steps``, without a container."""
    return ["agent", task, "--agent", "coding", "--repo", str(repo), "--script", steps, "--local"]


def left_of(log: Path) -> list[Listed]:
    """The sandboxes of the runs in this log."""
    if not log.exists():
        return []
    with EventLog(log) as events:
        names = {f"run-{run}" for run in events.runs()}
    return [each for each in sandboxes(connect(), every=True) if each.name in names]
