"""SandboxPool: sandboxes that were started ahead, so that a caller gets one in milliseconds.

A member has a container whose guest was greeted and has run nothing of anybody's (``SandboxedEnvironment.stand_by``). Acquiring
one tells its guest what depends on the caller, in one request. Nothing is used twice: closing a sandbox destroys it.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import math
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypedDict, TypeVar, Unpack, overload

import tenacity

from sandbox.environment.base import Approver
from sandbox.environment.sandboxed import SandboxedEnvironment
from sandbox.network.policy import Network
from sandbox.pipe import forked_processes as forks
from sandbox.text.wording import value_text

from .aio import AsyncEnvironment
from .argument_types import check_types
from .errors import ErrorCode, SandboxError, SandboxUnavailableError
from .interrupts import Shield
from .limits import Limits

if TYPE_CHECKING:
    from sandbox.docker.environment import DockerEnvironment
    from sandbox.docker.spec import HostParts, SandboxSpec

E = TypeVar("E", bound=SandboxedEnvironment)
log = logging.getLogger(__name__)

DEFAULT_MAX_AGE_SECONDS = 1800.0
DEFAULT_ACQUIRE_SECONDS = 60.0
# At once, for callers that wait; refilling makes one at a time.
MOST_AT_ONCE = 4
# Refilling leaves the processors to the first commands of what was acquired: it begins this long after the last acquire, and no
# later than MOST_QUIET_SECONDS after the first of several.
QUIET_SECONDS, MOST_QUIET_SECONDS = 0.1, 1.0
# How often it is looked whether a waiting member has died.
LOOK_SECONDS = 1.0
# Members that one caller is given, if those before turn out to be dead when they are asked to begin.
MOST_TRIES = 3
CLOSE_SECONDS = 10.0
MOST_WAIT_SECONDS = 3600.0
_BACK_OFF = tenacity.wait_exponential(multiplier=0.5, max=30.0)
# What the container of a member does not have; the pool's are the defaults of ``acquire``.
_OF_CALLERS = ("env", "workspace", "network", "approver")
# Options of one sandbox that outlives its program, and their defaults: the engine is told when it makes the container.
_KEPT = {"keep": False, "keep_seconds": 3600.0, "name": None}


@dataclass(frozen=True, slots=True)
class PoolStats:
    """The state of a pool. The last four are totals since it was made.

    ``ready`` members wait for callers, ``waiting`` callers for members; ``creating`` is under way; ``in_use`` are acquired and not
    closed. ``discarded`` members died, or were too old, before anybody acquired them.
    """

    ready: int
    creating: int
    waiting: int
    in_use: int
    acquired: int
    created: int
    discarded: int
    failures: int


class AcquireOptions(TypedDict, total=False):
    """What a sandbox of a pool gets when it is acquired; what is missing or None is as the pool has it."""

    env: Mapping[str, str] | None
    network: Network | None
    workspace: str | os.PathLike[str] | None
    approver: Approver | None
    lifetime_seconds: float | None
    idle_seconds: float | None


@dataclass(slots=True, eq=False)
class _Member(Generic[E]):
    """A sandbox that stands by since then (monotonic)."""

    environment: E
    since: float


@dataclass(slots=True, eq=False)
class _Waiter(Generic[E]):
    """A caller of ``acquire``, for whom ``environment`` takes a member. ``wake`` is called when there is one, or an error."""

    environment: E
    wake: Callable[[], None]
    member: _Member[E] | None = None
    error: SandboxError | None = None

    @property
    def served(self) -> bool:
        return self.member is not None or self.error is not None


@dataclass(slots=True)
class _Totals:
    acquired: int = 0
    created: int = 0
    discarded: int = 0
    failures: int = 0


class SandboxPool(Generic[E]):
    """Keeps ``size`` sandboxes started ahead; use it as a context manager, or ``start()`` and ``close()``.

    ``options`` are those of ``DockerEnvironment``, or a ``spec`` has them, with ``parts`` for what a spec cannot hold (see
    ``DockerEnvironment.from_spec``). Image, profile, limits, disk, runtime and the names of services make the containers.
    ``env``, ``network``, ``workspace`` and ``approver`` stay on the host until a sandbox is acquired, and ``acquire`` may be given
    others. Refused are ``keep``, ``keep_seconds``, ``name``, and services in sandboxes of their own.

    ``max_size`` bounds the sandboxes of the pool, acquired ones included: further callers wait until one is closed. Members older
    than ``max_age_seconds`` are replaced. ``environment`` makes the sandboxes: ``LocalEnvironment``, for one.

    May be used by many threads, which are served in the order in which they came. Sandboxes that were acquired live on when the
    pool is closed. Raises SandboxError ``invalid_configuration`` and as ``DockerEnvironment`` does.
    """

    @overload
    def __init__(
        self: SandboxPool[DockerEnvironment],
        spec: SandboxSpec | None = None,
        *,
        size: int,
        max_size: int | None = None,
        max_age_seconds: float | None = DEFAULT_MAX_AGE_SECONDS,
        parts: HostParts | None = None,
        **options: Any,
    ) -> None: ...

    @overload
    def __init__(
        self,
        spec: None = None,
        *,
        size: int,
        max_size: int | None = None,
        max_age_seconds: float | None = DEFAULT_MAX_AGE_SECONDS,
        environment: Callable[..., E],
        **options: Any,
    ) -> None: ...

    def __init__(
        self,
        spec: SandboxSpec | None = None,
        *,
        size: int,
        max_size: int | None = None,
        max_age_seconds: float | None = DEFAULT_MAX_AGE_SECONDS,
        parts: HostParts | None = None,
        environment: Callable[..., Any] | None = None,
        **options: Any,
    ) -> None:
        _check_sizes(size, max_size, max_age_seconds)
        self._options = _check_options(spec, parts, environment, options)
        self._make: Callable[..., E] = environment or _docker_environment()
        self._make(**self._options)  # refuses what a sandbox would be refused for, and starts nothing
        self._size, self._max_size = size, math.inf if max_size is None else max_size
        self._max_age = math.inf if max_age_seconds is None else max_age_seconds
        self._bridge = _is_bridge(self._options.get("network"))
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()  # wakes the keeper
        self._keeper: threading.Thread | None = None
        self._closed = False
        self._ready: deque[_Member[E]] = deque()
        self._waiting: deque[_Waiter[E]] = deque()
        self._creating = 0
        self._in_use: weakref.WeakSet[E] = weakref.WeakSet()
        self._totals = _Totals()
        self._last_acquire = self._missing_since = self._not_before = 0.0  # monotonic
        self._failed_in_a_row = 0

    # Start and end

    def start(self) -> Self:
        """Begin to make members, and return at once; does nothing the second time. Raises SandboxError ``sandbox_closed``."""
        forks.check(self._pid)
        with Shield():  # the start of a thread waits for an Event
            with self._lock:
                if self._closed:
                    raise _closed()
                begins = self._keeper is None
                if begins:
                    self._keeper = threading.Thread(target=self._keep_full, name="gamebox-pool", daemon=True)
            if begins and self._keeper is not None:
                self._keeper.start()
                atexit.register(self.close)
        return self

    def close(self) -> None:
        """Destroy the members that nobody acquired; callers that wait get ``sandbox_closed``. May be called more than once."""
        if forks.forked_since(self._pid):
            return
        with Shield(), self._lock:
            self._closed = True
            for waiter in self._waiting:
                waiter.error = _closed()
                waiter.wake()
            self._waiting.clear()
        self._bell.put(None)
        while self._ready:
            self._ready[0].environment.close()  # stays there until it is closed: a Ctrl-C must not lose it
            self._ready.popleft()
        until = time.monotonic() + CLOSE_SECONDS
        while self._creating and time.monotonic() < until:
            time.sleep(0.005)
        atexit.unregister(self.close)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._ready)} of {self._size} ready, {len(self._in_use)} in use"
        return f"<SandboxPool {state}>"

    def stats(self) -> PoolStats:
        """Return the state of the pool as it is now."""
        forks.check(self._pid)
        with Shield(), self._lock:
            return PoolStats(
                ready=sum(map(self._is_fresh, self._ready)),
                creating=self._creating,
                waiting=len(self._waiting),
                in_use=len(self._in_use),
                acquired=self._totals.acquired,
                created=self._totals.created,
                discarded=self._totals.discarded,
                failures=self._totals.failures,
            )

    # Acquire

    def acquire(self, *, timeout_seconds: float = DEFAULT_ACQUIRE_SECONDS, **options: Unpack[AcquireOptions]) -> E:
        """Return a started sandbox that nobody has used, which is a context manager; closing it destroys it.

        ``env``, ``network``, ``workspace`` and ``approver`` replace those of the pool, ``lifetime_seconds`` and ``idle_seconds``
        those of its limits; both run from now on. Waits for up to ``timeout_seconds`` for a member. Raises SandboxError:
        ``timeout`` if none was ready in time, ``sandbox_closed``, what kept a sandbox from being made, and as ``DockerEnvironment`` does for options.
        """
        asked, until = self.for_caller(options), deadline(timeout_seconds)
        for tries_left in reversed(range(MOST_TRIES)):
            bell: queue.SimpleQueue[None] = queue.SimpleQueue()
            waiter = _Waiter(self._make(**asked), lambda bell=bell: bell.put(None))  # type: ignore[misc]
            try:
                self.enter(waiter)
                while not waiter.served and (left := until - time.monotonic()) > 0:
                    with contextlib.suppress(queue.Empty):
                        bell.get(timeout=min(left, MOST_WAIT_SECONDS))
                return self.begin(waiter, timeout_seconds)
            except BaseException as error:
                self.leave(waiter)
                if not (isinstance(error, SandboxUnavailableError) and tries_left):
                    raise
                log.info("a sandbox of the pool was dead: %s", error)
        raise AssertionError  # the last try has returned or raised

    # The steps of ``acquire``, for ``AsyncSandboxPool``, too

    def for_caller(self, given: AcquireOptions) -> dict[str, Any]:
        """Return the options of the sandbox for one caller. Raises SandboxError, TypeError."""
        forks.check(self._pid)
        chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if unknown := [name for name in given if name not in AcquireOptions.__annotations__]:
            raise TypeError(
                f"acquire() has no option {unknown[0]!r}: give it to the pool if DockerEnvironment has it. "
                f"Here: {', '.join(AcquireOptions.__annotations__)}."
            )
        if "network" in chosen and _is_bridge(chosen["network"]) != self._bridge:
            raise _invalid(
                f"The containers of this pool have {'the' if self._bridge else 'no'} bridge, which cannot be changed.",
                "Give network=Network.bridge() to the pool, and to all of it or nothing.",
            )
        clocks = {name: chosen.pop(name) for name in ("lifetime_seconds", "idle_seconds") if name in chosen}
        if clocks:
            chosen["limits"] = replace(self._options.get("limits") or Limits(), **clocks)
        return {**self._options, **chosen}

    def enter(self, waiter: _Waiter[E]) -> None:
        """Give the waiter a member, or put it last in the queue. Raises SandboxError."""
        with Shield(), self._lock:
            if self._closed:
                raise _closed()
            if self._keeper is None:
                hint = "Use it in a with block, or call start() first."
                raise SandboxError(ErrorCode.sandbox_closed, "The pool is not started.", hint)
            self._last_acquire = time.monotonic()
            if len(self._ready) >= self._size:
                self._missing_since = self._last_acquire
            self._waiting.append(waiter)
            self._serve_waiting()
        self._bell.put(None)

    def begin(self, waiter: _Waiter[E], seconds: float) -> E:
        """Start the waiter's environment with its member. Raises SandboxError."""
        if waiter.error is not None:
            raise waiter.error
        environment = waiter.environment
        if waiter.member is None:
            raise self._too_late(seconds)
        environment.adopt(waiter.member.environment, lambda: self._released(environment))
        environment.start()
        with Shield(), self._lock:
            self._totals.acquired += 1
            self._last_acquire = time.monotonic()
        return environment

    def leave(self, waiter: _Waiter[E]) -> None:
        """Undo ``enter`` and ``begin``: a member that was told nothing is there for others, any other is destroyed."""
        with Shield(), self._lock:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            member, waiter.member = waiter.member, None
            if member is not None and self._is_fresh(member):
                self._ready.appendleft(member)
                self._in_use.discard(waiter.environment)
                self._serve_waiting()
            elif member is not None:
                self._totals.discarded += 1
        waiter.environment.close()
        self._released(waiter.environment)

    def _released(self, environment: E) -> None:
        """Note that a sandbox is closed: there is room for another one."""
        if not forks.forked_since(self._pid):
            with Shield(), self._lock:
                self._in_use.discard(environment)
            self._bell.put(None)

    def _too_late(self, seconds: float) -> SandboxError:
        found = self.stats()
        most = "" if self._max_size == math.inf else f" of at most {self._max_size}"
        return SandboxError(
            ErrorCode.timeout,
            f"No sandbox of the pool was ready within {seconds:g} s: {found.in_use}{most} are in use, {found.creating} are being "
            f"made, and {found.waiting} callers wait.",
            "Try again later, close sandboxes that are not needed, or make the pool larger.",
            retryable=True,
        )

    def _is_fresh(self, member: _Member[E]) -> bool:
        """Return whether a member may be given to somebody. The pipe tells of a death by itself."""
        return member.environment.stands_by and time.monotonic() - member.since < self._max_age

    def _serve_waiting(self) -> None:
        """Give members to those who wait, the oldest to the first; the lock is held."""
        stale = deque(member for member in self._ready if not self._is_fresh(member))
        fresh = deque(member for member in self._ready if member not in stale)
        while self._waiting and fresh and len(self._in_use) < self._max_size:
            waiter = self._waiting.popleft()
            waiter.member = fresh.popleft()
            self._in_use.add(waiter.environment)
            waiter.wake()
        self._ready = stale + fresh  # the keeper destroys the stale ones

    # Keep full

    def _keep_full(self) -> None:
        """Make members as callers need them, replace those that are dead or old, and refill. Runs in a thread of its own."""
        while not self._closed:
            with self._lock:
                stale = [member for member in self._ready if not self._is_fresh(member)]
                self._ready = deque(member for member in self._ready if member not in stale)
                self._totals.discarded += len(stale)
                self._serve_waiting()
                begun = self._due()
                self._creating += begun
            for _ in range(begun):
                try:
                    threading.Thread(target=self._create, name="gamebox-create", daemon=True).start()
                except RuntimeError as error:  # this process may have no more threads
                    self._finish(None, _start_failed(error))
            for member in stale:
                member.environment.close()
            with contextlib.suppress(queue.Empty):
                self._bell.get(timeout=self._next_look())

    def _due(self) -> int:
        """Return how many members to begin to make now; the lock is held."""
        under_way = self._creating
        room = min(MOST_AT_ONCE - under_way, self._max_size - len(self._in_use) - len(self._ready) - under_way)
        if self._closed or room <= 0:
            return 0
        if len(self._waiting) > under_way:
            return int(min(len(self._waiting) - under_way, room))
        return int(not under_way and len(self._ready) < self._size and time.monotonic() >= self._refill_at())

    def _refill_at(self) -> float:
        quiet = min(self._last_acquire + QUIET_SECONDS, self._missing_since + MOST_QUIET_SECONDS)
        return max(quiet, self._not_before)

    def _next_look(self) -> float:
        """Return the seconds until the keeper looks again if nothing rings."""
        with self._lock:
            due = [time.monotonic() + LOOK_SECONDS]
            if not self._creating and len(self._ready) < self._size:
                due.append(self._refill_at())
            due += [member.since + self._max_age for member in self._ready]
            return max(0.001, min(due) - time.monotonic())

    def _create(self) -> None:
        """Make one member, for the caller who has waited longest, or for those to come. Runs in a thread of its own."""
        options = {name: value for name, value in self._options.items() if name not in _OF_CALLERS}
        if self._bridge:
            options["network"] = Network.bridge()
        environment, error = None, None
        try:
            environment = self._make(**options)
            environment.stand_by()
        except SandboxError as raised:
            error = raised
        except Exception as raised:  # whatever it is, the caller who waits must get it
            log.exception("a sandbox of a pool could not be made")
            error = _start_failed(raised)
        self._finish(environment, error)

    def _finish(self, environment: E | None, error: SandboxError | None) -> None:
        """Take a member that was made, or note why it was not."""
        with self._lock:
            if error is not None and not self._closed:
                self._fail(error)
            elif environment is not None and not self._closed:
                self._failed_in_a_row, self._not_before = 0, 0.0
                self._totals.created += 1
                self._ready.append(_Member(environment, time.monotonic()))
                self._serve_waiting()
                environment = None
        if environment is not None:
            environment.close()
        with self._lock:
            self._creating -= 1
        self._bell.put(None)

    def _fail(self, error: SandboxError) -> None:
        """Give the caller who has waited longest the error, and refill later; the lock is held."""
        self._totals.failures += 1
        self._failed_in_a_row += 1
        state = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
        state.attempt_number = self._failed_in_a_row
        self._not_before = time.monotonic() + _BACK_OFF(state)
        if self._waiting:
            waiter = self._waiting.popleft()
            waiter.error = error
            waiter.wake()
        else:
            log.warning("a pool could not make a sandbox: %s", error)


