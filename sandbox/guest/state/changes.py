"""Which files of the workspace changed while a command ran: states kept from one look to the next, by lstat alone.

A look costs about 2.5 ms per 1,000 entries. It happens before a command's reply, so it has a budget: what cannot be looked at in
time is told with a later command that has more of it. ``changes`` on the host looks at everything and has no budget.
"""

from __future__ import annotations

import os
import stat
import threading
import time

from ..files.walking import DIRECTORY
from ..loop.context import Place
from ..protocol.leftovers import LEFTOVERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    States = dict[bytes, int]

# About 200 bytes of the guest's memory each.
ENTRIES = 20_000
LEVELS = 200  # what is deeper is not looked into: of the folder there its own times are told
# A look may cost a tenth of the command's own time, within these bounds, as CPU time: on a busy machine the same look takes longer
# by the clock. By the clock it is given up after CLOCK_SECONDS all the same.
LEAST_SECONDS, MOST_SECONDS = 0.003, 0.05
CLOCK_SECONDS = 0.05
BASE_SECONDS = 1.0  # for the first look, in a worker
NAMES, NAME_CHARS = 10, 100
LAST = 500
_TYPE = 0o170000
_SKIPPED = frozenset(name.encode() for name in LEFTOVERS)
# git writes it for every question it is asked: it is not told at all.
_UNTOLD = b".git"


class TooMuchError(Exception):
    """The tree is too large to be looked at within the budget."""


class TooLateError(TooMuchError):
    """The look took too long by the clock alone: the machine is busy, and a next look may well be in time."""


class Tracker:
    """The states of the workspace at the last look. ``look`` and ``begin`` are the reactor's, the rest any worker's.

    All of them act on files as the sandbox's user: what that user cannot see is not told.
    """

    def __init__(self, place: Place, wanted: bool) -> None:
        self._workspace = place.workspace
        self._wanted = wanted
        self._lock = threading.Lock()  # workers hold it for long looks: the reactor does not wait for it
        self._states: States | None = None
        self._cost = 0.0
        self._since: str | None = None
        self._running = 0
        self._crowded = False
        self.last: dict[str, Any] = {"id": None, "created": [], "modified": [], "deleted": []}

    def begin(self) -> None:
        """A command is about to start: what was there before it is not its work."""
        self._crowded = self._crowded or self._running > 0
        self._running += 1
        if not self._wanted or self._states is not None:
            return
        if self._cost <= MOST_SECONDS:
            self._first(MOST_SECONDS)
        else:
            self._cost *= 0.9  # so that a tree that has become smaller is tried again

    def _first(self, seconds: float) -> None:
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._states = self._seen(b"", seconds)
        except TooLateError:
            pass
        except TooMuchError:
            self._cost = BASE_SECONDS
        finally:
            self._lock.release()

    def pass_over(self, ident: str) -> None:
        """A command ended and nobody is there to be told: what it changed is told later."""
        self._running -= 1
        self._since = self._since or ident

    def look(self, ident: str, seconds: float, left: bool) -> dict[str, Any] | None:
        """The notice of what changed, after a command that took ``seconds``; None where nothing did, or it is told later.

        ``left`` says that processes of it go on.
        """
        self._running -= 1
        budget = min(MOST_SECONDS, max(LEAST_SECONDS, seconds / 10))
        if self._states is None or not self._lock.acquire(blocking=False):
            return None
        try:
            if self._cost > budget:
                self._cost *= 0.9  # so that a tree that has become smaller is tried again
                raise TooMuchError
            before, self._states = self._states, self._seen(b"", budget)
        except TooMuchError:
            self._since = self._since or ident
            return None
        finally:
            self._lock.release()
        notice = self._compared(before, self._states, ident)
        self._since, self._crowded = None, left or self._running > 0
        return notice

    def _compared(self, before: States, now: States, ident: str) -> dict[str, Any] | None:
        created = _leaves(_without_git(now.keys() - before.keys()))
        deleted = _leaves(_without_git(before.keys() - now.keys()))
        modified = sorted(_without_git({path for path, state in now.items() if before.get(path, state) != state}))
        kinds = {"created": created, "modified": modified, "deleted": deleted}
        self.last = {"id": ident, **{kind: [_shown(path) for path in paths[:LAST]] for kind, paths in kinds.items()}}
        if not (created or modified or deleted):
            return None
        marked = [
            f"{mark} {_shown(path)[:NAME_CHARS]}"
            for mark, paths in zip("+~-", kinds.values(), strict=True)
            for path in paths[:NAMES]
        ]
        counts = {kind: len(paths) for kind, paths in kinds.items()}
        return {
            "code": "files_changed", **counts, "names": marked[:NAMES], "since": self._since, "others": self._crowded,
        }  # fmt: skip

    # --- what the sandbox's own operations change ------------------------------------------------------------------
    def absorb(self, *paths: str) -> None:
        """Operations on files changed these paths: no command did."""
        if not self._wanted:
            return
        with self._lock:
            for path in paths:
                try:
                    self._absorb(path)
                except (OSError, ValueError):  # no path at all
                    continue

    def _absorb(self, path: str) -> None:
        full = os.path.join(self._workspace, path.encode("utf-8", "surrogateescape"))
        folder, name = os.path.split(os.path.normpath(full))
        real = os.path.join(os.path.realpath(folder), name)
        if real == self._workspace:
            self._again()
        elif self._states is not None and real.startswith(self._workspace + b"/"):
            self._take(self._states, real[len(self._workspace) + 1 :])

    def _again(self) -> None:
        try:
            self._states = self._seen(b"", BASE_SECONDS)
        except TooMuchError:
            self._states = None

    def _take(self, states: States, path: bytes) -> None:
        """The present states of ``path``, of all below it, and of the folders above it."""
        if stat.S_ISDIR(states.get(path, stat.S_IFDIR) & _TYPE):
            for below in [p for p in states if p.startswith(path + b"/")]:
                del states[below]
        states.pop(path, None)
        above = path
        while above:
            parts = above.split(b"/")
            if any(part in _SKIPPED for part in parts[:-1]) or parts[-1] == _UNTOLD:
                above = os.path.dirname(above)
                continue
            try:
                status = os.stat(os.path.join(self._workspace, above), follow_symlinks=False)
            except OSError:
                pass
            else:
                states[above] = _state(status, os.path.basename(above))
            above = os.path.dirname(above)
        if stat.S_ISDIR(states.get(path, 0) & _TYPE) and os.path.basename(path) not in _SKIPPED:
            try:
                states.update(self._seen(path, BASE_SECONDS))
            except TooMuchError:
                self._states = None

    # --- looking ------------------------------------------------------------------
    def _seen(self, below: bytes, seconds: float) -> States:
        """The states of all that is below a folder of the workspace. Raises TooMuchError."""
        began, spent = time.monotonic(), time.thread_time()
        latest = began + max(seconds, CLOCK_SECONDS)
        states: States = {}
        levels: list[tuple[int, bytes, list[bytes]]] = []
        try:
            prefix = below + b"/" if below else b""
            levels.append(_entered(os.path.join(self._workspace, below), None, prefix, states))
            while levels:
                fd, prefix, folders = levels[-1]
                if not folders:
                    os.close(levels.pop()[0])
                    continue
                name = folders.pop()
                try:
                    if len(levels) >= LEVELS:
                        states[prefix + name] = _opaque(os.stat(name, dir_fd=fd, follow_symlinks=False))
                        continue
                    levels.append(_entered(name, fd, prefix + name + b"/", states))
                except OSError:  # not ours to read, or exchanged
                    continue
                if time.thread_time() - spent > seconds:
                    raise TooMuchError
                if time.monotonic() > latest:
                    raise TooLateError
        except OSError:
            pass
        finally:
            for level in levels:
                os.close(level[0])
            if not below:
                self._cost = time.thread_time() - spent
        return states


