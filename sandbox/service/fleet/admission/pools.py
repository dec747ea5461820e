"""Sandboxes that were started ahead, by what is asked of them: a creation that fits takes one, and does not wait for the engine.

A member has run nothing for anybody (decision 0012). The name of its container is in the store from before it is made until
nothing is left of it, or until a creation takes it: then one transaction makes the name that of a sandbox. So whatever a killed
service leaves is known by name, and no member is mistaken for somebody's sandbox, or the other way round.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from sandbox.docker.environment import DockerEnvironment
from sandbox.docker.spec import SandboxSpec
from sandbox.errors import SandboxError, SandboxUnavailableError, configuration_error
from sandbox.network.policy import Network
from sandbox.pool import DEFAULT_MAX_AGE_SECONDS
from sandbox.service.fleet import engine
from sandbox.service.fleet.creating import NewSandbox
from sandbox.service.fleet.provision import NOTHING
from sandbox.service.http.bodies import CreateSandbox, read_body
from sandbox.service.http.problems import Problem
from sandbox.service.settings import PoolSettings, Settings
from sandbox.service.store.database import Database
from sandbox.service.store.tables import members as rows
from sandbox.service.store.tables import sandboxes as sandbox_rows
from sandbox.standby import Member, Standby

log = logging.getLogger(__name__)

# A guest that stands by begins in a millisecond; these threads are not those in which others are started, which takes longer.
BEGINNERS = 4
# How long the store may take to write a name down, and when the removal of what is left over is tried again.
NOTE_SECONDS, AGAIN_SECONDS = 10.0, 30.0


class Pools:
    """The pools of a service. Raises SandboxError ``invalid_configuration`` for one whose sandboxes could not be made.

    ``in_engine`` calls in a thread of those that speak with the engine; ``spawn`` begins a task that ends with the service.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        in_engine: Callable[[Callable[[], Any]], Awaitable[Any]],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._database, self._in_engine, self._spawn = database, in_engine, spawn
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beginners = ThreadPoolExecutor(BEGINNERS, thread_name_prefix="gamebox-begin")
        self._standbys = [
            (spec, Standby(self._maker(spec), size, size, DEFAULT_MAX_AGE_SECONDS, self._discarded))
            for spec, size in ([] if settings.drain else specs(settings))
        ]

    # Start and end

    async def start(self) -> None:
        """Begin to make members, and remove what a service before this one has left of its own."""
        self._loop = asyncio.get_running_loop()
        for ident in await self._database.call(rows.every):
            self._spawn(self._remove(ident, may_appear=True))
        for _, standby in self._standbys:
            standby.start()

    async def close(self) -> None:
        """Remove all members, and wait until they are gone; what the engine does not remove is left to the next service."""
        if self._loop is None:
            return
        self._loop = None
        closing = [asyncio.to_thread(standby.close, wait=True) for _, standby in self._standbys]
        await asyncio.gather(*closing, return_exceptions=True)
        left = await self._database.call(rows.every)
        await asyncio.gather(*map(self._removed, left), return_exceptions=True)
        self._beginners.shutdown(wait=False)

    def ready(self) -> int:
        """Return how many members wait to be taken."""
        return sum(standby.stats().ready for _, standby in self._standbys)

    # Make

    def _maker(self, spec: SandboxSpec) -> Callable[[], DockerEnvironment]:
        def make() -> DockerEnvironment:
            """Write the name down, and return what has it. Called in a thread of the pool's own."""
            environment, ident = engine.prepared(spec, NOTHING)
            engine.mark(environment, self._database.service_id)
            if (loop := self._loop) is None:
                raise SandboxUnavailableError("closed", "The service ends.")
            asyncio.run_coroutine_threadsafe(self._note(ident), loop).result(NOTE_SECONDS)
            return environment

        return make

    async def _note(self, ident: str) -> None:
        await self._database.call(lambda connection: rows.insert(connection, ident))

    def _discarded(self, environment: DockerEnvironment) -> None:
        """Forget a member that has ended before anybody took it, once it is gone. From any thread."""
        if (loop := self._loop) is not None:
            ident = environment.backend.name
            loop.call_soon_threadsafe(lambda: self._spawn(self._remove(ident)))

    async def _remove(self, ident: str, *, may_appear: bool = False) -> None:
        while not await self._removed(ident, may_appear=may_appear):  # noqa: ASYNC110  # nobody tells when the engine is there again
            await asyncio.sleep(AGAIN_SECONDS)

    async def _removed(self, ident: str, *, may_appear: bool = False) -> bool:
        """Remove what is left of a member, and forget it if it is known to be gone; return whether it is."""
        gone: bool = await self._in_engine(lambda: engine.remove(ident, may_appear=may_appear))
        if gone:
            await self._database.call(lambda connection: rows.delete(connection, ident))
        return gone

    # Hand out

    def take(self, new: NewSandbox, spec: SandboxSpec) -> NewSandbox:
        """Return the sandbox in the container of a member, if one of that spec is ready."""
        wanted = _of_container(spec)
        standby = next((standby for known, standby in self._standbys if known == wanted), None)
        # A member knows no name of a package cache.
        fits = spec.network.mode != "bridge" and new.provision.cache is None and not new.environment.backend.has_more_than_spec()
        member = standby.take() if standby is not None and fits else None
        if standby is None or member is None:
            return new
        record = replace(new.record, ident=member.environment.backend.name)
        return replace(new, record=record, taken=Taken(standby, member))

    async def hand_out(self, made: Sequence[NewSandbox], write: Callable[[sqlite3.Connection], Any]) -> Any:
        """Return what ``write(connection)`` returns: members become sandboxes in its transaction, or go back if it is not None."""

        def write_all(connection: sqlite3.Connection) -> Any:
            if (first := write(connection)) is None:
                for each in made:
                    rows.delete(connection, each.record.ident)
            return first

        taken = [each.taken for each in made if each.taken is not None]
        try:
            first = await self._database.call(write_all)
        except BaseException:  # it may have been written all the same: the next service removes what it finds then
            for each in taken:
                self._spawn(self._end(each))
            raise
        if first is not None:
            for each in taken:
                each.give_back()
        return first

    async def _end(self, taken: Taken) -> None:
        await asyncio.to_thread(taken.environment.close)
        await self._remove(taken.environment.backend.name)

    async def begin(self, made: list[NewSandbox]) -> bool:
        """Start the sandbox with its member; return whether it runs.

        If the member was dead, ``made`` is the same sandbox without it, with another container to come. Raises SandboxError.
        """
        new = made[0]
        if new.taken is None:
            return False
        new.environment.adopt(new.taken.environment, _do_nothing)
        try:
            await asyncio.get_running_loop().run_in_executor(self._beginners, new.environment.start)
        except SandboxUnavailableError as error:
            log.info("a sandbox of a pool was dead: %s", error)
            if not await self._in_engine(lambda: engine.remove(new.record.ident)):
                raise
            spec = SandboxSpec.from_data(new.record.spec)
            environment, ident = engine.prepared(spec, new.provision)
            engine.mark(environment, self._database.service_id)
            record = replace(new.record, ident=ident)
            await self._database.call(lambda connection: sandbox_rows.update(connection, record))
            made[0] = NewSandbox(record, environment, new.provision)
            return False
        return True


