"""A session of ``run`` as an object, for asyncio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self, Unpack

from sandbox import operations as op
from sandbox.envelope import Envelope

from .generated.coroutines import AsyncRunOptions, GeneratedCoroutines
from .sessions import ended, is_among


class AsyncSession:
    """A ``Session`` for asyncio: ``async with env.session("build") as session``."""

    def __init__(self, environment: GeneratedCoroutines, name: str, user: str | int | None = None) -> None:
        self.name = name
        self.user = user
        self._environment = environment

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}{'' if self.user is None else f' of {self.user!r}'}>"

    async def open(self) -> Envelope[op.OpenSessionResult]:
        """See ``Session.open``."""
        return await self._environment.open_session(self.name, user=self.user)

    async def run(
        self, command: str | Sequence[str] | None = None, **options: Unpack[AsyncRunOptions]
    ) -> Envelope[op.RunResult]:
        """See ``Session.run``."""
        options.update({"session": self.name, "user": self.user, "needs_session": True})
        return await self._environment.run(command, **options)

    async def exists(self) -> bool:
        """See ``Session.exists``."""
        return is_among(self.name, (await self._environment.sessions(user=self.user)).unwrap())

    async def close(self) -> Envelope[op.EndSessionResult]:
        """See ``Session.close``."""
        return ended(self.name, await self._environment.end_session(self.name, user=self.user))

    async def __aenter__(self) -> Self:
        (await self.open()).unwrap()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