def _entered(name: bytes, above: int | None, prefix: bytes, states: States) -> tuple[int, bytes, list[bytes]]:
    """A folder opened, its entries' states added, and the names of the folders in it that are to be looked into."""
    fd = os.open(name, DIRECTORY, dir_fd=above)
    folders = []
    try:
        with os.scandir(fd) as entries:
            for entry in entries:
                own = os.fsencode(entry.name)
                if own == _UNTOLD:
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:  # gone meanwhile
                    continue
                states[prefix + own] = _state(status, own)
                if stat.S_ISDIR(status.st_mode) and own not in _SKIPPED:
                    folders.append(own)
                if len(states) > ENTRIES:
                    raise TooMuchError
    except BaseException:
        os.close(fd)
        raise
    return fd, prefix, folders


def _state(status: os.stat_result, name: bytes) -> int:
    """What is compared: of a folder that is looked into its mode, of anything else its times, too. The type can be told from it."""
    mode = status.st_mode
    if stat.S_ISDIR(mode) and name not in _SKIPPED:
        return mode
    return _opaque(status)


def _opaque(status: os.stat_result) -> int:
    told = hash((status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino))
    return (told & 0xFFFFFFFFFFF) << 16 | status.st_mode


def _shown(path: bytes) -> str:
    return path.decode("utf-8", "replace")  # not beneath.shown: that module is not needed for a guest's start


def _without_git(paths: set[bytes]) -> set[bytes]:
    """Paths without those of git's own folder: every command of git changes that, even one that only looks."""
    return {path for path in paths if os.path.basename(path) != b".git"}


def _leaves(paths: set[bytes]) -> list[bytes]:
    """Without the folders of which something else in it is told anyway."""
    parents = {os.path.dirname(path) for path in paths}
    return sorted(path for path in paths if path not in parents)
