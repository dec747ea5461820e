"""The memory that bodies of requests may take together: each may be large, and clients may send many at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Request

from sandbox.errors import ErrorCode
from sandbox.service.http.problems import Problem

from .reading import too_large

MOST_BYTES = 512 << 20
# Smaller ones do not count: there are as many as connections, and they are read at once.
LEAST_BYTES = 64 << 10


class BodyRoom:
    """How many bytes of bodies are in memory, in requests that are read and in those that are carried out.

    A tenant has no more than it leaves to the others, however many its requests are, and however long they take.
    """

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._left = most
        self._taken: dict[str, int] = {}

    @asynccontextmanager
    async def body(self, request: Request, limit: int, tenant: str) -> AsyncIterator[HeldBody]:
        """Read the body of a request; its room is free after the block, or what it ``keep``s it for.

        Raises Problem for one that is larger than ``limit``, without reading it to its end, or that finds no room.
        """
        held = HeldBody(self, tenant)
        try:
            held.data = await held.read(request, limit)
            yield held
        finally:
            held.let_go()

    def take(self, size: int, tenant: str) -> None:
        """Take room for a tenant. Raises Problem if there is not enough."""
        taken = self._taken.get(tenant, 0) + size
        if taken > self._left - size:
            raise Problem(
                503,
                ErrorCode.capacity,
                "The service has no memory left for a body of this size.",
                "Send the request again in a moment; files can be streamed with PUT /v1/sandboxes/{sandbox_id}/files.",
                retryable=True,
                headers={"Retry-After": "1"},
            )
        self._left -= size
        self._taken[tenant] = taken

    def give_back(self, size: int, tenant: str) -> None:
        """Have the room of a tenant back."""
        self._left += size
        self._taken[tenant] -= size
        if not self._taken[tenant]:
            del self._taken[tenant]


class HeldBody:
    """A body and the room that it takes."""

    def __init__(self, room: BodyRoom, tenant: str) -> None:
        self.data = b""
        self._room, self._tenant, self._size = room, tenant, 0
        self._kept_for: asyncio.Future[Any] | None = None

    async def read(self, request: Request, limit: int) -> bytes:
        """Return the bytes of the body. Raises Problem."""
        length = request.headers.get("content-length", "")
        if length.isascii() and length.isdecimal() and (len(length) > 18 or int(length) > limit):
            raise too_large(limit)
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > limit:
                raise too_large(limit)
            if size > LEAST_BYTES:
                self._room.take(size - self._size, self._tenant)
                self._size = size
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def keep_for(self, task: asyncio.Future[Any]) -> None:
        """Keep the room until the task is done."""
        self._kept_for = task

    def let_go(self) -> None:
        """Give the room back, now or when the task is done that it is kept for."""
        size, self._size, self.data = self._size, 0, b""
        if not size:
            return
        if self._kept_for is None or self._kept_for.done():
            self._room.give_back(size, self._tenant)
        else:
            self._kept_for.add_done_callback(lambda _: self._room.give_back(size, self._tenant))
