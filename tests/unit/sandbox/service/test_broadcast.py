"""Watchers are told what concerns them, and are cut when they do not keep up, or their key is revoked."""

from __future__ import annotations

import asyncio

from sandbox.service.fleet import broadcast as module
from sandbox.service.fleet.broadcast import Broadcast
from sandbox.service.store.tables.sandboxes import Event


def event(ident: int, tenant: str = "t", sandbox: str = "s") -> Event:
    return Event(ident, tenant, sandbox, {})


def test_each_hears_of_its_own() -> None:
    async def main() -> None:
        broadcast = Broadcast()
        every, one, other = (broadcast.watch("t", None, "k"), broadcast.watch("t", "s", "k"), broadcast.watch("o", None, "k"))
        for told in (event(1), event(2, sandbox="x"), event(3, tenant="o")):
            broadcast.publish(told)
        assert [await each.next(0.01) for each in (every, every, one, one, other)] == [
            event(1), event(2, sandbox="x"), event(1), None, event(3, tenant="o"),
        ]  # fmt: skip

    asyncio.run(main())


def test_one_that_waits_is_woken() -> None:
    async def main() -> None:
        broadcast = Broadcast()
        watcher = broadcast.watch("t", None, "k")
        waiting = asyncio.create_task(watcher.next(10))
        await asyncio.sleep(0)
        broadcast.publish(event(1))
        assert await asyncio.wait_for(waiting, 1) == event(1)
        broadcast.leave(watcher)
        broadcast.publish(event(2))
        assert await watcher.next(0.01) is None

    asyncio.run(main())


def test_who_is_too_far_behind_or_not_allowed_any_more_is_cut() -> None:
    async def main() -> None:
        broadcast = Broadcast()
        slow, revoked, stays = broadcast.watch("t", None, "a"), broadcast.watch("t", None, "b"), broadcast.watch("o", None, "c")
        for n in range(module.MOST_BEHIND + 1):
            broadcast.publish(event(n))
        assert slow.closed
        waiting = asyncio.create_task(stays.next(10))
        broadcast.close("b")
        assert (revoked.closed, stays.closed) == (True, False)
        broadcast.close()
        assert await asyncio.wait_for(waiting, 1) is None

    asyncio.run(main())
