"""The connections that stay open: terminals, tunnels, ports. They end with their key, their sandbox, and the service."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sandbox.frozen import dataclass

from .http.problems import Problem, ProblemCode
from .places import Places

# Of all sandboxes together, but for what the limit of descriptors allows: each takes three.
MOST_TOGETHER = 8192
LOOK_SECONDS = 0.05
MOST_REASON_BYTES = 123
# In the place of a key's id: what came to a port that everybody may reach.
PUBLIC = "public "


@dataclass(frozen=True, slots=True)
class Ending:
    """Why the service ends a connection: the close code of a WebSocket, and a sentence of at most 123 bytes."""

    code: int
    reason: str


ENDED = Ending(1000, "ended")
BAD_CONTROL = Ending(1007, "A text frame was not a control: see docs/http.md.")
KEY_GONE = Ending(1008, "The key is not valid any more.")
FAILED = Ending(1011, "The service failed: see its log.")
RESTART = Ending(1012, "The service restarts: connect again.")
BEHIND = Ending(1013, "The reader is too far behind: connect again.")
SANDBOX_GONE = Ending(4410, "The sandbox is gone.")


def reason_of(text: str) -> str:
    """Return a text as the reason of a close, which may have 123 bytes."""
    return text.encode("utf-8", "replace")[:MOST_REASON_BYTES].decode("utf-8", "ignore")


@dataclass(eq=False, slots=True)
class OpenConnection:
    """One of them, to a sandbox of ``tenant``; ``end`` may be called more than once.

    One that ``is_request`` ends by itself, which is waited for.
    """

    sandbox: str
    tenant: str
    key: str | None
    end: Callable[[Ending], object]
    is_request: bool = False


class OpenConnections:
    """All of them. ``most`` is how many one sandbox may have; a tenant has no more than it leaves for others."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.tenants = Places(MOST_TOGETHER, MOST_TOGETHER)
        self._all: set[OpenConnection] = set()
        self._of_sandbox: dict[str, int] = {}

    @contextmanager
    def open(self, connection: OpenConnection) -> Iterator[None]:
        """Have the connection be one of them during the block. Raises Problem if there are too many."""
        sandbox = connection.sandbox
        count = self._of_sandbox.get(sandbox, 0)
        if count >= self._most:
            raise _too_many(count, "this sandbox")
        if not self.tenants.take(connection.tenant):
            raise _too_many(self.tenants.of(connection.tenant), "sandboxes of this tenant, and the service has no more for it now")
        self._all.add(connection)
        self._of_sandbox[sandbox] = count + 1
        try:
            yield
        finally:
            self._all.discard(connection)
            self.tenants.give_back(connection.tenant)
            if (left := self._of_sandbox[sandbox] - 1) > 0:
                self._of_sandbox[sandbox] = left
            else:
                del self._of_sandbox[sandbox]

    def __len__(self) -> int:
        return len(self._all)

    def end(self, ending: Ending, *, key: str | None = None, sandbox: str | None = None, requests: bool = True) -> None:
        """End all of them, or those with that key or of that sandbox; not those that end by themselves without ``requests``."""
        for each in tuple(self._all):
            if key in (None, each.key) and sandbox in (None, each.sandbox) and (requests or not each.is_request):
                each.end(ending)

    def end_expired(self, is_valid: Callable[[str], bool]) -> None:
        """End those whose key is not valid any more: keys expire, too. Those of public ports have none."""
        for each in tuple(self._all):
            if each.key is not None and not each.key.startswith(PUBLIC) and not is_valid(each.key):
                each.end(KEY_GONE)

    async def drain(self, seconds: float) -> None:
        """End those that do not end by themselves, wait for the others for so long, and end these, too."""
        self.end(RESTART, requests=False)
        until = asyncio.get_running_loop().time() + seconds
        while self._all and asyncio.get_running_loop().time() < until:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_SECONDS)
        self.end(RESTART)


def _too_many(count: int, where: str) -> Problem:
    return Problem(
        429,
        ProblemCode.too_many_connections,
        f"There are already {count} connections to {where}.",
        "Close some of them, then try again.",
        retryable=True,
        headers={"Retry-After": "1"},
    )
