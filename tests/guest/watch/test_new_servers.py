"""How often the guest looks for new servers."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from sandbox.guest.watch import new_servers, sockets
from sandbox.guest.watch.new_servers import FREE_SECONDS, LOOK_SHARE, NewServers

PORT = 8000


class Clock:
    """The time, which passes only in looks; each look finds one more server."""

    def __init__(self) -> None:
        self.now = 100.0
        self.look_seconds = 0.0
        self._found: list[tuple[str, str, int]] = []

    def list_tcp_listeners(self) -> list[tuple[str, str, int]]:
        self.now += self.look_seconds
        self._found.append((f"inode {len(self._found)}", "127.0.0.1", PORT + len(self._found)))
        return self._found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(sockets, "list_tcp_listeners", made.list_tcp_listeners)
    monkeypatch.setattr(new_servers, "time", SimpleNamespace(monotonic=lambda: made.now, thread_time=lambda: made.now))
    return made


def ports(servers: NewServers) -> list[int]:
    return [notice["port"] for notice in servers.notices([])]


def test_looks_that_take_long_wait_and_a_single_one_does_not(clock: Clock) -> None:
    servers = NewServers(nullcontext(), isolated=True)  # type: ignore[arg-type]
    assert ports(servers) == [PORT]
    clock.look_seconds = FREE_SECONDS * 2
    assert ports(servers) == [PORT + 1]
    clock.look_seconds = FREE_SECONDS / 2
    assert ports(servers) == [PORT + 2], "one slow look may be the machine's"

    clock.look_seconds = FREE_SECONDS * 2
    assert (ports(servers), ports(servers)) == ([PORT + 3], [PORT + 4])
    assert ports(servers) == [], "there are many sockets"
    clock.now += clock.look_seconds / LOOK_SHARE + 0.01
    assert ports(servers) == [PORT + 5]