class Taken:
    """A member that was taken out of its pool."""

    def __init__(self, standby: Standby[DockerEnvironment], member: Member[DockerEnvironment]) -> None:
        self._standby, self._member = standby, member

    @property
    def environment(self) -> DockerEnvironment:
        """What stands by, to be adopted."""
        return self._member.environment

    def give_back(self) -> None:
        """Put it back: nobody needs it."""
        self._standby.give_back(self._member)


def specs(settings: Settings) -> list[tuple[SandboxSpec, int]]:
    """Return what the members of each pool are, and how many. Raises SandboxError ``invalid_configuration``."""
    asked = [*([PoolSettings(size=settings.pool)] if settings.pool else []), *settings.pools]
    found: list[tuple[SandboxSpec, int]] = []
    for each in asked:
        try:
            wanted = read_body(CreateSandbox, json.dumps(each.fields()).encode())
            spec = _of_container(wanted.spec(settings, settings.ceiling))
            engine.prepared(spec, NOTHING)  # refuses what a sandbox would be refused for, and starts nothing
        except (Problem, SandboxError) as error:
            words = error.detail if isinstance(error, Problem) else error.message
            raise configuration_error(f"A pool of {each.image!r} cannot be kept: {words}", "Correct the setting pools.") from error
        if any(spec == known for known, _ in found):
            raise configuration_error(f"Two pools are for the same sandboxes of {each.image!r}.", "Leave out one of them.")
        found.append((spec, each.size))
    return found


def _of_container(spec: SandboxSpec) -> SandboxSpec:
    """Return what of a spec makes the container: the rest is told to the guest when a sandbox is taken."""
    limits = replace(spec.limits, lifetime_seconds=None, idle_seconds=None)
    return replace(spec, env=(), network=Network.none(), limits=limits)


def _do_nothing() -> None:
    """Nobody is told of the end of a sandbox that was taken."""
