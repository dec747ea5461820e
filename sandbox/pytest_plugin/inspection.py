"""What is looked at in a sandbox for a post-mortem: its processes, and which files of the workspace changed.

All of it goes through the sandbox's own commands, so what they print is taken for what a sandbox may print: anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .recorded import Recorded

LOOK_SECONDS = 5.0
MOST_BYTES = 4 << 20
MOST_PROCESSES = 100
MOST_FILES = 100
ARGS_CHARS = 200

# The fallback is for images without ps: /proc alone, by what a shell can do itself.
_LIST_PROCESSES = """echo self $$
ps -e -o pid,ppid,stat,rss,args 2>/dev/null || for stat in /proc/[0-9]*/stat; do
  read -r pid name state parent rest <"$stat" && echo "$pid $parent $state 0 $name"
done 2>/dev/null
true"""
# GNU find tells inode and nanoseconds; busybox has no -printf and its stat tells seconds.
_LIST_FILES = r"""if find . -maxdepth 0 -printf x >/dev/null 2>&1; then
  find . -xdev ! -type d -printf '%s %T@ %i %p\0' 2>/dev/null
elif find . -maxdepth 0 -exec stat -c %i {} + >/dev/null 2>&1; then
  find . -xdev ! -type d -exec stat -c '%s %Y %i %n' {} + 2>/dev/null | tr '\n' '\0'
else
  exit 3
fi
exit 0"""


@dataclass(frozen=True, slots=True)
class Process:
    """One process; ``depth`` is how far it is below the first that is shown, ``rss_kib`` its memory (0: not known)."""

    pid: int
    parent: int
    state: str
    rss_kib: int
    args: str
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of a workspace by path, each with what changes when it is written; ``problem`` says why that is not known."""

    files: dict[str, str]
    sizes: dict[str, int]
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Changes:
    """Files that were made, changed or removed between two snapshots, sorted; ``problem`` says why that is not known."""

    created: tuple[str, ...] = ()
    modified: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    problem: str | None = None


def _look(env: Recorded, command: str, **options: Any) -> tuple[str, str | None]:
    """What the command prints, and what is wrong with it."""
    with env.unrecorded():
        ran = env.run(command, session=None, timeout_seconds=LOOK_SECONDS, keep_output_bytes=MOST_BYTES, **options)
    if not ran.ok:
        return "", ran.error
    if ran.result.truncated:
        return "", f"it is too much to look at ({ran.result.output_bytes} bytes)"
    if ran.result.exit_code != 0:
        return "", f"the image lacks the programs for it ({ran.result.to_text()[-200:]})"
    return ran.result.stdout, None


def snapshot(env: Recorded) -> Snapshot:
    """The files of the workspace now."""
    printed, problem = _look(env, _LIST_FILES)
    files, sizes = {}, {}
    for line in printed.split("\0"):
        fields = line.split(" ", 3)
        if len(fields) == 4 and fields[0].isdecimal():
            path = fields[3].removeprefix("./")
            sizes[path] = int(fields[0])
            files[path] = " ".join(fields[:3])
    return Snapshot(files, sizes, problem)


def changes(before: Snapshot, after: Snapshot) -> Changes:
    """What differs; a file of the same size, time and inode counts as the same."""
    if problem := before.problem or after.problem:
        return Changes(problem=problem)
    old, new = before.files, after.files
    return Changes(
        created=tuple(sorted(new.keys() - old.keys())),
        modified=tuple(sorted(path for path in new.keys() & old.keys() if new[path] != old[path])),
        deleted=tuple(sorted(old.keys() - new.keys())),
    )


def processes(env: Recorded) -> tuple[tuple[Process, ...], str | None]:
    """The processes of the sandbox as a tree, without the guest's own and the look itself; and why they are not known."""
    printed, problem = _look(env, _LIST_PROCESSES, cwd="/")
    listed, own = {}, 0
    for line in printed.splitlines():
        fields = line.split(None, 4)
        if len(fields) == 2 and fields[0] == "self" and not own:
            own = _number(fields[1])
        elif len(fields) == 5 and fields[0].isdecimal() and fields[1].isdecimal():
            process = Process(int(fields[0]), int(fields[1]), fields[2], _number(fields[3]), fields[4])
            listed[process.pid] = process
    return tuple(_tree(listed.values(), env.root_pid, own))[:MOST_PROCESSES], problem


def _tree(listed: Iterable[Process], root: int | None, own: int) -> list[Process]:
    children: dict[int, list[Process]] = {}
    guest = None
    for process in listed:
        children.setdefault(process.parent, []).append(process)
        guest = process.args if process.pid == root else guest
    shown: list[Process] = []
    # By hand and with what was seen: a sandbox may print circles, and chains deeper than a stack.
    left, seen = [(child, 0) for child in reversed(children.get(root or 0, []))], {own}
    while left:
        process, depth = left.pop()
        if process.pid in seen:
            continue
        seen.add(process.pid)
        is_guest = process.args == guest  # it and its forks
        if not is_guest:
            args = _without_wrapping(process.args)[:ARGS_CHARS]
            shown.append(Process(process.pid, process.parent, process.state, process.rss_kib, args, depth))
        below = depth if is_guest else depth + 1
        left += [(child, below) for child in reversed(children.get(process.pid, []))]
    return shown


def _without_wrapping(args: str) -> str:
    """The command itself, where a shell carries it in what keeps the state of its session."""
    _, wrapped, command = args.rpartition("exit $__gamebox_status ")
    return f"sh: {command.partition(' ')[2]}" if wrapped else args


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
