"""Replies come from the reactor's thread alone, so that the data for them needs no locks."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sandbox.guest.loop.context import Place
from sandbox.guest.loop.host_lease import Lease
from sandbox.guest.loop.reactor import Reactor
from sandbox.guest.loop.requests import Requests
from sandbox.guest.loop.workers import Workers
from sandbox.guest.protocol import wire


class _Processes:
    """The part of ``processes.Processes`` that replies to file operations use; records which thread calls it."""

    disk = lifetime = None
    sessions = SimpleNamespace(open_session=None, end_session=None, list_sessions=None)

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.fails = False
        self.changes = SimpleNamespace(absorb=lambda *_: None)
        self.headroom = SimpleNamespace(notices=lambda: self._note("headroom"))
        self.pending_notices = SimpleNamespace(restore=lambda _: self._note("pending_notices"))

    def _note(self, name: str) -> list[Any]:
        self.asked.append((name, threading.current_thread().name))
        if self.fails:
            self.fails = False
            raise RuntimeError("deque mutated during iteration")
        return []

    def __getattr__(self, _name: str) -> Any:
        """Stand in for the handlers of operations that are not used here."""
        return lambda _args: {}

    def news(self, _known: Any) -> list[Any]:
        return self._note("news")


class _Link:
    """Collects the replies, each with the thread that sent it; stops the reactor at the ``last``."""

    lost = False

    def __init__(self, reactor: Reactor, last: int) -> None:
        self.replies: list[tuple[str, dict[str, Any]]] = []
        self._reactor = reactor
        self._last = last

    def reaches(self, _key: int) -> bool:
        return True

    def send_packed(self, _kind: int, _key: int, data: bytes, _blob: bytes) -> None:
        self.replies.append((threading.current_thread().name, wire.unpack_message(data)[0]))
        if len(self.replies) == self._last:
            self._reactor.stop()


def _served(workspace: Path, processes: _Processes, *operations: tuple[str, dict[str, Any]]) -> _Link:
    """Return the link after the guest has answered all requests."""
    reactor = Reactor()
    link = _Link(reactor, len(operations))
    root = str(workspace).encode()
    limits = {"read_bytes": 1 << 20, "write_bytes": 1 << 20, "memory_bytes": 1 << 30}
    place = Place(root, root, root, (root,), 0, 0, limits, ())
    requests: Any = Requests(reactor, link, place, processes, Workers(2, None), Lease(10))  # type: ignore[arg-type]
    for number, (operation, args) in enumerate(operations, 1):
        requests.take(number, wire.pack_message({"operation": operation, "args": args}))
    reactor.after(60, lambda: reactor.stop(1))
    assert reactor.run() == 0, "not every request was answered"
    return link


def _listing(path: str) -> tuple[str, dict[str, Any]]:
    return "list", {"path": path, "depth": 1, "hidden": True, "max_entries": 10}


@pytest.mark.parametrize("path", [".", "missing"])
def test_the_reactor_replies_for_a_worker(tmp_path: Path, path: str) -> None:
    processes = _Processes()
    link = _served(tmp_path, processes, _listing(path), ("make_dir", {"path": "new"}))
    here = threading.current_thread().name
    assert [thread for thread, _ in link.replies] == [here, here]
    assert {thread for _, thread in processes.asked} == {here}


def test_a_reply_that_fails_becomes_a_failure(tmp_path: Path) -> None:
    """The request was never answered: the error only reached the log of a worker."""
    processes = _Processes()
    processes.fails = True
    link = _served(tmp_path, processes, ("make_dir", {"path": "new"}))
    assert link.replies[0][1]["fault"]["code"]
