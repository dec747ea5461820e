"""Builds under way: each takes a turn, a place in its tenant's quotas like a sandbox, and ends as ready or with a sentence."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field, replace
from typing import Any

from sandbox.client.http.codes import ProblemCode
from sandbox.docker.builds.build import Build, BuildLimits, BuiltImage
from sandbox.docker.builds.layers import ImageStore
from sandbox.docker.builds.log import LogEntry
from sandbox.docker.builds.room import Room
from sandbox.docker.builds.steps import Plan
from sandbox.docker.spec import SandboxSpec
from sandbox.errors import SandboxError
from sandbox.frozen import dataclass
from sandbox.service.clock import now
from sandbox.service.fleet.admission.turns import Turns
from sandbox.service.fleet.admission.workers import Workers
from sandbox.service.fleet.ceilings import Ceilings
from sandbox.service.http.problems import Problem
from sandbox.service.settings import Settings
from sandbox.service.store.database import Database
from sandbox.service.store.tables import templates as rows
from sandbox.service.store.tables.templates import BuildRecord
from sandbox.service.tenants.amounts import amounts_of
from sandbox.service.tenants.tenants import Tenants, owner_of
from sandbox.text.wording import size

from .archives import Archives
from .build_log import BuildLog

log = logging.getLogger(__name__)

RETRY_SECONDS = 15
MOST_REASON_CHARS = 4000
# With those of the service.
MOST_STEPS = 110
# Of output: the logs are in no quota, so the store keeps few of them (``MOST_LOGS``), none of them large.
LOG_BYTES = 512 << 10
# A build that was cancelled is waited for when the service ends.
END_SECONDS = 30.0
STOPPED = "The service was stopped while this build was under way: nothing of it was kept. Build the template again."


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be built. The first ``own_steps`` steps of the plan are the service's: clients do not count them.

    ``worded`` returns a sentence of the builder's about a step in the words of the dialect.
    """

    record: BuildRecord
    plan: Plan
    spec: SandboxSpec
    own_steps: int = 0
    worded: Callable[[str, str], str] = lambda sentence, _step: sentence


@dataclass(eq=False, slots=True)
class UnderWay:
    """A build that was started and has not ended."""

    order: Order
    log: BuildLog = field(default_factory=BuildLog)
    build: Build | None = None
    is_cancelled: bool = False

    def cancel(self) -> None:
        """End it soon."""
        self.is_cancelled = True
        if self.build is not None:
            self.build.cancel()


