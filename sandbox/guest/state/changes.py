"""Which files of the workspace changed while a command ran, by comparing the lstat of every file before and after.

A look costs 0.6 to 1.5 ms per 1,000 entries, or nothing where the kernel says that nothing changed (``tree_watch.py``). It happens
before a command's reply, so it has a budget: if the tree cannot be scanned in time, its changes are reported with a later command
that has more time. ``changes`` on the host has no budget.
"""

from __future__ import annotations

import os
import stat
import time

from ..builtin import Lock
from ..kernel import ActingOnFiles
from ..loop.context import Place
from .tree_states import SKIPPED, TYPE, UNREPORTED, TooLateError, TooMuchError, TreeReader, state_of, to_dictionary
from .tree_watch import TreeWatch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .tree_states import States

# A look may cost a tenth of the command's own time, within these bounds, in CPU time: on a busy machine the same look takes longer
# by the clock. It is given up after CLOCK_SECONDS in any case.
LEAST_SECONDS, MOST_SECONDS = 0.003, 0.05
CLOCK_SECONDS = 0.05
BASE_SECONDS = 1.0  # for the first look, in a worker
NAMES, NAME_CHARS = 10, 100
AS_BEFORE = ActingOnFiles(0, 0, wanted=False)
LAST = 500


class Tracker:
    """The states of the workspace's files at the last look.

    ``begin``, ``skip`` and ``look`` are for the reactor, ``absorb`` is for any worker. All act on files as the sandbox's user, the
    first ones by ``acting``: files that this user cannot see are not reported.
    """

    def __init__(self, place: Place, wanted: bool) -> None:
        self._workspace = place.workspace
        self._wanted = wanted
        self._lock = Lock()  # workers hold it during long scans: the reactor does not wait for it
        self._reader = TreeReader(os.path.join(os.path.dirname(place.launcher), "tree_states.so"))
        self._watch = TreeWatch(place.workspace, self._reader)
        self._states: States | bytes | None = None
        self._cost = 0.0
        self._since: str | None = None
        self._running = 0
        self._looked = False
        self._alone = False  # whether nothing else went on at the last look that read: else a write since may be without a notice
        self._crowded = False
        self.last: dict[str, Any] = {"id": None, "created": [], "modified": [], "deleted": []}

    def begin(self, acting: ActingOnFiles = AS_BEFORE) -> None:
        """Note that a command is about to start, and scan the tree if that has not been done yet, ``acting`` as the user."""
        self._crowded = self._crowded or self._running > 0
        self._running += 1
        self.get_ready(acting)

    def get_ready(self, acting: ActingOnFiles = AS_BEFORE) -> None:
        """Scan the tree if that has not been done yet, ``acting`` as the user."""
        if not self._wanted or self._states is not None:
            return
        self._reader.load()
        if self._cost > MOST_SECONDS:
            self._cost *= 0.9  # so that a tree that has become smaller is tried again
        elif self._lock.acquire(blocking=False):
            self._scan_first(acting)

    def _scan_first(self, acting: ActingOnFiles) -> None:
        try:
            self._states, self._alone = self._scan(b"", MOST_SECONDS, acting), False
        except TooLateError:
            pass
        except TooMuchError:
            self._cost = BASE_SECONDS
        finally:
            self._lock.release()

    def skip(self, ident: str) -> None:
        """Note that a command ended whose caller is gone: its changes are reported later."""
        self._running -= 1
        self._since = self._since or ident

    def look(
        self, ident: str, seconds: float, left: bool, others: bool = False, acting: ActingOnFiles = AS_BEFORE
    ) -> dict[str, Any] | None:
        """Return the notice of what changed, after a command that took ``seconds``; None if nothing did, or for lack of time.

        ``left`` says that processes of the command go on, ``others`` that those of other commands do: they may write into files
        that they have mapped, of which there is no notice until they end, or have opened by a name that is gone.
        """
        self._running -= 1
        budget = min(MOST_SECONDS, max(LEAST_SECONDS, seconds / 10))
        if self._states is None or not self._lock.acquire(blocking=False):
            return None
        try:
            before = self._states
            alone = not (left or others)
            if not (alone and self._alone and self._watch.is_unchanged()):
                if self._cost > budget:
                    self._cost *= 0.9  # so that a tree that has become smaller is tried again
                    raise TooMuchError
                if self._looked:  # not for one command: a process that watches takes 10 ms longer to end, and so does its sandbox
                    self._watch.open()
                self._states = self._scan(b"", budget, acting)
                self._looked, self._alone = True, alone
        except TooMuchError:
            self._since = self._since or ident
            return None
        finally:
            self._lock.release()
        notice = self._compare(before, self._states, ident)
        self._since, self._crowded = None, left or self._running > 0
        return notice

    def _compare(self, before_look: States | bytes, after: States | bytes, ident: str) -> dict[str, Any] | None:
        if before_look == after:  # most commands change nothing
            self.last = {"id": ident, "created": [], "modified": [], "deleted": []}
            return None
        before, now = to_dictionary(before_look), to_dictionary(after)
        created = _leaves(_without_git(now.keys() - before.keys()))
        deleted = _leaves(_without_git(before.keys() - now.keys()))
        modified = sorted(_without_git({path for path, state in now.items() if before.get(path, state) != state}))
        kinds = {"created": created, "modified": modified, "deleted": deleted}
        self.last = {
            "id": ident,
            **{kind: [_printable(path) for path in paths[:LAST]] for kind, paths in kinds.items()},
        }
        if not (created or modified or deleted):
            return None
        marked = [
            f"{mark} {_printable(path)[:NAME_CHARS]}"
            for mark, paths in zip("+~-", kinds.values(), strict=True)
            for path in paths[:NAMES]
        ]
        counts = {kind: len(paths) for kind, paths in kinds.items()}
        return {
            "code": "files_changed",
            **counts,
            "names": marked[:NAMES],
            "since": self._since,
            "others": self._crowded,
        }

    def absorb(self, *paths: str) -> None:
        """Take over the states of paths that the sandbox's own operations changed, so that no command is blamed for them."""
        if not self._wanted:
            return
        with self._lock:
            for path in paths:
                try:
                    self._absorb(path)
                except (OSError, ValueError):  # an invalid path
                    continue

    def _absorb(self, path: str) -> None:
        full = os.path.join(self._workspace, path.encode("utf-8", "surrogateescape"))
        folder, name = os.path.split(os.path.normpath(full))
        real = os.path.join(os.path.realpath(folder), name)
        if real == self._workspace:
            self._rescan()
        elif self._states is not None and real.startswith(self._workspace + b"/"):
            self._states = to_dictionary(self._states)
            self._update(self._states, real[len(self._workspace) + 1 :])

    def _rescan(self) -> None:
        try:
            self._states, self._alone = self._scan(b"", BASE_SECONDS), False
        except TooMuchError:
            self._states = None

    def _update(self, states: States, path: bytes) -> None:
        """Update the states of ``path``, of everything below it, and of the folders above it."""
        if stat.S_ISDIR(states.get(path, stat.S_IFDIR) & TYPE):
            for below in [p for p in states if p.startswith(path + b"/")]:
                del states[below]
        states.pop(path, None)
        above = path
        while above:
            parts = above.split(b"/")
            if any(part in SKIPPED for part in parts[:-1]) or parts[-1] == UNREPORTED:
                above = os.path.dirname(above)
                continue
            try:
                status = os.stat(os.path.join(self._workspace, above), follow_symlinks=False)
            except OSError:
                pass
            else:
                states[above] = state_of(status, os.path.basename(above))
            above = os.path.dirname(above)
        if stat.S_ISDIR(states.get(path, 0) & TYPE) and os.path.basename(path) not in SKIPPED:
            try:
                found = to_dictionary(self._scan(path, BASE_SECONDS))
                states.update({path + b"/" + name: state for name, state in found.items()})
            except TooMuchError:
                self._states = None

    def _scan(self, below: bytes, seconds: float, acting: ActingOnFiles = AS_BEFORE) -> States | bytes:
        """Return the states of everything below a folder of the workspace. Raises TooMuchError."""
        spent = time.thread_time()
        watch = None if below else self._watch
        try:
            with acting:
                return self._reader.read(os.path.join(self._workspace, below), seconds, max(seconds, CLOCK_SECONDS), watch)
        except OSError:
            return {}
        finally:
            if not below:
                self._cost = time.thread_time() - spent


def _printable(path: bytes) -> str:
    return path.decode("utf-8", "replace")  # not roots.printable: a guest starts without that module


def _without_git(paths: set[bytes]) -> set[bytes]:
    """Return the paths without git's own folders: every git command changes them, even one that only reads."""
    return {path for path in paths if os.path.basename(path) != b".git"}


def _leaves(paths: set[bytes]) -> list[bytes]:
    """Return the sorted paths without the folders of other paths among them."""
    parents = {os.path.dirname(path) for path in paths}
    return sorted(path for path in paths if path not in parents)
