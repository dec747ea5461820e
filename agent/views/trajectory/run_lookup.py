"""Find a recorded run by its id or file, and what equips a sandbox to replay it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from agent.core.registry import ActionRegistry
from agent.hub import Hub, Setting, build
from agent.hub.python_parts import without_python
from agent.hub.spec import EMPTY
from agent.model.scripted import ScriptedModel
from agent.record.store import RunRecord
from agent.tools import standard_registry
from sandbox.environment.base import Environment
from sandbox.errors import ErrorCode, SandboxError

from .replay import Equip
from .run_file import from_file


def find(run: str, log: Path | None = None) -> RunRecord:
    """Return the run of a file, or the one with that id in the event log, with its subruns. Raises SandboxError."""
    path = _file(run)
    if path is not None:
        return from_file(path)
    from agent.record.store import existing, tree_of

    with existing(log, read_only=True) as events:
        return tree_of(events, run)


def is_own(run: str, log: Path | None = None) -> bool:
    """Return whether this user's Gamebox wrote the run that ``find`` finds, and nobody changed it; False for a file."""
    if _file(run) is not None:
        return False
    from agent.record.store import existing, is_trusted

    with existing(log, read_only=True) as events:
        return is_trusted(events, events.found(run))


def _file(run: str) -> Path | None:
    """Return the file, None if ``run`` is an id. Raises SandboxError if it can only be a file, and is missing."""
    try:
        found = Path(run).is_file()
    except OSError:  # longer than a name can be
        found = False
    if found:
        return Path(run)
    if os.sep in run or run.endswith(".json"):
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"There is no file {run[:300]}.",
            "Give a file that gamebox runs export --format json wrote, or the id of a run: see gamebox runs ls.",
        )
    return None


def equip_from(hub: Hub) -> Equip:
    """Return what gives a sandbox the kits and actions of an agent; the standard ones if there is no such agent."""

    def equip(name: str, sandbox: Environment) -> tuple[Environment, ActionRegistry]:
        if name not in hub.names():
            return sandbox, standard_registry()
        # A log chooses the arguments of the calls: no tool of the user's is called with them on this host.
        spec = replace(without_python(hub.load(name)), brain=None, middleware=(), goals=(), inputs=EMPTY)
        agent = build(spec, Setting(environment=sandbox, hub=hub, brain=ScriptedModel([])))
        return agent.environment, agent.actions

    return equip
