"""All sandboxes of the service: made, found again after a restart, paused, updated and removed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from sandbox.aio import AsyncEnvironment
from sandbox.docker.environment import DockerEnvironment
from sandbox.docker.spec import DEFAULT_IMAGE, SandboxSpec
from sandbox.errors import ErrorCode, SandboxError, SandboxUnavailableError
from sandbox.service.clock import now
from sandbox.service.http.bodies import CreateSandbox, ForkSandbox
from sandbox.service.http.problems import Problem
from sandbox.service.requests.answers import AnswerRoom
from sandbox.service.requests.bridges import Feeding
from sandbox.service.requests.under_way import Requests
from sandbox.service.settings import Settings
from sandbox.service.snapshots.snapshots import Snapshots
from sandbox.service.snapshots.stopping import Stopping
from sandbox.service.store.database import Database
from sandbox.service.store.tables import requests as request_rows
from sandbox.service.store.tables import sandboxes as rows
from sandbox.service.store.tables.sandboxes import SandboxRecord
from sandbox.service.store.tables.snapshots import SnapshotRecord
from sandbox.service.store.tidying import forget_old
from sandbox.service.tenants import ceiling as under
from sandbox.service.tenants.amounts import DiskRoom
from sandbox.service.tenants.ledger import CheckpointRoom
from sandbox.service.tenants.tenants import Tenants
from sandbox.service.volumes.content import Contents
from sandbox.service.volumes.volumes import Volumes

from . import engine
from .admission.admission import Admission
from .admission.pools import Pools
from .admission.workers import Workers
from .broadcast import Broadcast
from .ceilings import Ceilings
from .changes import Changes
from .checkpoints import Checkpoints, all_files, remove_unknown, sizes
from .clock_jumps import ClockJumps
from .creating import NewSandbox, new_sandbox, pauses_at_end, seconds_to_pause, stops_at_end
from .live_sandbox import LIFETIME_OVER, LiveSandbox, ended
from .provision import Provision, Provisions
from .reconciling import ALIVE, Reconciling
from .sandbox_data import sandbox_data
from .watching import Watching

T = TypeVar("T")
log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
TIDY_SECONDS = 600.0
# After these the sandbox may still run: it is attached to again.
_UNREACHED = ("pipe_broken", "engine_gone")
# How often that is tried.
ATTACH_AGAIN_SECONDS = 3.0
# And a removal that the engine did not carry out.
REMOVE_AGAIN_SECONDS = 3.0
# Ends that were to be expected: the guest's own clocks.
_EXPECTED = (LIFETIME_OVER, "idle")


class Fleet:
    """The sandboxes by their ids. Everything about them is written down before it is answered."""

    def __init__(self, settings: Settings, database: Database, broadcast: Broadcast, tenants: Tenants) -> None:
        self.settings, self.database, self.broadcast, self.tenants = settings, database, broadcast, tenants
        self._live: dict[str, LiveSandbox] = {}
        self.watching = Watching()
        self._answers, self._feeding = AnswerRoom(), Feeding()
        self._clock = ClockJumps(database)
        self.workers = Workers(settings, tenants)
        self.spawn, self._in_engine = self.workers.spawn, self.workers.in_engine
        self.pools = Pools(settings, database, self._in_engine, self.spawn)
        self._admission = Admission(database, tenants, self.pools, self._disk_room, drains=settings.drain)
        self._reconciling = Reconciling(lambda: self._all(over=False), lambda: self._in_engine(engine.states), self._settle)
        self.ceilings = Ceilings(tenants)
        present = partial(self._all, over=False)
        self.provisions = Provisions(settings, database, self.ceilings)
        self.snapshots = Snapshots(settings.data, database, tenants, self.workers)
        self.volumes = Volumes(database, tenants, self.workers, settings.e2b_templates.get("base", DEFAULT_IMAGE), present)
        self.contents = Contents(self)
        self._stopping = Stopping(
            database, self.snapshots, self.workers, tenants.ledger, self._change, self._remove, self.provisions.of
        )
        self.changes = Changes(
            *(self.workers, tenants, self.ceilings, present, self._attach, self._change, self._tell_end),
            self._stopping,
            self._attached_to,
        )

    async def _disk_room(self, *, exactly: bool) -> DiskRoom | None:
        """Return the room for disks, ``exactly`` with what the sandboxes have written, which takes longer. Raises SandboxError."""
        idents = frozenset(each.record.ident for each in self._all(over=False)) if exactly else frozenset()
        return await self._in_engine(lambda: engine.disk_room(idents))

    # Start and end

    async def load(self) -> None:
        """Read the sandboxes from the store, and attach to those that run in the background."""
        await self._clock.load()
        remove_unknown(self.settings.data, await self.database.call(all_files))
        stored = await self.database.call(sizes)
        for record in await self.database.call(_begun_anew):
            self._live[record.id] = live = self._make(record)
            self._admission.restore(record, stored.get(record.id, 0))
            if record.state in ("creating", "deleting"):
                self.spawn(self._finish_delete(live))
            elif record.state == "paused" and rows.stopped_at(record.options) is None:
                with contextlib.suppress(SandboxError):
                    live.release = engine.claim(record.ident)
            elif record.state == "running":
                live.attaching = self._attach(live, self.workers.background)
        await self.snapshots.load(self._stopped_at)
        await self.volumes.load()
        await self.pools.start()
        self.spawn(self._reconciling.work())
        self.spawn(self._look())
        self.spawn(self._tidy())

    def _stopped_at(self, ident: str) -> str | None:
        live = self._live.get(ident)
        return None if live is None or live.is_over else rows.stopped_at(live.record.options)

    async def _settle(self, live: LiveSandbox, state: str | None) -> None:
        """Have the record agree with the state of the container, None if there is none."""
        if rows.stopped_at(live.record.options) is not None:
            await self._stopping.settle(live)
        elif state not in ALIVE:
            await self.lose(live, ended(live.record))
        elif live.record.state == "paused":  # the last service did not come to write it down, or somebody else has woken it
            if live.environment is not None:
                await live.environment.resume()
            self.tenants.ledger.resume(live.record.id, forced=True)
            await self._change(live, replace(live.record, state="running"))

    async def close(self) -> None:
        """Leave all sandboxes running, or end them with ``stop_all``; requests under way end with the connection."""
        await self.workers.end_tasks()
        await self.pools.close()
        if self.settings.stop_all:
            await asyncio.gather(*(self.delete(each) for each in self._all(over=False)), return_exceptions=True)
        # A paused one stays paused only if it is not closed: who closes it wakes it, so that it can end by itself.
        running = [each.environment for each in self._all() if each.record.state == "running" and each.environment]
        await asyncio.gather(*(each.close() for each in running), return_exceptions=True)
        self.workers.close()

    async def drain(self, seconds: float) -> None:
        """Wait until no request is under way, at most so long."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and any(each.requests.under_way() for each in self._all()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    # What there is

    def find(self, tenant: str, ident: str) -> LiveSandbox:
        """Return a sandbox of the tenant. Raises Problem: those of others do not exist."""
        found = self._live.get(ident)
        if found is None or found.record.tenant != tenant:
            raise Problem(
                404,
                ErrorCode.sandbox_not_found,
                f"There is no sandbox {ident!r:.80}.",
                "List yours with GET /v1/sandboxes, or create one with POST /v1/sandboxes.",
            )
        return found

    def known(self, ident: str) -> LiveSandbox | None:
        """Return a sandbox of any tenant, or None."""
        return self._live.get(ident)

    def all(self) -> list[LiveSandbox]:
        """Return the sandboxes of all tenants."""
        return list(self._live.values())

    def of(self, tenant: str) -> list[SandboxRecord]:
        """Return the sandboxes of a tenant, the latest first."""
        found = [each.record for each in self._live.values() if each.record.tenant == tenant]
        return sorted(found, key=lambda record: (-record.created_at, record.id))

    def count_states(self) -> Counter[str]:
        """Return how many sandboxes are in each state. From any thread."""
        return Counter(each.record.state for each in tuple(self._live.values()))

    def _all(self, *, over: bool = True) -> list[LiveSandbox]:
        return [each for each in self._live.values() if over or not each.is_over]

    # Create

    async def create(
        self, tenant: str, body: CreateSandbox, key: str | None, digest: bytes, files: SnapshotRecord | None = None
    ) -> dict[str, Any]:
        """Create a sandbox and return what is answered. With the idempotency ``key`` of an earlier one, that is answered.

        It gets the ``files`` of a snapshot. Raises Problem, SandboxError. It is created even if the caller does not wait for it.
        """
        ceiling = self.tenants.active(tenant).ceiling
        spec, life = body.spec(self.settings, ceiling), body.life_seconds(self.settings, ceiling)
        try:
            provision = await self.provisions.for_new(tenant, body)
        except Problem:  # a secret was deleted since it was created
            if (answer := await self._admission.answer_to_first(tenant, key, digest)) is not None:
                return answer
            raise
        new = new_sandbox(tenant, spec, _with_root(provision, files), body.metadata, life)
        return await self._create(self.pools.take(new, spec), key, digest, files, body)

    async def create_like(
        self, record: SandboxRecord, files: SnapshotRecord, life_seconds: float, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Create a sandbox like that of ``record``, with the files of a snapshot, and ``options`` in the place of its own.

        Raises Problem, SandboxError.
        """
        ceiling = self.tenants.active(record.tenant).ceiling
        spec = under.narrowed(ceiling, SandboxSpec.from_data(record.spec))
        life = under.chosen_life(ceiling, life_seconds, life_seconds)
        provision = self.provisions.of(record)
        provision = replace(provision, options={**provision.options, **options})
        new = new_sandbox(record.tenant, spec, _with_root(provision, files), record.metadata, life)
        return await self._create(self.pools.take(new, spec), None, b"", files)

    async def create_new(self, new: NewSandbox) -> dict[str, Any]:
        """Create a sandbox of the service's own for a tenant. Raises Problem, SandboxError."""
        return await self._create(new, None, b"", None)

    async def _create(
        self, new: NewSandbox, key: str | None, digest: bytes, files: SnapshotRecord | None, body: CreateSandbox | None = None
    ) -> dict[str, Any]:
        made, tenant = [new], new.record.tenant
        if (first := await self._begin(tenant, made, key, digest)) is not None:
            return first

        async def start() -> dict[str, Any]:
            async with self.snapshots.used(files) if files is not None else contextlib.nullcontext():
                if not await self.pools.begin(made):
                    async with self.workers.creation(tenant):
                        await self._in_engine(made[0].environment.start, tenant)
                if files is not None:
                    await self.snapshots.fill(made[0].environment, files)
            if body is not None:
                await body.begun(made[0].environment, self.settings)
            return await self._started(made, lambda items: items[0])

        return await self._created(made, start)

    async def fork(
        self, live: LiveSandbox, body: ForkSandbox, key: str | None, digest: bytes
    ) -> dict[str, Any]:
        """Create more sandboxes like this one, with the files of its checkpoint or its present ones; see ``create``."""
        source = await live.ready()
        if body.checkpoint is not None:
            await live.checkpoints.load(source)
        record, allowed = live.record, self.tenants.active(live.record.tenant).ceiling
        spec = under.narrowed(allowed, live.spec)
        life = under.chosen_life(allowed, body.time_to_live_seconds, record.time_to_live_seconds)
        metadata = record.metadata if body.metadata is None else body.metadata
        provision = self.provisions.of(record)
        made = [new_sandbox(record.tenant, spec, provision, metadata, life) for _ in range(body.count)]
        if (first := await self._begin(record.tenant, made, key, digest)) is not None:
            return first

        async def start() -> dict[str, Any]:
            environments = [each.environment for each in made]
            async with self.workers.creation(record.tenant):
                await self._in_engine(
                    lambda: engine.fork(source.environment, environments, body.checkpoint), record.tenant
                )
            return await self._started(made, lambda items: {"items": items, "next_cursor": None})

        return await self._created(made, start)

    async def _begin(
        self, tenant: str, made: list[NewSandbox], key: str | None, digest: bytes
    ) -> dict[str, Any] | None:
        """Write down what is about to be created; return the answer to the first creation with that key, if there is one."""
        first = await self._admission.begin(tenant, made, key, digest)
        if first is None:
            for each in made:
                engine.mark(each.environment, self.database.service_id)
                self._live[each.record.id] = self._make(each.record)
        return first

    async def _created(
        self, made: list[NewSandbox], start: Callable[[], Coroutine[Any, Any, dict[str, Any]]]
    ) -> dict[str, Any]:
        """Start what was written down, or leave nothing of it."""
        lives = [self._live[each.record.id] for each in made]

        async def work() -> dict[str, Any]:
            async with contextlib.AsyncExitStack() as changing:
                for live in lives:
                    await changing.enter_async_context(live.changing)
                try:
                    return await start()
                except BaseException:
                    for live, each in zip(lives, made, strict=True):
                        await self._abandon(live, each)
                    raise

        return await asyncio.shield(self.spawn(work()))

    async def _abandon(self, live: LiveSandbox, made: NewSandbox) -> None:
        """Leave nothing of a creation that failed; what the engine does not remove now is removed later."""
        live.record = replace(live.record, state="deleting")  # the store has "creating": the next service does the same to it
        await self.database.call(lambda connection: request_rows.undo_creation(connection, live.record.id))
        with contextlib.suppress(SandboxError):
            await self._in_engine(made.environment.remove, live.record.tenant)
        if await self._remove(live):
            await self._forget(live)

    async def _started(
        self, made: list[NewSandbox], answer_of: Callable[[list[dict[str, Any]]], dict[str, Any]]
    ) -> dict[str, Any]:
        """Note that they run, together with the answer for those who ask again; return that."""
        records = [
            replace(each.record, state="running", description=each.environment.lasting_description()) for each in made
        ]
        answer = answer_of([sandbox_data(record) for record in records])

        def write(connection: Any) -> Any:
            request_rows.finish_creation(connection, records[0].id, answer)
            return [rows.change(connection, record, now()) for record in records]

        events = await self.database.call(write)
        for each, record, event in zip(made, records, events, strict=True):
            live = self._live[record.id]
            live.record = record
            self._attached_to(live, AsyncEnvironment(each.environment))
            self.broadcast.publish(event)
        return answer

    # Attach

    def _attach(self, live: LiveSandbox, turns: Any = None) -> asyncio.Task[AsyncEnvironment]:
        return self.spawn(self._attached(live, turns or contextlib.nullcontext()))

    async def _attached(self, live: LiveSandbox, turns: Any) -> AsyncEnvironment:
        async with turns:
            if live.environment is not None:
                return live.environment
            if live.release is not None:
                live.release()
                live.release = None
            await self.changes.cut(live)
            record = live.record
            try:
                provision = self.provisions.of(record)
                found = await self._in_engine(lambda: engine.attached(record.ident, live.spec, provision), record.tenant)
            except SandboxError as error:
                if error.code is ErrorCode.sandbox_not_found:
                    await self.lose(live, ended(live.record))
                    raise live.loss() from error
                log.warning("could not attach to the sandbox %s: %s", live.record.id, error)
                raise
            self._attached_to(live, made := AsyncEnvironment(found))
            await self._tell_end(live)
            return made

    def _attached_to(self, live: LiveSandbox, environment: AsyncEnvironment) -> None:
        live.environment = environment
        environment.on_connection = self.watching.connection

    async def _tell_end(self, live: LiveSandbox) -> None:
        """Have the guest end the sandbox in time by itself, in case no service is there then."""
        environment = live.environment
        if environment is not None and isinstance(inner := environment.environment, DockerEnvironment):
            left = max(1.0, live.record.ends_at - now()) + seconds_to_pause(live.record.options)
            await self._in_engine(lambda: inner.live_for(left), live.record.tenant)

    # Change

    async def delete(self, live: LiveSandbox) -> None:
        """End a sandbox and forget it. Raises Problem if the engine does not answer: it is tried again then."""
        async with live.changing:
            if live.record.id not in self._live:
                return
            if not live.is_over:
                await self._change(live, replace(live.record, state="deleting"))
            if not await self._remove(live):
                raise Problem(
                    503,
                    ErrorCode.engine_unavailable,
                    f"The engine has not removed the sandbox {live.record.id} yet.",
                    "The service tries again by itself; check later with GET /v1/sandboxes/{sandbox_id}.",
                    retryable=True,
                    headers={"Retry-After": "5"},
                )
            await self._forget(live)

    async def delete_all(self, tenant: str) -> None:
        """End all sandboxes of a tenant that makes no new ones. Raises Problem if the engine has not removed all of them."""
        while found := [each for each in self._all() if each.record.tenant == tenant]:
            problems = [each for each in await asyncio.gather(*map(self.delete, found), return_exceptions=True) if each]
            if problems:
                raise problems[0]

    async def _finish_delete(self, live: LiveSandbox) -> None:
        """Remove what was being created or deleted when that ended halfway; nobody was answered yet."""
        async with live.changing:
            may_appear = live.record.state == "creating"  # the engine may still be at it
            while not await self._remove(live, may_appear=may_appear):  # noqa: ASYNC110  # nobody tells when it is possible
                await asyncio.sleep(REMOVE_AGAIN_SECONDS)
            await self._forget(live, undo_creation=True)

    async def lose(self, live: LiveSandbox, error: SandboxUnavailableError) -> None:
        """Note that a sandbox is gone: it is listed for a while with the reason, and what is left of it is removed."""
        if live.is_over or live.record.state == "deleting":
            return
        if error.reason in _UNREACHED:
            await self._let_go(live)
            return
        if error.reason == LIFETIME_OVER:
            error = ended(live.record, over=True)
        state: rows.State = "ended" if error.reason in _EXPECTED else "lost"
        record = replace(
            live.record, state=state, reason=error.reason, post_mortem=error.message, ended_at=now(), sealed=b""
        )
        await self._change(live, record)
        await self._clear(live)

    async def _clear(self, live: LiveSandbox) -> None:
        """Remove what is left of a sandbox that is over, and write down that nothing is; else it is tried again."""
        live.attach_at = time.monotonic() + REMOVE_AGAIN_SECONDS
        await live.checkpoints.remove()
        await self._stopping.forget(live)
        if live.record.reason == "taken_over":  # it is another's
            await self._let_go(live)
        elif not await self._remove(live):
            return
        record = replace(live.record, gone_at=now())
        await self.database.call(lambda connection: rows.update(connection, record))
        live.record = record
        self.tenants.ledger.release(record.id)

    async def _let_go(self, live: LiveSandbox) -> None:
        """Leave the sandbox as it is, without a connection."""
        environment, live.environment, live.attaching = live.environment, None, None
        if environment is not None:
            with contextlib.suppress(SandboxError):
                await environment.close()

    async def _remove(self, live: LiveSandbox, *, may_appear: bool = False) -> bool:
        if live.attaching not in (None, asyncio.current_task()):
            await asyncio.wait([live.attaching])  # else it takes hold of what is being removed
        if live.release is not None:
            live.release()
            live.release = None
        environment, live.environment = live.environment, None
        if environment is not None:
            async with self.workers.calls.turn(live.record.tenant):
                with contextlib.suppress(SandboxError):
                    await environment.remove()
        return await self._in_engine(lambda: engine.remove(live.record.ident, may_appear=may_appear), live.record.tenant)

    async def _forget(self, live: LiveSandbox, *, undo_creation: bool = False) -> None:
        record = live.record

        def forget(connection: Any) -> Any:
            rows.delete(connection, record.id)
            if undo_creation:
                request_rows.undo_creation(connection, record.id)
            data = {"sandbox_id": record.id, "state": "deleted", "reason": record.reason}
            return rows.add_event(connection, record.tenant, record.id, now(), data)

        event = await self.database.call(forget)
        await live.checkpoints.remove()
        await self._stopping.forget(live)
        live.requests.forget_answers()
        self._live.pop(record.id, None)
        self.tenants.ledger.release(record.id)
        self.broadcast.publish(event)
        if record.options.get("root_image"):  # it may have been the last that needed a deleted snapshot
            self.spawn(self.snapshots.clear(record.tenant))

    async def _change(self, live: LiveSandbox, record: SandboxRecord) -> None:
        event = await self.database.call(lambda connection: rows.change(connection, record, now()))
        live.record = record
        self.broadcast.publish(event)

    # What happens by itself

    async def _look(self) -> None:
        """See again and again who is gone, and whose time is over."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._clock.look(self._all(over=False))
            for live in self._all():
                try:
                    self._look_at(live)
                except Exception:  # the others are looked at all the same
                    log.exception("could not look at the sandbox %s", live.record.id)
            self.tenants.note_transfers()

    async def _tidy(self) -> None:
        """Forget again and again what is old, a little at a time."""
        while True:
            await asyncio.sleep(TIDY_SECONDS)
            with contextlib.suppress(SandboxError):  # the store cannot be written: the next time
                await forget_old(self.database, tuple(self._live), now())
            await self.snapshots.tidy()
            await self.volumes.tidy()

    def _look_at(self, live: LiveSandbox) -> None:
        record = live.record
        if live.changing.locked():
            return
        if record.ended_at is not None:
            if record.gone_at is None and time.monotonic() > live.attach_at:
                self.spawn(self._alone(live, partial(self._clear, live)))
            elif record.gone_at is not None and now() - record.ended_at > self.settings.lost_seconds:
                self.spawn(self._alone(live, partial(self._forget, live)))
        elif record.state == "deleting":
            self.spawn(self._finish_delete(live))
        elif time.monotonic() > live.deadline:
            pauses = record.state == "running" and pauses_at_end(record.options)
            self.spawn(self._pause_at_end(live) if pauses else self._alone(live, partial(self.lose, live, ended(record))))
        elif live.environment is not None:
            if (loss := engine.loss(live.environment.environment)) is not None:
                self.spawn(self._alone(live, partial(self.lose, live, loss)))
        elif record.state == "running" and live.may_attach_again():
            live.attach_at = time.monotonic() + ATTACH_AGAIN_SECONDS
            live.attaching = self._attach(live, self.workers.background)

    async def _pause_at_end(self, live: LiveSandbox) -> None:
        """Pause a sandbox whose time is over, for as long as its tenant may have one; end it if that is not possible."""
        try:
            await self.changes.pause_for_long(live, memory=not stops_at_end(live.record.options))
        except (SandboxError, Problem) as error:
            log.warning("the sandbox %s could not be paused at its end: %s", live.record.id, error)
            await self._alone(live, partial(self.lose, live, ended(live.record, over=True)))

    async def _alone(self, live: LiveSandbox, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do ``work`` while nothing else changes the sandbox."""
        async with live.changing:
            if live.record.id in self._live:
                await work()

    def _make(self, record: SandboxRecord) -> LiveSandbox:
        room = CheckpointRoom(self.tenants.ledger, record.tenant, record.id)
        checkpoints = Checkpoints(self.database, self.settings.data, record.id, room)
        output = self.tenants.find(record.tenant).output
        attach = lambda: self._attach(self._live[record.id])  # noqa: E731
        requests = Requests(record.tenant, self._answers, self._feeding)
        return LiveSandbox(record, attach, output, checkpoints, self.watching, requests=requests)


def _with_root(provision: Provision, files: SnapshotRecord | None) -> Provision:
    """Return what a sandbox gets that has the files of a snapshot."""
    return provision if files is None else replace(provision, options={**provision.options, "root_image": files.image})


def _begun_anew(connection: Any) -> list[SandboxRecord]:
    """Return all sandboxes. A request repeated for one that was being created makes another one, while this is removed."""
    found = rows.every(connection)
    for record in found:
        if record.state == "creating":
            request_rows.undo_creation(connection, record.id)
    return found
