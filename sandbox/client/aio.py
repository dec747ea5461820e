"""AsyncRemoteEnvironment: a sandbox of a service, for asyncio."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from functools import partial
from typing import Any, Self, cast

import httpx

from sandbox.aio import AsyncEnvironment
from sandbox.envelope import Envelope
from sandbox.environment.sandboxed import SandboxedEnvironment
from sandbox.operations import Request
from sandbox.operations.base import Transfer
from sandbox.pipe.watching import Watch, onlooker

from .environment import RemoteEnvironment


class AsyncRemoteEnvironment(AsyncEnvironment):
    """A ``RemoteEnvironment`` of the same options for asyncio: ``async with AsyncRemoteEnvironment(url=...) as env``.

    It belongs to the event loop that first uses it. A request is sent in the loop, and no thread waits for its answer; threads
    carry out start and end, files of this host, and what streams beside a request.
    """

    __slots__ = ("_client",)

    environment: RemoteEnvironment

    def __init__(self, *args: Any, **options: Any) -> None:
        self._wrap(RemoteEnvironment(*args, **options))

    def _wrap(self, environment: RemoteEnvironment) -> None:
        super().__init__(environment)
        self._client: httpx.AsyncClient | None = None

    @classmethod
    async def attach(cls, id: str, **options: Any) -> Self:  # noqa: A002
        """See ``RemoteEnvironment.attach``."""
        found = cls.__new__(cls)
        cls._wrap(found, await asyncio.to_thread(partial(RemoteEnvironment.attach, id, **options)))
        return found

    @property
    def id(self) -> str:
        """See ``RemoteEnvironment.id``."""
        return self.environment.id

    async def update(self, **options: Any) -> None:
        """See ``RemoteEnvironment.update``."""
        await self._call(partial(self.environment.update, **options))

    async def close(self, *, wait: bool = False) -> None:
        """See ``RemoteEnvironment.close``."""
        try:
            await super().close(wait=wait)
        finally:
            await self._disconnect()

    async def remove(self) -> None:
        """See ``RemoteEnvironment.remove``."""
        try:
            await super().remove()
        finally:
            await self._disconnect()

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _awaited(self, kind: type[Request] | None, watch: object = None) -> SandboxedEnvironment | None:
        """See the base class: whatever sends one request and streams nothing."""
        streams = isinstance(watch, Watch) and (watch.listens or watch.stdin is not None)
        if kind is None or issubclass(kind, Transfer) or streams:
            return None
        return cast("SandboxedEnvironment", self.environment)  # for its methods that both have

    async def _perform_awaited(self, env: SandboxedEnvironment, request: Request, watch: Watch | None) -> Envelope[Any]:  # noqa: ARG002
        remote = self.environment
        with onlooker(None):  # it would be called in the loop
            asked = remote.asked(request, watch)
        if asked.source is not None:  # more input than a request holds
            return await self._watched(partial(remote.perform, request), type(request), watch)
        if remote.life.is_to_renew:
            await asyncio.to_thread(remote.renew)
        if self._client is None:
            self._client = remote.service.asynchronous()
        async with nullcontext() if request.waits else self._turn():
            with remote.explaining():
                return remote.with_owed(await asked.carry_out_awaited(self._client))
