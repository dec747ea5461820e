"""The tasks of a batch: lines of a JSON file, or folders in Harbor's format."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import field, fields
from pathlib import Path
from typing import Any

from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass
from sandbox.names import RULES, is_task_id

MOST_FILE_BYTES = 64 << 20
_HINT = 'A line is {"id": "...", "task": "...", "repo": "FOLDER", "checks": ["COMMAND"]} or {"harbor": "FOLDER"}.'


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifier:
    """A folder that the agent never sees. It is copied to /tests when the agent has ended, and its ``test.sh`` writes
    the reward.

    ``fresh`` runs it in a sandbox that the agent never touched, with a copy of the agent's folder. Otherwise it runs
    in the agent's sandbox, where nothing of the agent runs any more.
    """

    folder: Path
    seconds: float = 600.0
    env: Mapping[str, str] = field(default_factory=dict)
    fresh: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTask:
    """One task.

    ``image``, ``seconds`` (at most, of the agent's run), ``memory`` and ``cpus`` are those of the batch if they are
    None. ``folder`` is where the agent works in the sandbox, the workspace by default. ``allow`` are network rules
    that a task may ask for. ``checks`` are commands that must exit with 0 when the agent has ended: in its sandbox, or
    with ``fresh`` in one that it never touched, with a copy of its folder. ``history`` copies the commits of ``repo``,
    too. ``declared`` is the text of the task's file, which may say more than these fields.
    """

    id: str
    task: str
    repo: Path | None = None
    image: str | None = None
    profile: str = "default"
    folder: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    memory: str | None = None
    cpus: float | None = None
    network: str = "none"
    allow: tuple[str, ...] = ()
    seconds: float | None = None
    script: Path | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    checks: tuple[str, ...] = ()
    fresh: bool = False
    verifier: Verifier | None = None
    solution: Path | None = None
    history: bool = False
    declared: str = ""


def load_tasks(path: Path, env: Mapping[str, str] | None = None) -> list[BatchTask]:
    """Read the tasks of a .jsonl file, of a folder of Harbor tasks, or of one such task. ``env`` are variables that
    they may ask for.

    Raises SandboxError ``invalid_configuration`` that names the line or the file.
    """
    from .harbor import harbor_task, is_harbor_task

    if path.is_dir():
        folders = (
            [path] if is_harbor_task(path) else sorted(p for p in path.iterdir() if p.is_dir() and is_harbor_task(p))
        )
        if not folders:
            raise wrong(
                f"{path} contains no task: no folder with a task.toml.",
                "Name a file of tasks, or a folder of tasks in Harbor's format.",
            )
        tasks = [harbor_task(folder, env=env) for folder in folders]
    else:
        tasks = list(_of_lines(path, env))
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise wrong(f"Two tasks have the id {task.id!r}.", "Results are stored by id: give each task its own.")
        seen.add(task.id)
    if not tasks:
        raise wrong(f"{path} contains no task.", _HINT)
    return tasks


def _of_lines(path: Path, env: Mapping[str, str] | None) -> Iterator[BatchTask]:
    from .harbor import harbor_task

    try:
        if path.stat().st_size > MOST_FILE_BYTES:
            raise wrong(f"{path} is larger than {MOST_FILE_BYTES >> 20} MiB.", "Split it into several batches.")
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise wrong(f"The tasks {path} cannot be read: {error}.", _HINT) from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            data = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise wrong(f"{where} is not JSON: {error}.", _HINT) from error
        if isinstance(data, dict) and isinstance(data.get("harbor"), str) and set(data) <= {"harbor", "id"}:
            yield harbor_task(path.parent / data["harbor"], data.get("id"), env)
        else:
            yield _task(data, path.parent, where)


_KINDS: dict[str, Any] = {
    "id": str,
    "task": str,
    "repo": str,
    "image": str,
    "profile": str,
    "seconds": (int, float),
    "script": str,
    "memory": str,
    "cpus": (int, float),
    "inputs": dict,
    "checks": list,
    "fresh": bool,
    "history": bool,
}


def _task(data: Any, base: Path, where: str) -> BatchTask:
    if not isinstance(data, dict):
        raise wrong(f"{where} is not an object.", _HINT)
    for name, value in data.items():
        if name not in _KINDS:
            near = difflib.get_close_matches(name, _KINDS, n=1)
            raise wrong(
                f"{where} has a field {name!r}, which tasks do not have.",
                f"Did you mean {near[0]!r}?" if near else _HINT,
            )
        if not isinstance(value, _KINDS[name]) or isinstance(value, bool) != (_KINDS[name] is bool):
            raise wrong(f"{where}: {name} is {value!r:.80}.", _HINT)
    if not data.get("task", "").strip():
        raise wrong(f"{where} has no task.", _HINT)
    checked_id(data.get("id", ""), where)
    checks = data.get("checks", [])
    if not all(isinstance(check, str) for check in checks):
        raise wrong(f"{where}: checks are {checks!r:.80}.", "Give commands as strings.")
    if data.get("seconds", 1) <= 0 or data.get("cpus", 1) <= 0:
        raise wrong(f"{where}: seconds and cpus must be positive.", _HINT)
    paths = {name: base / data[name] for name in ("repo", "script") if name in data}
    known = {f.name for f in fields(BatchTask)}
    rest = {name: value for name, value in data.items() if name in known and name not in {*paths, "checks"}}
    return BatchTask(**rest, **paths, checks=tuple(checks))


def checked_id(ident: Any, where: str) -> str:
    """Return the id, which will name a folder. Raises SandboxError ``invalid_configuration``."""
    if not is_task_id(ident):
        raise wrong(f"{where} has the id {ident!r:.120}.", f"An id consists of {RULES['task']}.")
    return ident


def wrong(message: str, hint: str) -> SandboxError:
    """Return the error for an invalid task."""
    return SandboxError(ErrorCode.invalid_configuration, message, hint)
