"""What a result is a result of: an agent with all that shapes it, and a task with all its files, each as a digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from agent.hub import AgentSpec
from agent.hub.python_parts import python_files
from agent.repo.beneath import Folder, read_file
from agent.repo.ignoring import Rules
from agent.repo.snapshot import check_room, state_in, states_under
from sandbox.envelope import jsonable
from sandbox.errors import SandboxError

from .tasks import BatchTask, wrong

DIGEST_CHARS = 16
# Where an agent is found and who sees it, and what counts in a form of its own.
_NOT_DECLARED = ("source", "python_folder", "listed", "brain", "goals")
MOST_SCRIPT_BYTES = 64 << 20
# What a result's identity calls the task's own part; all else is the same for every task of a batch.
TASK = "task"


def digest(value: Any) -> str:
    """Return a short digest of JSON-ready data."""
    text = json.dumps(jsonable(value), sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_CHARS]


def digest_of_file(path: Path) -> str:
    """Return a short digest of a file. Raises SandboxError ``invalid_configuration`` if it cannot be read."""
    try:
        return hashlib.sha256(read_file(path, MOST_SCRIPT_BYTES)).hexdigest()[:DIGEST_CHARS]
    except OSError as error:
        raise wrong(f"The file {path} cannot be read: {error.strerror}.", "Name a file that exists.") from error


def digest_of_agent(spec: AgentSpec) -> str:
    """Return a short digest of everything that declares an agent; a brain in Python counts by its name.

    Its Python files count by what is in them. Raises SandboxError ``invalid_configuration`` if one cannot be read.
    """
    declared = {f.name: getattr(spec, f.name) for f in fields(spec) if f.name not in _NOT_DECLARED}
    if files := python_files(spec):
        declared["python"] = {name: digest_of_file(path) for name, path in files.items()}
    goals = [(goal.priority, goal.name, goal.description) for goal in spec.goals]
    brain = None if spec.brain is None else getattr(spec.brain, "__qualname__", type(spec.brain).__qualname__)
    return digest({**declared, "goals": goals, "brain": brain})


def digest_of_task(task: BatchTask, repos: dict[Path, str] | None = None) -> str:
    """Return a short digest of a task's fields and files: repository, script, verifier, solution. Their paths do not
    count.

    ``repos`` holds digests of repositories that several tasks share. Raises SandboxError ``invalid_configuration`` for
    a file that cannot be read.
    """
    fields = {**asdict(task), "repo": None, "script": None, "solution": None}
    fields["env"] = sorted(task.env)  # without the values: they may be keys, which change
    if task.verifier is not None:
        fields["verifier"] = {
            **asdict(task.verifier),
            "folder": _folder(task.verifier.folder),
            "env": sorted(task.verifier.env),
        }
    fields["script"] = None if task.script is None else digest_of_file(task.script)
    fields["solution"] = None if task.solution is None else _folder(task.solution)
    if task.repo is not None:
        known = {} if repos is None else repos
        if task.repo not in known:
            known[task.repo] = _repository(task.repo)
        fields["repo"] = known[task.repo]
    return digest(fields)


def _folder(folder: Path) -> str:
    return digest({path: asdict(state) for path, state in states_under(folder).items()})


def _repository(repo: Path) -> str:
    """Return a digest of what would be copied into the sandbox. A folder that cannot be copied counts by its name:
    running the task will report it.
    """
    try:
        rules = Rules(repo)
        check_room(repo, rules.found(), Path(gettempdir()))
        with Folder(repo) as held:
            states = {path: state_in(held, path) for path in rules.files()}
    except (OSError, SandboxError):
        return digest(str(repo))
    return digest({path: None if state is None else asdict(state) for path, state in states.items()})


def differences(earlier: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Describe how an earlier result's settings differ from this batch's. The task's own content is left out."""
    if now and not earlier:
        return ["it does not record what it belongs to"]
    both = [(name, earlier.get(name, ""), now.get(name, "")) for name in sorted({*earlier, *now} - {TASK})]
    return [_difference(name, before, is_now) for name, before, is_now in both if before != is_now]


def _difference(name: str, before: str, now: str) -> str:
    return f"{name.replace('_', ' ')} was {before or 'none'}, is {now or 'none'}"
