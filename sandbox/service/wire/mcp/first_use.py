"""The sessions of a service, made by the first request to /mcp: importing the SDK takes as long as the rest of the start."""

from __future__ import annotations

import asyncio
import contextvars
from typing import TYPE_CHECKING

from sandbox.service.house import House

if TYPE_CHECKING:
    from .sessions import Sessions


class McpSessions:
    """Makes the sessions when they are first asked for. ``close`` ends them."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._ending = asyncio.Event()
        self._made: asyncio.Future[Sessions | None] | None = None
        self._serving: asyncio.Task[None] | None = None

    async def get(self) -> Sessions | None:
        """Return the sessions; None if the SDK is not installed."""
        if self._made is None:
            self._made = asyncio.get_running_loop().create_future()
            # What runs until the end of the service is no part of the request, nor of its span.
            self._serving = asyncio.create_task(self._serve(self._made), context=contextvars.Context())
        return await asyncio.shield(self._made)

    async def close(self) -> None:
        """End the sessions, with the sandboxes that they have created."""
        self._ending.set()
        if self._serving is not None:
            await self._serving

    async def _serve(self, made: asyncio.Future[Sessions | None]) -> None:
        """Serve until the end. The SDK wants its sessions to begin and to end in one task."""
        try:
            await asyncio.to_thread(_import)
            from .sessions import Sessions

            found = Sessions(self._house)
        except ImportError:
            made.set_result(None)
            return
        except BaseException as error:
            made.set_exception(error)
            raise
        async with found.run():
            made.set_result(found)
            await self._ending.wait()


def _import() -> None:
    from . import sessions  # noqa: F401
