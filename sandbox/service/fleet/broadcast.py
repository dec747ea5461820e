"""Tell those who watch what becomes of sandboxes, as it is written down."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from sandbox.service.store.tables.sandboxes import Event

# A watcher that is further behind is cut, and may resume: the store has the events.
MOST_BEHIND = 1000


@dataclass(eq=False)
class Watcher:
    """Watches a tenant's sandboxes, or one of them, with the key of that id. ``closed`` says that nothing more comes."""

    tenant: str
    sandbox: str | None
    key: str
    closed: bool = False
    _waiting: deque[Event] = field(default_factory=deque)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    async def next(self, seconds: float) -> Event | None:
        """Return the next event, or None if there is none within ``seconds``, or nothing more comes."""
        if not self._waiting and not self.closed:
            self._news.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._news.wait()
            except TimeoutError:
                return None
        return self._waiting.popleft() if self._waiting and not self.closed else None

    def tell(self, event: Event) -> None:
        """Have ``next`` return the event."""
        self._waiting.append(event)
        if len(self._waiting) > MOST_BEHIND:
            self.close()
        self._news.set()

    def close(self) -> None:
        """Have ``next`` return None from now on."""
        self.closed = True
        self._waiting.clear()
        self._news.set()


class Broadcast:
    """All watchers."""

    def __init__(self) -> None:
        self._watchers: set[Watcher] = set()

    def watch(self, tenant: str, sandbox: str | None, key: str) -> Watcher:
        """Return a watcher of what happens from now on; ``leave`` ends it."""
        watcher = Watcher(tenant, sandbox, key)
        self._watchers.add(watcher)
        return watcher

    def leave(self, watcher: Watcher) -> None:
        """Forget a watcher."""
        self._watchers.discard(watcher)

    def publish(self, event: Event) -> None:
        """Tell all whom it concerns."""
        for watcher in tuple(self._watchers):
            if watcher.tenant == event.tenant and watcher.sandbox in (None, event.sandbox):
                watcher.tell(event)

    def close(self, key: str | None = None) -> None:
        """Have all watchers end, or those with that key."""
        for watcher in tuple(self._watchers):
            if key in (None, watcher.key):
                watcher.close()
