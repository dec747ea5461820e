"""Watch a folder of a sandbox: a small program in it, run as a command, prints what changes."""

from __future__ import annotations

import asyncio
import json
import posixpath
import secrets
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from sandbox.envelope import Failure
from sandbox.errors import ErrorCode
from sandbox.service.fleet.live_sandbox import LiveSandbox
from sandbox.service.http.payloads.reading import new_request_id
from sandbox.service.requests.output import OutputGoneError
from sandbox.service.requests.under_way import RequestUnderWay
from sandbox.service.wire.e2b.errors import WireError, unwrapped

from .access import Session
from .entries import entry_at

MOST_WATCHERS = 32
# That wait for a client which asks for them now and then.
MOST_EVENTS = 10_000
MOST_LINE_BYTES = 16 << 10
BEGIN_SECONDS, LOOK_SECONDS = 20.0, 15.0
# Events of what was done before a question are in its answer.
SETTLE_SECONDS = 0.05
TYPES = ("CREATE", "WRITE", "REMOVE", "RENAME", "CHMOD")
_WITH_ENTRY = ("CREATE", "WRITE", "CHMOD")
# How a folder is watched, in the head of the answer.
HEADER = "X-Gamebox-Watching"
# The kernel counts instances for each user of the host, and the users of all sandboxes are one to it: half is for their programs.
_INSTANCES, SHARE = Path("/proc/sys/fs/inotify/max_user_instances"), 0.5


@lru_cache(1)
def program() -> str:
    """Return the text of the program."""
    return Path(__file__).with_name("watch_program.py").read_text(encoding="utf-8")


class Watcher:
    """Watches one folder, by a command in the sandbox. ``with_entry`` has events describe the file, as it is a moment later."""

    def __init__(self, session: Session, path: str, *, recursive: bool, with_entry: bool) -> None:
        self._session, self._path, self._recursive, self._with_entry = session, path, recursive, with_entry
        self._request: RequestUnderWay | None = None
        self._offset = 0
        self._rest = b""
        self._waiting: deque[dict[str, Any]] = deque()
        self._lost = False
        self._collecting: asyncio.Task[None] | None = None
        self._stopped = False
        self.scans = False

    async def begin(self, seconds: float | None = None) -> None:
        """Begin to watch. Raises WireError, SandboxError, Problem."""
        watchers = Watchers.of(self._session.live)
        ways = ["recursive" if self._recursive else "flat", *([] if watchers.may_use_inotify(self, self._session) else ["scan"])]
        argv = ["python3", "-I", "-c", program(), self._path, *ways]
        args = {"argv": argv, "session": None, "timeout_seconds": seconds or "unlimited", "keep_output_bytes": 0}
        session = self._session
        try:
            self._request = await session.live.send(session.house.database, "run", args, new_request_id(), streams=True)
            async with asyncio.timeout(BEGIN_SECONDS):
                async for kind, how in self._changes():
                    if kind == "READY":
                        self.scans = how == "scan"
                        return
        except TimeoutError:
            self.stop()
            raise WireError("deadline_exceeded", "The folder could not be watched in time.") from None
        except BaseException:
            self.stop()
            raise
        await self.check()
        raise WireError("failed_precondition", f"{self._path} cannot be watched.")

    async def _changes(self) -> AsyncIterator[tuple[str, str]]:
        """Yield what the program says, from where it was left. What it prints is the sandbox's own, and is checked."""
        log = None if self._request is None else self._request.output
        if log is None:
            return
        with log.reading(self._offset) as note:
            while True:
                try:
                    pieces = log.after(self._offset)
                except OutputGoneError:
                    raise WireError("resource_exhausted", "Too many changes were not fetched.") from None
                for piece in pieces:
                    self._offset = piece.end
                    note(self._offset)
                    if piece.stream != "stdout":
                        continue
                    *lines, self._rest = (self._rest + piece.data).split(b"\n")
                    self._rest = self._rest[:MOST_LINE_BYTES]
                    for line in lines:
                        if (change := _parsed(line)) is not None:
                            yield change
                if not pieces and log.ended:
                    return
                if not pieces:
                    await log.wait(self._offset, LOOK_SECONDS)

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """Yield what changes, as clients read it. Raises WireError."""
        async for kind, name in self._changes():
            if kind in TYPES:
                yield await self._event(kind, name)

    async def _event(self, kind: str, name: str) -> dict[str, Any]:
        event: dict[str, Any] = {"name": name, "type": f"EVENT_TYPE_{kind}"}
        if self._with_entry and kind in _WITH_ENTRY:
            try:
                event["entry"] = await entry_at(self._session, posixpath.join(self._path, name))
            except WireError:
                pass  # it is gone
        return event

    def collect(self) -> None:
        """Keep what changes for one who asks for it with ``take``."""
        self._collecting = asyncio.create_task(self._collect())

    async def _collect(self) -> None:
        async for event in self.events():
            if len(self._waiting) == MOST_EVENTS:
                self._lost = True
                return
            self._waiting.append(event)

    async def take(self) -> list[dict[str, Any]]:
        """Return what has changed since the last call. Raises WireError if not all of it was kept."""
        await asyncio.sleep(SETTLE_SECONDS)
        found = list(self._waiting)
        self._waiting.clear()
        if self._lost:
            raise WireError("resource_exhausted", f"More than {MOST_EVENTS} changes were not fetched: watch the folder anew.")
        if not found and self._collecting is not None and self._collecting.done():
            self._collecting.result()
            await self.check()
        return found

    async def check(self) -> None:
        """Raise WireError if the program has ended by itself."""
        if self._request is None or (self._request.task is not None and not self._request.task.done()):
            return
        envelope = await self._request.envelope()
        if isinstance(envelope, Failure):
            if envelope.code is ErrorCode.program_not_found:
                raise WireError("failed_precondition", f"{self._path} cannot be watched: the sandbox has no python3 for that.")
            unwrapped(envelope, self._session.sandbox)

    @property
    def is_over(self) -> bool:
        """Whether the program has ended."""
        return self._stopped or (self._request is not None and (self._request.task is None or self._request.task.done()))

    @property
    def headers(self) -> dict[str, str]:
        """What the answer says of how the folder is watched."""
        return {HEADER: "scanning every 0.5 s" if self.scans else "inotify"}

    def stop(self) -> None:
        """Watch no more."""
        self._stopped = True
        if self._collecting is not None:
            self._collecting.cancel()
        if self._request is not None and self._request.task is not None and not self._request.task.done():
            asyncio.get_running_loop().run_in_executor(None, self._request.cancel.cancel)  # it may send a frame


