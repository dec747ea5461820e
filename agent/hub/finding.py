"""Find the agents for the command's hub: the built-in ones, the user's, and those of other packages."""

from __future__ import annotations

import difflib
import importlib
import os
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from agent.own_files import config_folder
from sandbox.names import RULES, is_agent_name

from .files import located, read, scan
from .hub import Hub, Problem
from .spec import AgentSpec

GROUP = "gamebox.agents"
# What ``gamebox agent`` runs unless another is named.
DEFAULT_AGENT = "coding"
FOLDERS_VARIABLE = "GAMEBOX_AGENTS"
PROJECT_FOLDER = Path(".gamebox/agents")
_OWN = Path(__file__).with_name("agents")
# Agents whose brain is Python, each with SPECS.
_MODULES = ("agent.hub.agents.delegator", "agent.hub.agents.dummy.first")
Found = AgentSpec | Problem


def default(folders: Iterable[str | os.PathLike[str]] = (), *, python: bool = True) -> Hub:
    """Return all available agents, freshly loaded. Those that could not be loaded are in ``problems``, and never stop the
    others.

    If several have the same name, the first of these counts: ``folders`` (the later ones first), those of GAMEBOX_AGENTS, the
    user's own folder, the built-in ones. A package cannot replace any of them. The folder .gamebox/agents of a repository is
    read only if it is named: an agent from a repository must not be used unasked. With
    ``python=False``, for folders that a log named, their agents cannot name Python files. No such file is imported here.
    """
    hub = Hub()
    named = [Path(folder) for folder in folders]
    set_up = [Path(part) for part in os.environ.get(FOLDERS_VARIABLE, "").split(os.pathsep) if part]
    for folder in reversed(named):
        _take(hub, scan(folder, python=python))
    for folder in set_up:
        _take(hub, scan(folder))
    if (own := user_folder()).is_dir():
        _take(hub, scan(own))
    _take(hub, built_in())
    for where, found in packaged():
        _take(hub, found, where)
    _without_missing(hub)
    return hub


def user_folder() -> Path:
    """Return the folder of the user's own agents: ~/.config/gamebox/agents, or below XDG_CONFIG_HOME."""
    return config_folder() / "agents"


def built_in() -> Iterator[Found]:
    """Yield the built-in agents."""
    yield from read(sorted(_OWN.glob("*.md")) + sorted((_OWN / "micro").glob("*.md")), trusted=True)
    for name in _MODULES:
        yield from importlib.import_module(name).SPECS


def packaged() -> Iterator[tuple[str, list[Found]]]:
    """Yield what other packages provide as entry points of the group gamebox.agents: a spec, several, or a function
    that returns either.
    """
    for point in sorted(metadata.entry_points(group=GROUP), key=lambda p: (p.name, p.value)):
        of = f" of {point.dist.name}" if point.dist is not None else ""
        where = f"entry point {point.name}{of}"
        try:
            loaded: Any = point.load()
            specs = _specs(loaded() if callable(loaded) else loaded)
        except (Exception, SystemExit) as error:  # noqa: BLE001  another package may raise anything
            yield where, [Problem(where, f"it cannot be loaded: {type(error).__name__}: {error}"[:500])]
            continue
        yield where, specs


def _specs(loaded: Any) -> list[Found]:
    found = list(loaded) if isinstance(loaded, Sequence) and not isinstance(loaded, str) else [loaded]
    for spec in found:
        if not isinstance(spec, AgentSpec):
            raise TypeError(f"it gives {type(spec).__name__}, not an AgentSpec, a list of them, or a callable that returns one")
        if not is_agent_name(spec.name):
            raise ValueError(f"{spec.name!r:.100} cannot be the name of an agent: a name consists of {RULES['agent']}")
    return found


def _without_missing(hub: Hub) -> None:
    """Remove agents that delegate to unknown ones, until none is left: they could not be built."""
    while True:
        names = set(hub.names())
        for spec in map(hub.load, sorted(names)):
            children = spec.kit_options.get("delegate", {}).get("agents") or ()
            missing = next((name for name in children if name not in names), None)
            if missing is not None:
                break
        else:
            return
        hub.remove(spec.name)
        near = difflib.get_close_matches(missing, sorted(names), n=1)
        meant = f": did you mean {near[0]!r}?" if near else ""
        where = located(spec.source, "kit_options", "delegate", "agents", list(children).index(missing))
        hub.problems.append(Problem(where, f"it delegates to {missing[:80]!r}, but there is no such agent{meant}"))


def _take(hub: Hub, found: Iterable[Found], package: str | None = None) -> None:
    """Register agents, unless an earlier place has the name. Two of one name in one place are a problem, and so is a
    package's agent whose name is taken.
    """
    here: dict[str, str] = {}
    before = set(hub.names())
    for item in found:
        if isinstance(item, Problem):
            hub.problems.append(item)
        elif item.name in here or (package is not None and item.name in before):
            first = here.get(item.name) or hub.load(item.name).source
            hub.problems.append(Problem(package or item.source, f"the name {item.name!r} is already used by that of {first}"))
        else:
            here[item.name] = item.source
            if item.name not in before:
                hub.register(item)
