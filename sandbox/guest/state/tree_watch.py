"""Whether anything in a tree may have changed since its states were read: the kernel's notices of its folders (inotify).

Most commands change nothing, and without notices each would cost a stat of every file. A notice says only that the states have to
be read again. Folders that have no states (``node_modules``, ``.git``) are watched for new names, because a file that is linked
into one can be written there. A tree is not watched if it can change without a notice: without a mount of its own (hard links
could lead out of it), with a file that has several names, another file system, a folder that the user cannot read, more than
FOLDERS folders, or ENTRIES entries in those without states.
"""

from __future__ import annotations

import os

from .tree_states import ENTRIES, Watching

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .tree_states import TreeReader

FOLDERS = 2000  # about 2 us each for every look that reads, and 1 KiB of the kernel's memory
# Reads after which the tree was not watched. Each may leave watches of FOLDERS folders that were moved to where nothing is read.
IN_VAIN = 50
# Kinds of notices (inotify(7)).
CREATED, MOVED_HERE, RAN_OVER, REMOVED, IS_FOLDER = 0x100, 0x80, 0x4000, 0x8000, 0x40000000
# The kernel lets each user have 128 instances on a machine. Each sandbox opens its own as a random uid from here on.
FIRST_UID = 1 << 31
_EVERY_UID = ["0", "0", "4294967295"]


class TreeWatch:
    """Watches one tree. All methods are for one thread at a time, ``open`` for one that acts as root."""

    def __init__(self, top: bytes, reader: TreeReader) -> None:
        self._top = top
        self._reader = reader
        self._inotify = -1
        self._opened = False
        self._identity: tuple[int, int] | None = None
        self._changed = self._new_folders = True
        self._blind = False
        self._in_vain = 0

    def open(self) -> None:
        """Open the inotify instance, once; the next read watches. Only root outside of a user namespace can: it changes its uid."""
        library = None if self._opened else self._reader.library
        self._opened = True
        try:
            if library is not None and os.geteuid() == 0 and _is_every_uid_here() and is_own_mount(self._top):
                self._inotify = library.open_inotify(FIRST_UID + int.from_bytes(os.urandom(3), "little"))
        except OSError:  # no descriptor is left
            pass

    def is_unchanged(self) -> bool:
        """Return whether certainly nothing changed since the last complete read, except by processes that are still running."""
        if self._inotify < 0:
            return False
        kinds = self._reader.library.take_notices(self._inotify)
        if kinds:
            self._changed = True
            made = kinds & IS_FOLDER and kinds & (CREATED | MOVED_HERE)
            self._new_folders |= bool(made or kinds & (RAN_OVER | REMOVED))  # one that was removed may be there again
        return not self._changed and self._identity == _identity(self._top)

    def begin(self, folder: int) -> Watching:
        """Return how to watch what is now read of the tree, whose open ``folder`` this is."""
        status = os.fstat(folder)
        if self._identity not in (None, (status.st_dev, status.st_ino)) or self._in_vain > IN_VAIN:
            self.close()
        self._identity = (status.st_dev, status.st_ino)
        self.is_unchanged()  # so that notices from now on are of changes from now on
        self._changed = True
        watching = Watching(-1 if self._blind else self._inotify, self._new_folders, FOLDERS, ENTRIES, 0)
        self._blind = watching.inotify >= 0  # until ``end``: after a read that failed, the next one does not watch
        self._in_vain += self._blind
        return watching

    def end(self, watching: Watching) -> None:
        """Take over how the tree is watched after a complete read."""
        watched = watching.inotify >= 0 and not watching.blind
        self._changed = not watched
        self._new_folders = not watched
        self._blind = bool(watching.blind)  # the next read finds out whether that is over, before one watches again
        self._in_vain -= watched
        if watching.folders < 0 or watching.entries < 0:
            self.close()

    def close(self) -> None:
        """Stop watching for good."""
        if self._inotify >= 0:
            os.close(self._inotify)
        self._inotify = -1


def is_own_mount(top: bytes) -> bool:
    """Return whether no hard link leads from ``top`` to what is outside; False where that is not certain."""
    return os.path.ismount(top)


def _identity(path: bytes) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _is_every_uid_here() -> bool:
    """Return False in a user namespace: there, instances are also counted for the user who made it."""
    with open("/proc/self/uid_map") as file:
        return file.read().split() == _EVERY_UID
