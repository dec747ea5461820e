"""Inspect a sandbox for a post-mortem: its processes, and which files of the workspace changed.

A command in the sandbox lists the files, so its output is not trusted.
"""

from __future__ import annotations

from typing import Any

from sandbox.environment.call_errors import answered
from sandbox.frozen import dataclass
from sandbox.operations.waiting import ListedCommand

from .recorded import Recorded

LOOK_SECONDS = 5.0
MOST_BYTES = 4 << 20
MOST_FILES = 100

# GNU find prints inode and nanoseconds; busybox has no -printf, and its stat prints seconds.
_LIST_FILES = r"""if find . -maxdepth 0 -printf x >/dev/null 2>&1; then
  find . -xdev ! -type d -printf '%s %T@ %i %p\0' 2>/dev/null
elif find . -maxdepth 0 -exec stat -c %i {} + >/dev/null 2>&1; then
  find . -xdev ! -type d -exec stat -c '%s %Y %i %n' {} + 2>/dev/null | tr '\n' '\0'
else
  exit 3
fi
exit 0"""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of a workspace by path, each with what changes when it is written. ``problem`` says why they are not known."""

    files: dict[str, str]
    sizes: dict[str, int]
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Changes:
    """Files that were created, modified or deleted between two snapshots, sorted. ``problem`` says why they are not known."""

    created: tuple[str, ...] = ()
    modified: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    problem: str | None = None


def _output_of(env: Recorded, command: str, **options: Any) -> tuple[str, str | None]:
    """Return what the command prints, and a problem if there is one."""
    with env.unrecorded():
        ran = answered(
            env.run, command, session=None, timeout_seconds=LOOK_SECONDS, keep_output_bytes=MOST_BYTES, **options
        )
    if not ran.ok:
        return "", ran.error
    if ran.result.truncated:
        return "", f"it is too much to look at ({ran.result.output_bytes} bytes)"
    if ran.result.exit_code != 0:
        return "", f"the image lacks the programs for it ({ran.result.to_text()[-200:]})"
    return ran.result.stdout, None


def snapshot(env: Recorded) -> Snapshot:
    """Return the files of the workspace now."""
    printed, problem = _output_of(env, _LIST_FILES)
    files, sizes = {}, {}
    for line in printed.split("\0"):
        fields = line.split(" ", 3)
        if len(fields) == 4 and fields[0].isdecimal():
            path = fields[3].removeprefix("./")
            sizes[path] = int(fields[0])
            files[path] = " ".join(fields[:3])
    return Snapshot(files, sizes, problem)


def changes(before: Snapshot, after: Snapshot) -> Changes:
    """Return what differs. A file of the same size, time and inode counts as unchanged."""
    if problem := before.problem or after.problem:
        return Changes(problem=problem)
    old, new = before.files, after.files
    return Changes(
        created=tuple(sorted(new.keys() - old.keys())),
        modified=tuple(sorted(path for path in new.keys() & old.keys() if new[path] != old[path])),
        deleted=tuple(sorted(old.keys() - new.keys())),
    )


def processes(env: Recorded) -> tuple[tuple[ListedCommand, ...], str | None]:
    """Return the commands that have processes, each with their tree, and a problem if they are not known."""
    with env.unrecorded():
        listed = answered(env.processes)
    if not listed.ok:
        return (), listed.error
    return tuple(command for command in listed.result.commands if command.process_count), None
