"""Turns at what only so many can use at once: tenants take them one after the other, however much one of them asks for."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sandbox.errors import ErrorCode
from sandbox.service.http.problems import Problem, ProblemCode

# Where the work is the service's own, and no tenant's.
NOBODY = ""
LATELY_SECONDS = 60.0


class Turns:
    """Gives at most ``most`` turns at once. Used in one loop.

    Those who wait are served round by round, one of each tenant in each round, and in order for one tenant. One tenant gets at most
    half of the turns while another one was here lately: what that asks for next finds the host half free, and not only the next
    turn. ``seconds`` is how long one waits; None means as long as its caller does. ``leaves_room`` is for turns that last
    as long as a caller likes: one tenant gets no more of them than it leaves free, whether or not others are here.
    """

    def __init__(self, most: int, *, seconds: float | None = None, leaves_room: bool = False) -> None:
        self._most, self._free, self._seconds, self._leaves_room = most, most, seconds, leaves_room
        # When each tenant was here, as long as that is lately; the latest last.
        self._lately: dict[str, float] = {}
        # The number of the last turn of each tenant that was here lately.
        self._served: dict[str, int] = {}
        self._number = 0
        self._taken: Counter[str] = Counter()
        # By tenant; nobody's queue is kept empty.
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def turn(self, tenant: str, most_waiting: int | None = None) -> AsyncIterator[None]:
        """Wait for a turn. Raises Problem if ``most_waiting`` of the tenant wait already, or after some time."""
        await self._take(tenant, most_waiting)
        try:
            yield
        finally:
            self._give_back(tenant)

    def waiting(self, tenant: str) -> int:
        """Return how many of the tenant wait."""
        return len(self._queues.get(tenant, ()))

    async def _take(self, tenant: str, most_waiting: int | None) -> None:
        self._note(tenant)
        queue = self._queues.get(tenant)
        if queue is None and self._may_take(tenant):
            self._count(tenant)
            return
        if most_waiting is not None and queue is not None and len(queue) >= most_waiting:
            raise _too_many(len(queue))
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(tenant, deque()).append(mine)
        self._pass_on()
        try:
            async with asyncio.timeout(self._seconds):
                await mine
        except BaseException as error:
            self._leave(tenant, mine)
            if isinstance(error, TimeoutError):
                raise _too_long(self._seconds or 0.0) from error
            raise

    def _leave(self, tenant: str, mine: asyncio.Future[None]) -> None:
        """Stop waiting; a turn that came in the same moment is given back."""
        if mine.done() and not mine.cancelled():
            self._give_back(tenant)
            return
        queue = self._queues.get(tenant)
        if queue is not None and mine in queue:
            queue.remove(mine)
            if not queue:
                del self._queues[tenant]

    def _may_take(self, tenant: str) -> bool:
        if self._leaves_room:
            return self._taken[tenant] < self._free
        others = len(self._lately) - (tenant in self._lately)
        most = max(1, self._most // 2) if others else self._most
        return self._free > 0 and self._taken[tenant] < most

    def _note(self, tenant: str) -> None:
        if tenant == NOBODY:
            return
        at = time.monotonic()
        self._lately.pop(tenant, None)
        self._lately[tenant] = at
        for other, last in list(self._lately.items()):
            if at - last < LATELY_SECONDS:
                break
            del self._lately[other]
            self._served.pop(other, None)

    def _count(self, tenant: str) -> None:
        self._number += 1
        self._served[tenant] = self._number
        self._free -= 1
        self._taken[tenant] += 1

    def _give_back(self, tenant: str) -> None:
        self._free += 1
        self._taken[tenant] -= 1
        if not self._taken[tenant]:
            del self._taken[tenant]
        self._pass_on()

    def _pass_on(self) -> None:
        """Give free turns to those who wait, the tenant that got none for the longest time first."""
        while self._free > 0 and (tenant := self._next()) is not None:
            queue = self._queues[tenant]
            self._count(tenant)
            queue.popleft().set_result(None)
            if not queue:
                del self._queues[tenant]

    def _next(self) -> str | None:
        """Return the tenant whose turn it is, if any that waits may have one; forget those whose tasks were cancelled."""
        for tenant, queue in list(self._queues.items()):
            while queue and queue[0].done():
                queue.popleft()
            if not queue:
                del self._queues[tenant]
        return min(filter(self._may_take, self._queues), key=lambda tenant: self._served.get(tenant, 0), default=None)


def _too_many(waiting: int) -> Problem:
    return Problem(
        429,
        ProblemCode.quota_exceeded,
        f"{waiting} creations of this tenant are already waiting for their turn.",
        "Wait until some of them are answered, then send the request again.",
        retryable=True,
        headers={"Retry-After": "1"},
        quota="creations_waiting",
    )


def _too_long(seconds: float) -> Problem:
    return Problem(
        503,
        ErrorCode.capacity,
        f"Too many sandboxes are being created; this one waited for {seconds:g} s.",
        "Send the request again later.",
        retryable=True,
        headers={"Retry-After": "5"},
    )