class AsyncSandboxPool:
    """A ``SandboxPool`` for asyncio: ``async with`` starts and closes it, and ``acquire`` returns an ``AsyncEnvironment``.

    ``pool`` is the pool itself, which threads may use meanwhile. While a task waits for a sandbox, no thread does.
    """

    def __init__(self, spec: SandboxSpec | None = None, **options: Any) -> None:
        self.pool: SandboxPool[Any] = SandboxPool(spec, **options)

    def __repr__(self) -> str:
        return f"<AsyncSandboxPool of {self.pool!r}>"

    async def __aenter__(self) -> Self:
        self.pool.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """See ``SandboxPool.close``."""
        await asyncio.to_thread(self.pool.close)

    def stats(self) -> PoolStats:
        """See ``SandboxPool.stats``."""
        return self.pool.stats()

    async def acquire(
        self, *, timeout_seconds: float = DEFAULT_ACQUIRE_SECONDS, **options: Unpack[AcquireOptions]
    ) -> AsyncEnvironment:
        """See ``SandboxPool.acquire``. A task that is cancelled leaves no sandbox behind."""
        pool, loop = self.pool, asyncio.get_running_loop()
        asked, until = pool.for_caller(options), deadline(timeout_seconds)
        for tries_left in reversed(range(MOST_TRIES)):
            rung = asyncio.Event()
            waiter = _Waiter(pool._make(**asked), partial(_ring, loop, rung))
            begun: asyncio.Future[Any] | None = None
            try:
                pool.enter(waiter)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(until - time.monotonic()):
                        while not waiter.served:
                            await rung.wait()
                begun = loop.run_in_executor(None, pool.begin, waiter, timeout_seconds)
                return AsyncEnvironment(await asyncio.shield(begun))
            except BaseException as error:
                if begun is not None and not begun.done():
                    await asyncio.wait([begun])
                await asyncio.shield(asyncio.to_thread(pool.leave, waiter))
                if not (isinstance(error, SandboxUnavailableError) and tries_left):
                    raise
                log.info("a sandbox of the pool was dead: %s", error)
        raise AssertionError  # the last try has returned or raised


