"""RUNS IN THE SANDBOX, as a command of its user: prints what changes in a folder, one JSON array [type, path] on a line.

It uses inotify. With the argument "scan", and where the kernel has no instance left for this user, it looks at the folder again and
again; its first line says which: ["READY", "inotify"] or ["READY", "scan"]. Files that the service writes are renamed into place:
they are reported as what their writer did.
"""

from __future__ import annotations

import ctypes
import json
import os
import stat
import struct
import sys
import time
from collections import deque

CLOSE_ON_EXEC = os.O_CLOEXEC
MODIFY, ATTRIB, MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x2, 0x4, 0x40, 0x80, 0x100, 0x200
IS_DIR, OVERFLOW, IGNORED = 0x40000000, 0x4000, 0x8000
WATCHED = MODIFY | ATTRIB | MOVED_FROM | MOVED_TO | CREATE | DELETE
OURS = ".gamebox-"
LOOK_SECONDS = 0.5
MOST_FOLDERS = 8192
MOST_UNDER_WAY = 64
_EVENT = struct.Struct("iIII")
_libc = ctypes.CDLL(None, use_errno=True)


class Watch:
    """Watches the folder ``top``, and those below if it is ``recursive``."""

    def __init__(self, top: str, recursive: bool) -> None:
        self.top, self.recursive = os.fsencode(top), recursive
        self.fd = -1
        self.folders: dict[int, bytes] = {}  # by watch descriptor
        self.known: set[bytes] = set()  # files that were there: what replaces one is a write
        self.ours: deque[int] = deque(maxlen=MOST_UNDER_WAY)  # cookies of files that the service is putting in their place

    def say(self, kind: str, path: bytes) -> None:
        """Print one change."""
        print(json.dumps([kind, os.fsdecode(path)]), flush=True)

    def add(self, folder: bytes, announce: bool) -> None:
        """Watch a folder and, if wanted, those below; say what was made in it before it was watched."""
        if len(self.folders) < MOST_FOLDERS:
            wd = _libc.inotify_add_watch(self.fd, os.path.join(self.top, folder), WATCHED)
            if wd >= 0:
                self.folders[wd] = folder
            elif not folder:
                raise OSError(ctypes.get_errno(), "inotify_add_watch")
        try:
            entries: list[os.DirEntry[bytes]] = list(os.scandir(os.path.join(self.top, folder)))
        except OSError:
            return
        for entry in entries:
            path = os.path.join(folder, entry.name)
            if entry.name.startswith(os.fsencode(OURS)):
                continue
            if announce and path not in self.known:
                self.say("CREATE", path)
                if entry.is_file(follow_symlinks=False):  # whether it was written before, nobody can know
                    self.say("WRITE", path)
            self.known.add(path)
            if self.recursive and entry.is_dir(follow_symlinks=False):
                self.add(path, announce)

    def run(self) -> bool:
        """Say what inotify reports, for good; return False if no instance of it is left."""
        self.fd = _libc.inotify_init1(CLOSE_ON_EXEC)
        if self.fd < 0:
            return False
        self.add(b"", False)
        self.say("READY", b"inotify")
        while True:
            data = os.read(self.fd, 1 << 16)
            at = 0
            while at < len(data):
                wd, mask, cookie, size = _EVENT.unpack_from(data, at)
                name = data[at + _EVENT.size : at + _EVENT.size + size].rstrip(b"\0")
                at += _EVENT.size + size
                if mask & OVERFLOW:
                    print("too many changes at once: some were not reported", file=sys.stderr, flush=True)
                elif mask & IGNORED:
                    self.folders.pop(wd, None)
                elif name and wd in self.folders:
                    self.change(os.path.join(self.folders[wd], name), name, mask, cookie)

    def change(self, path: bytes, name: bytes, mask: int, cookie: int) -> None:
        """Say what an event of inotify means."""
        if name.startswith(os.fsencode(OURS)):
            if mask & MOVED_FROM:
                self.ours.append(cookie)
        elif mask & MOVED_TO and cookie in self.ours:
            # A file that the service has written.
            for kind in ("WRITE", "CHMOD") if path in self.known else ("CREATE", "WRITE", "CHMOD"):
                self.say(kind, path)
            self.known.add(path)
        else:
            self.plain_change(path, mask)

    def plain_change(self, path: bytes, mask: int) -> None:
        """Say what has happened to a path."""
        if mask & (CREATE | MOVED_TO):
            self.say("CREATE", path)
            self.known.add(path)
            if mask & IS_DIR and self.recursive:
                self.add(path, True)
        if mask & MODIFY:
            self.say("WRITE", path)
        if mask & ATTRIB:
            self.say("CHMOD", path)
        if mask & MOVED_FROM:
            self.say("RENAME", path)
            self.known.discard(path)
        if mask & DELETE:
            self.say("REMOVE", path)
            self.known.discard(path)

    def scan(self) -> dict[bytes, tuple[tuple[int, int], tuple[int, int]]]:
        """Return what is there, as far as a change of it shows."""
        found: dict[bytes, tuple[tuple[int, int], tuple[int, int]]] = {}
        folders = [b""]
        while folders and len(found) < 100_000:
            folder = folders.pop()
            try:
                entries = list(os.scandir(os.path.join(self.top, folder)))
            except OSError:
                continue
            for entry in entries:
                path = os.path.join(folder, entry.name)
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                if entry.name.startswith(os.fsencode(OURS)):
                    continue
                found[path] = (status.st_mtime_ns, status.st_size), (status.st_mode, status.st_uid)
                if self.recursive and entry.is_dir(follow_symlinks=False):
                    folders.append(path)
        return found

    def look(self) -> None:
        """Say what differs from half a second before, for good."""
        before = self.scan()
        self.say("READY", b"scan")
        while True:
            time.sleep(LOOK_SECONDS)
            now = self.scan()
            for path in sorted(before.keys() | now.keys()):
                old, new = before.get(path), now.get(path)
                if old is None:
                    self.say("CREATE", path)
                    if new is not None and stat.S_ISREG(new[1][0]):
                        self.say("WRITE", path)
                elif new is None:
                    self.say("REMOVE", path)
                else:
                    if old[0] != new[0]:
                        self.say("WRITE", path)
                    if old[1] != new[1]:
                        self.say("CHMOD", path)
            before = now


if __name__ == "__main__":
    watch = Watch(sys.argv[1], sys.argv[2] == "recursive")
    try:
        if "scan" in sys.argv[3:] or not watch.run():
            watch.look()
    except OSError as error:
        sys.exit(f"the folder cannot be watched: {error.strerror}")