def _parsed(line: bytes) -> tuple[str, str] | None:
    try:
        kind, name = json.loads(line)
    except (ValueError, TypeError, RecursionError):
        return None
    known = isinstance(name, str) and len(name) <= MOST_LINE_BYTES and kind in (*TYPES, "READY")
    return (kind, name) if known else None


def most_instances() -> int:
    """Return how many sandboxes may use inotify for their watchers at once: none where the kernel does not say how many it has."""
    try:
        return int(int(_INSTANCES.read_text()) * SHARE)
    except (OSError, ValueError):
        return 0


class Watchers:
    """The watchers of one sandbox that are asked now and then, and the one watcher that has an instance of inotify."""

    def __init__(self) -> None:
        self._by_id: dict[str, Watcher] = {}
        self._user_of_inotify: Watcher | None = None

    @property
    def uses_inotify(self) -> bool:
        """Whether a watcher has an instance of inotify."""
        return self._user_of_inotify is not None and not self._user_of_inotify.is_over

    def may_use_inotify(self, watcher: Watcher, session: Session) -> bool:
        """Return whether a watcher gets an instance of inotify: the first of its sandbox does, if others leave one."""
        if self.uses_inotify:
            return False
        others = (each.beside.get(Watchers) for each in session.house.fleet.all())
        if sum(each is not None and each.uses_inotify for each in others) >= most_instances():
            return False
        self._user_of_inotify = watcher
        return True

    @classmethod
    def of(cls, live: LiveSandbox) -> Watchers:
        """Return those of a sandbox."""
        found = live.beside.get(cls)
        if found is None:
            found = live.beside[cls] = cls()
        return found

    def check_room(self) -> None:
        """Raise WireError if there are as many as there may be."""
        if len(self._by_id) >= MOST_WATCHERS:
            raise WireError("resource_exhausted", f"{MOST_WATCHERS} folders are watched already: remove a watcher first.")

    def add(self, watcher: Watcher) -> str:
        """Add one, and return its id."""
        ident = f"w{secrets.token_hex(8)}"
        self._by_id[ident] = watcher
        watcher.collect()
        return ident

    def find(self, ident: object) -> Watcher:
        """Return one. Raises WireError."""
        found = self._by_id.get(ident) if isinstance(ident, str) else None
        if found is None:
            raise WireError("not_found", f"watcher with id {str(ident)[:40]!r} not found")
        return found

    def remove(self, ident: object) -> None:
        """End one. Raises WireError."""
        self.find(ident).stop()
        del self._by_id[str(ident)]