def _ring(loop: asyncio.AbstractEventLoop, rung: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits any more
        loop.call_soon_threadsafe(rung.set)


def deadline(timeout_seconds: float) -> float:
    """Return the monotonic time at which a wait of that many seconds ends. Raises TypeError, SandboxError."""
    check_types("acquire", timeout_seconds=(timeout_seconds, int | float))
    if not timeout_seconds >= 0:
        raise _invalid(f"timeout_seconds={value_text(timeout_seconds)} is no time to wait.", "Give 0 or more seconds.")
    return time.monotonic() + timeout_seconds


def _check_sizes(size: int, max_size: int | None, max_age_seconds: float | None) -> None:
    check_types(
        "SandboxPool",
        size=(size, int),
        max_size=(max_size, int | None),
        max_age_seconds=(max_age_seconds, int | float | None),
    )
    if size < 1:
        raise _invalid(
            f"A pool of size={size} has nothing ready.", "Give the number of sandboxes to keep ready, 1 or more."
        )
    if max_size is not None and max_size < size:
        raise _invalid(f"max_size={max_size} is less than size={size}.", f"Give {size} or more, or leave it out.")
    if max_age_seconds is not None and not max_age_seconds > 0:
        raise _invalid(f"max_age_seconds={max_age_seconds} is no age.", "Give a positive number of seconds, or None.")


def _check_options(
    spec: SandboxSpec | None, parts: HostParts | None, environment: object, options: dict[str, Any]
) -> dict[str, Any]:
    """Return the options of the pool's sandboxes. Raises SandboxError ``invalid_configuration`` for what no pool can have."""
    if spec is not None:
        if options or environment is not None:
            other = "environment" if environment is not None else next(iter(options))
            raise _invalid(
                f"A pool takes a spec or options, not both: {other} was given beside it.", f"Leave out {other}."
            )
        from sandbox.docker.spec import HostParts as Parts

        options = (parts or Parts()).arguments(spec)
        options = {name: value for name, value in options.items() if value != _KEPT.get(name, options)}
    elif parts is not None:
        raise _invalid("A pool was given parts without a spec.", "Give the spec that they belong to.")
    if kept := [name for name in _KEPT if name in options]:
        raise _invalid(
            f"A pool cannot have {kept[0]}: it belongs to one sandbox, whose container is made for it.",
            f"Make that sandbox by itself: DockerEnvironment({kept[0]}=...).",
        )
    from sandbox.network.services.host_services import split_services

    if beside := split_services(options.get("services"))[1]:
        raise _invalid(
            f"A pool cannot have the side services {', '.join(beside)}: they belong to one sandbox and start with it.",
            "Make that sandbox by itself: DockerEnvironment(services=...).",
        )
    return options


def _docker_environment() -> Callable[..., Any]:
    from sandbox.docker.environment import DockerEnvironment

    return DockerEnvironment


def _is_bridge(network: object) -> bool:
    return isinstance(network, Network) and network.mode == "bridge"


def _closed() -> SandboxError:
    return SandboxError(ErrorCode.sandbox_closed, "The pool was closed.", "Make another one.")


def _start_failed(error: Exception) -> SandboxError:
    words = f"A sandbox of the pool could not be made: {type(error).__name__}: {error}."
    return SandboxError(ErrorCode.start_failed, words, "See the log.", retryable=True)


def _invalid(message: str, hint: str) -> SandboxError:
    return SandboxError(ErrorCode.invalid_configuration, message, hint)
