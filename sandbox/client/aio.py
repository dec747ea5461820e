"""AsyncRemoteEnvironment: a sandbox of a service, for asyncio."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Self

from sandbox.aio import AsyncEnvironment

from .environment import RemoteEnvironment


class AsyncRemoteEnvironment(AsyncEnvironment):
    """A ``RemoteEnvironment`` of the same options for asyncio: ``async with AsyncRemoteEnvironment(url=...) as env``.

    Requests are waited for in threads.
    """

    __slots__ = ()

    environment: RemoteEnvironment

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(RemoteEnvironment(*args, **options))

    @classmethod
    async def attach(cls, id: str, **options: Any) -> Self:  # noqa: A002
        """See ``RemoteEnvironment.attach``."""
        found = cls.__new__(cls)
        AsyncEnvironment.__init__(found, await asyncio.to_thread(partial(RemoteEnvironment.attach, id, **options)))
        return found

    @property
    def id(self) -> str:
        """See ``RemoteEnvironment.id``."""
        return self.environment.id

    async def update(self, **options: Any) -> None:
        """See ``RemoteEnvironment.update``."""
        await self._call(partial(self.environment.update, **options))
