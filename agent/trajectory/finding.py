"""Where recorded runs are found, and the parts of the agents that made them, to replay them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from agent.hub import Hub, Setting, build
from agent.hub.spec import EMPTY
from agent.model.scripted import ScriptedModel
from agent.registry import ActionRegistry
from agent.tools import standard_registry
from sandbox.environment.base import Environment
from sandbox.errors import ErrorCode, SandboxError

from .reading import from_file, of_record
from .recorded import RecordedRun
from .replaying import Equip


def find(run: str, log: Path | None = None) -> RecordedRun:
    """The run of a file of that name, or of that id in the event log. Raises SandboxError."""
    path = _file(run)
    if path is not None:
        return from_file(path)
    from agent.store import existing, record_of

    with existing(log, read_only=True) as events:
        return of_record(record_of(events, run), lambda ident: record_of(events, ident))


def is_own(run: str, log: Path | None = None) -> bool:
    """Whether this user's Gamebox wrote the run that ``find`` finds, and nobody changed it; of a file nobody knows."""
    if _file(run) is not None:
        return False
    from agent.store import existing, is_trusted

    with existing(log, read_only=True) as events:
        return is_trusted(events, events.found(run))


def _file(run: str) -> Path | None:
    """The file that is meant; None for what is the id of a run. Raises SandboxError where it is meant and not there."""
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
    """What equips a sandbox as the agent of a name is: with its kits and actions; the standard ones where it is not there."""

    def equip(name: str, sandbox: Environment) -> tuple[Environment, ActionRegistry]:
        if name not in hub.names():
            return sandbox, standard_registry()
        spec = replace(hub.load(name), brain=None, middleware=(), goals=(), inputs=EMPTY)
        agent = build(spec, Setting(environment=sandbox, hub=hub, brain=ScriptedModel([])))
        return agent.environment, agent.actions

    return equip