class Builds:
    """Carries out builds. ``place`` is the ledger's name of one."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        tenants: Tenants,
        ceilings: Ceilings,
        workers: Workers,
        archives: Archives,
    ) -> None:
        self._settings, self._database, self._tenants = settings, database, tenants
        self._ceilings, self._workers, self._archives = ceilings, workers, archives
        self._turns = Turns(settings.template_builds)
        self._threads = ThreadPoolExecutor(settings.template_builds, thread_name_prefix="gamebox-build")
        self._under_way: dict[str, UnderWay] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._rooms: dict[str, Room] = {}  # by tenants that have builds under way, which share them
        self._closing = False

    def owner(self, tenant: str) -> str:
        """Return the owner of the images of a tenant."""
        return owner_of(self._database.service_id, tenant)

    def images(self, tenant: str) -> ImageStore:
        """Return the images of a tenant."""
        return ImageStore(self.owner(tenant))

    def log_of(self, build: str) -> BuildLog | None:
        """Return the log of a build that is under way."""
        found = self._under_way.get(build)
        return None if found is None else found.log

    def count(self, tenant: str) -> int:
        """Return how many builds of a tenant are under way."""
        return sum(each.order.record.tenant == tenant for each in self._under_way.values())

    async def start(self, order: Order) -> None:
        """Have a build carried out. Raises Problem if it may not be, or if it was started already."""
        record = order.record
        account = self._tenants.active(record.tenant)
        if self._closing:
            raise Problem(503, ProblemCode.draining, "The service is stopping.", "Build it again when one has started.")
        if record.state != "waiting" or record.id in self._under_way:
            raise _started(record)
        if self.count(record.tenant) >= account.quota.template_builds:
            raise _over_quota(
                "template_builds",
                f"{self.count(record.tenant)} builds of this tenant are under way, of {account.quota.template_builds} at once.",
                "Wait until one has ended.",
            )
        self._tenants.ledger.reserve(record.tenant, {_place(record): amounts_of(order.spec)}, None)
        under_way = self._under_way[record.id] = UnderWay(order)
        try:
            building = replace(record, state="building", updated_at=now())
            if not await self._database.call(lambda connection: rows.change_build(connection, building, "waiting")):
                raise _started(record)
        except BaseException:
            self._forget(record)
            raise
        under_way.order = replace(order, record=building)
        self._tasks[record.id] = self._workers.spawn(self._work(under_way))

    async def _work(self, under_way: UnderWay) -> None:
        record, lines = under_way.order.record, under_way.log
        try:
            try:
                record = await self._built(under_way)
                lines.add("info", "The template is ready.")
            except SandboxError as error:
                record = _failed(under_way, error.message, error.hint, error.result)
            except Problem as problem:
                record = _failed(under_way, problem.detail, problem.hint, None)
            except Exception:
                log.exception("the build %s failed", record.id)
                record = _failed(under_way, "The service failed to carry out this build.", "This is a bug in Gamebox.", None)
            text = await asyncio.to_thread(lines.text)
            if not await self._database.call(lambda connection: rows.finish_build(connection, record, text)) and record.image:
                await self._remove(record)
        finally:
            self._forget(record)

    def _forget(self, record: BuildRecord) -> None:
        self._under_way.pop(record.id, None)
        self._tasks.pop(record.id, None)
        self._tenants.ledger.release(_place(record))
        if not self.count(record.tenant):
            self._rooms.pop(record.tenant, None)

    async def _built(self, under_way: UnderWay) -> BuildRecord:
        """Return the record of the build when it is ready. Raises SandboxError, Problem."""
        order = under_way.order
        tenant = order.record.tenant
        async with self._turns.turn(tenant):
            room = await self._room(tenant)
            build = under_way.build = Build(
                order.plan,
                owner=self.owner(tenant),
                name=order.record.id,
                archives=self._archives.of(tenant),
                limits=BuildLimits(
                    sandbox=order.spec.limits,
                    timeout_seconds=self._settings.template_build_seconds,
                    step_timeout_seconds=self._settings.template_build_seconds,
                    ready_seconds=self._settings.template_ready_seconds,
                    room=room,
                    steps=MOST_STEPS,
                    log_bytes=LOG_BYTES,
                ),
                network=order.spec.network,
                ceiling=self._ceilings.of(tenant),
                runtime=order.spec.runtime,
                report=lambda entry: _note(under_way, entry),
                run_start=bool(order.plan.start_command or order.plan.ready_command),
            )
            if under_way.is_cancelled:
                build.cancel()
            built = await asyncio.get_running_loop().run_in_executor(self._threads, build.run)
        return _ready(order, built)

    async def _room(self, tenant: str) -> Room | None:
        """Return what bounds the new layers of all builds of a tenant that are under way, None for no bound.

        It is measured anew for each build. Layers that only the cache has make room for it. Raises Problem.
        """
        most = self._tenants.active(tenant).quota.template_bytes
        if most is None:
            return None
        store, room = self.images(tenant), self._rooms.setdefault(tenant, Room(0))
        taken = room.taken
        used = await self._workers.in_engine(store.bytes_used, tenant)
        if used >= most:
            # Not what a build beside this one may be about to use.
            await self._workers.in_engine(lambda: store.prune(self._settings.template_build_seconds), tenant)
            taken = room.taken
            used = await self._workers.in_engine(store.bytes_used, tenant)
        if used >= most:
            raise _over_quota(
                "template_bytes",
                f"The templates of this tenant take {size(used)}, of {size(most)}.",
                "Delete templates that are not needed any more.",
            )
        room.measured(most - used, taken)
        return room

    async def _remove(self, record: BuildRecord) -> None:
        with contextlib.suppress(SandboxError):  # what stays is found later
            await self._workers.in_engine(lambda: self.images(record.tenant).remove(record.image), record.tenant)

    async def end(self, wanted: Callable[[BuildRecord], bool]) -> None:
        """Cancel builds, and wait until they have ended."""
        found = [each for each in self._under_way.values() if wanted(each.order.record)]
        for each in found:
            await asyncio.to_thread(each.cancel)
        tasks = [task for each in found if (task := self._tasks.get(each.order.record.id)) is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=END_SECONDS)

    async def close(self) -> None:
        """Cancel all builds; each is an error with a sentence then."""
        self._closing = True
        await self.end(lambda _: True)
        self._threads.shutdown(wait=False, cancel_futures=True)


def _note(under_way: UnderWay, entry: LogEntry) -> None:
    if entry.level == "error":  # why it failed is in the error that follows
        return
    under_way.log.add(entry.level, entry.text, _step(under_way.order, entry.step), entry.at)


def _step(order: Order, step: object) -> str:
    """Return a step as the client counts it: those of the service come before its own."""
    text = str(step)
    if not text.isdecimal():
        return text
    number = int(text) - order.own_steps
    return str(number) if number > 0 else "base"


def _ready(order: Order, built: BuiltImage) -> BuildRecord:
    at = now()
    config = {
        "workdir": built.workdir,
        "user": built.user,
        "start": built.start_command,
        "ready": built.ready_command,
    }
    image = order.record.id
    return replace(
        order.record, state="ready", updated_at=at, finished_at=at, image=image, size_bytes=built.added_bytes, config=config
    )


def _failed(under_way: UnderWay, message: str, hint: str, result: Any) -> BuildRecord:
    """Return the record of a build that has failed, and note why in its log."""
    order = under_way.order
    step = _step(order, result["step"]) if isinstance(result, dict) and "step" in result else ""
    if step.isdecimal():  # the builder counts steps of the service, too
        message = message.replace(f"Step {result['step']} ", f"Step {step} ", 1)
    sentence = STOPPED if under_way.is_cancelled else f"{order.worded(message, step)} {hint}".strip()[:MOST_REASON_CHARS]
    reason = {"message": sentence, **({"step": step} if step else {})}
    under_way.log.add("error", sentence, reason.get("step", ""))
    at = now()
    return replace(order.record, state="error", updated_at=at, finished_at=at, reason=reason)


def _place(record: BuildRecord) -> str:
    return f"build {record.id}"


def _started(record: BuildRecord) -> Problem:
    return Problem(409, ProblemCode.wrong_state, f"The build {record.id} was started already.", "Ask for its status.")


def _over_quota(name: str, detail: str, hint: str) -> Problem:
    return Problem(
        429, ProblemCode.quota_exceeded, detail, hint, retryable=True, headers={"Retry-After": str(RETRY_SECONDS)}, quota=name
    )


