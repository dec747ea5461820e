"""Let the requests of a busy tenant in a few at a time while others are there: the one loop serves all of them in turn."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable

# Requests of one tenant that are let in and not yet answered, while another one is there. After some milliseconds one that goes on
# waits for its sandbox, and takes nothing from others.
MOST_YOUNG, YOUNG_SECONDS = 2, 0.05
LATELY_SECONDS = 2.0


class Pace:
    """A tenant that is alone waits for nothing. Used in one loop."""

    def __init__(self) -> None:
        self._lately: dict[str, float] = {}  # when each tenant was here, the latest last
        self._young: Counter[str] = Counter()
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}

    async def enter(self, tenant: str) -> Callable[[], None]:
        """Wait until a request may go on; return what ends its youth, which ends by itself otherwise."""
        self._note(tenant)
        if tenant in self._queues or (len(self._lately) > 1 and self._young[tenant] >= MOST_YOUNG):
            mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._queues.setdefault(tenant, deque()).append(mine)
            try:
                await mine
            except asyncio.CancelledError:
                if mine.done() and not mine.cancelled():
                    self._leave(tenant)
                raise
        else:
            self._young[tenant] += 1
        timer: asyncio.TimerHandle | None = None

        def leave() -> None:
            nonlocal timer
            if timer is not None:
                timer.cancel()
                timer = None  # they would keep each other until the garbage is collected
                self._leave(tenant)

        timer = asyncio.get_running_loop().call_later(YOUNG_SECONDS, leave)
        return leave

    def _leave(self, tenant: str) -> None:
        """Have the next one take the place of one that left."""
        queue = self._queues.get(tenant, deque())
        while queue and queue[0].done():  # its task was cancelled
            queue.popleft()
        if queue:
            queue.popleft().set_result(None)
        else:
            self._young[tenant] -= 1
            if not self._young[tenant]:
                del self._young[tenant]
        if not queue:
            self._queues.pop(tenant, None)

    def _note(self, tenant: str) -> None:
        at = time.monotonic()
        self._lately.pop(tenant, None)
        self._lately[tenant] = at
        for other, last in list(self._lately.items()):
            if at - last < LATELY_SECONDS:
                break
            del self._lately[other]
