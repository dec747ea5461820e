"""SandboxPool: sandboxes that were started ahead, so that a caller gets one in milliseconds.

A member has a container whose guest was greeted and has run nothing for anybody (``SandboxedEnvironment.stand_by``). Acquiring
one tells its guest, in one request, what depends on the caller. Nothing is used twice: closing a sandbox destroys it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import queue
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypedDict, Unpack

from sandbox.environment.base import Approver
from sandbox.environment.sandboxed import SandboxedEnvironment
from sandbox.network.policy import Network
from sandbox.pipe import forked_processes as forks
from sandbox.text.wording import value_text

from .aio import AsyncEnvironment, settled
from .argument_types import check_types
from .errors import ErrorCode, SandboxError, SandboxUnavailableError
from .limits import Limits
from .standby import PoolStats, Standby, Waiter

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # with defaults, as Python 3.13 has them

    from sandbox.docker.environment import DockerEnvironment
    from sandbox.docker.spec import HostParts, SandboxSpec

    E = TypeVar("E", bound=SandboxedEnvironment, default=DockerEnvironment)
else:
    from typing import TypeVar

    E = TypeVar("E")

log = logging.getLogger(__name__)

DEFAULT_MAX_AGE_SECONDS = 1800.0
DEFAULT_ACQUIRE_SECONDS = 60.0
# How many members a caller is given, one after the other, if they turn out to be dead when they are asked to begin.
MOST_TRIES = 3
MOST_WAIT_SECONDS = 3600.0  # in one call: a lock cannot be waited for longer than some years
# What the container of a member does not have; the pool's are the defaults of ``acquire``.
_OF_CALLERS = ("env", "workspace", "network", "approver")
# Options that have the same meaning at any time. The others are read when a sandbox is acquired: variables and headers may be
# changed, and files may come and go, until then.
_UNCHANGING = frozenset(("image", "limits", "network", "profile", "pull", "runtime", "track_changes"))
# Options of one sandbox that outlives its program, and their defaults: the engine is told when it makes the container.
_KEPT = {"keep": False, "keep_seconds": 3600.0, "name": None}


class AcquireOptions(TypedDict, total=False):
    """What a sandbox of a pool gets when it is acquired. The pool's own value is used for what is missing or None."""

    env: Mapping[str, str] | None
    network: Network | None
    workspace: str | os.PathLike[str] | None
    approver: Approver | None
    lifetime_seconds: float | None
    idle_seconds: float | None


class _Pool(Generic[E]):
    """What a pool for threads and one for tasks have in common."""

    def __init__(
        self,
        spec: SandboxSpec | None = None,
        *,
        size: int,
        max_size: int | None = None,
        max_age_seconds: float | None = DEFAULT_MAX_AGE_SECONDS,
        parts: HostParts | None = None,
        environment: Callable[..., E] | None = None,
        **options: Any,
    ) -> None:
        _check_sizes(size, max_size, max_age_seconds)
        self._options = _check_options(spec, parts, environment, options)
        self._make: Callable[..., E] = environment or _docker_environment()
        self._make(**self._options)  # refuses what a sandbox would be refused for, and starts nothing
        # Environments for callers that give no options: to make one takes a third of an acquire.
        self._ahead: deque[E] = deque()
        self._most_ahead = size if {name for name, value in self._options.items() if value} <= _UNCHANGING else 0
        self._bridge = _is_bridge(self._options.get("network"))
        self._max_size = max_size
        self._pid = os.getpid()
        self._members = Standby(
            self._make_member,
            size,
            math.inf if max_size is None else max_size,
            math.inf if max_age_seconds is None else max_age_seconds,
        )

    def _make_member(self) -> E:
        """Return an environment without what belongs to callers; make one for a caller, too, if it can be made ahead."""
        if len(self._ahead) < self._most_ahead:
            with contextlib.suppress(Exception):  # a caller who needs it is told
                self._ahead.append(self._make(**self._options))
        options = {name: value for name, value in self._options.items() if name not in _OF_CALLERS}
        return self._make(**options, **({"network": Network.bridge()} if self._bridge else {}))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._members}>"

    def stats(self) -> PoolStats:
        """Return the state of the pool as it is now."""
        forks.check(self._pid)
        return self._members.stats()

    def _for_caller(self, given: AcquireOptions) -> dict[str, Any]:
        """Return the options of the sandbox for one caller. Raises SandboxError, TypeError."""
        forks.check(self._pid)
        chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        _refuse_kept(given)
        if unknown := [name for name in given if name not in AcquireOptions.__annotations__]:
            raise TypeError(
                f"acquire() has no option {unknown[0]!r}. It has {', '.join(AcquireOptions.__annotations__)}; what makes the "
                "container, such as image and limits, is given to the pool."
            )
        if "network" in chosen and _is_bridge(chosen["network"]) != self._bridge:
            raise _invalid(
                f"The containers of this pool were made {'with' if self._bridge else 'without'} a bridge, which cannot be changed.",
                f"Use another pool for sandboxes {'without' if self._bridge else 'with'} Network.bridge().",
            )
        clocks = {name: chosen.pop(name) for name in ("lifetime_seconds", "idle_seconds") if name in chosen}
        if clocks:
            chosen["limits"] = replace(self._options.get("limits") or Limits(), **clocks)
        return {**self._options, **chosen}

    def _environment(self, asked: dict[str, Any]) -> E:
        """Return an environment with these options that was not started."""
        if self._ahead and asked == self._options:
            with contextlib.suppress(IndexError):  # another thread took the last one
                return self._ahead.popleft()
        return self._make(**asked)

    def _begin(self, waiter: Waiter[E], seconds: float) -> E:
        """Start the waiter's environment with its member. Raises SandboxError."""
        if waiter.error is not None:
            raise waiter.error
        environment = waiter.environment
        if waiter.member is None:
            raise self._too_late(seconds)
        environment.adopt(waiter.member.environment, lambda: self._members.release(environment))
        environment.start()
        self._members.note_acquired()
        return environment

    def _too_late(self, seconds: float) -> SandboxError:
        found = self.stats()
        most = "" if self._max_size is None else f" of at most {self._max_size}"
        return SandboxError(
            ErrorCode.capacity,
            f"No sandbox of the pool was ready within {seconds:g} s (in use: {found.in_use}{most}; being made: {found.creating}; "
            f"callers waiting: {found.waiting}).",
            "Try again later, close sandboxes that are not needed, or make the pool larger.",
            retryable=True,
        )


class SandboxPool(_Pool[E]):
    """Keeps ``size`` sandboxes started ahead; use it as a context manager, or ``start()`` and ``close()``.

    ``options`` are those of ``DockerEnvironment``, or a ``spec`` has them, with ``parts`` for what a spec cannot hold (see
    ``DockerEnvironment.from_spec``). Image, profile, limits, disk, runtime and the names of services make the containers.
    ``env``, ``network``, ``workspace`` and ``approver`` stay on the host until a sandbox is acquired, and ``acquire`` can replace
    them. ``keep``, ``keep_seconds``, ``name``, and services in sandboxes of their own are refused.

    ``max_size`` bounds the sandboxes of the pool, acquired ones included: callers beyond it wait until one is closed. Members older
    than ``max_age_seconds`` are replaced. ``environment`` makes the sandboxes: ``LocalEnvironment``, for one.

    May be used by many threads, which are served in the order in which they came. Sandboxes that were acquired live on when the
    pool is closed. Raises SandboxError ``invalid_configuration`` and as ``DockerEnvironment`` does.
    """

    def start(self) -> Self:
        """Begin to make members, and return at once; does nothing the second time. Raises SandboxError ``sandbox_closed``."""
        self._members.start()
        return self

    def close(self, *, wait: bool = False) -> None:
        """Destroy the members that nobody acquired; callers that wait get ``sandbox_closed``. May be called more than once.

        Returns when they have been told to end, those that were being made included; ``wait`` waits until they are gone, also after
        an earlier ``close``. Does nothing in a process that was forked from the one that made the pool.
        """
        self._members.close(wait=wait)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def acquire(self, *, timeout_seconds: float = DEFAULT_ACQUIRE_SECONDS, **options: Unpack[AcquireOptions]) -> E:
        """Return a started sandbox that nobody has used, which is a context manager; closing it destroys it.

        ``env``, ``network``, ``workspace`` and ``approver`` replace those of the pool, ``lifetime_seconds`` and ``idle_seconds``
        those of its limits; both run from now on. Waits for up to ``timeout_seconds`` for a member. Raises SandboxError:
        ``capacity`` if none was ready in time, ``sandbox_closed``, what kept a sandbox from being made, and for options as
        ``DockerEnvironment`` does.
        """
        asked, until = self._for_caller(options), _deadline(timeout_seconds)
        for tries_left in reversed(range(MOST_TRIES)):
            bell: queue.SimpleQueue[None] = queue.SimpleQueue()
            waiter = Waiter(self._environment(asked), lambda bell=bell: bell.put(None))  # type: ignore[misc]
            try:
                self._members.enter(waiter)
                while not waiter.served and (left := until - time.monotonic()) > 0:
                    with contextlib.suppress(queue.Empty):
                        bell.get(timeout=min(left, MOST_WAIT_SECONDS))
                return self._begin(waiter, timeout_seconds)
            except BaseException as error:
                self._members.leave(waiter)
                if not (isinstance(error, SandboxUnavailableError) and tries_left):
                    raise
                log.info("a sandbox of the pool was dead: %s", error)
        raise AssertionError  # the last try has returned or raised


class AsyncSandboxPool(_Pool[Any]):
    """A ``SandboxPool`` for asyncio: ``async with`` starts and closes it, and ``acquire`` returns an ``AsyncEnvironment``.

    While a task waits for a sandbox, no thread does.
    """

    async def __aenter__(self) -> Self:
        self._members.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self, *, wait: bool = False) -> None:
        """See ``SandboxPool.close``."""
        await asyncio.shield(asyncio.to_thread(partial(self._members.close, wait=wait)))

    async def acquire(
        self, *, timeout_seconds: float = DEFAULT_ACQUIRE_SECONDS, **options: Unpack[AcquireOptions]
    ) -> AsyncEnvironment:
        """See ``SandboxPool.acquire``. A task that is cancelled leaves no sandbox behind."""
        loop = asyncio.get_running_loop()
        asked, until = self._for_caller(options), _deadline(timeout_seconds)
        for tries_left in reversed(range(MOST_TRIES)):
            rung = asyncio.Event()
            waiter = Waiter(self._environment(asked), partial(_ring, loop, rung))
            begun: asyncio.Future[Any] | None = None
            try:
                self._members.enter(waiter)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(until - time.monotonic()):
                        while not waiter.served:
                            await rung.wait()
                begun = loop.run_in_executor(None, self._begin, waiter, timeout_seconds)
                return AsyncEnvironment(await asyncio.shield(begun))
            except BaseException as error:
                if begun is not None:  # it cannot be stopped, and what it has started must not be lost
                    await settled(begun)
                await asyncio.shield(asyncio.to_thread(self._members.leave, waiter))
                if not (isinstance(error, SandboxUnavailableError) and tries_left):
                    raise
                log.info("a sandbox of the pool was dead: %s", error)
        raise AssertionError  # the last try has returned or raised


def _ring(loop: asyncio.AbstractEventLoop, rung: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits any more
        loop.call_soon_threadsafe(rung.set)


def _deadline(timeout_seconds: float) -> float:
    """Return the monotonic time at which a wait of that many seconds ends. Raises TypeError, SandboxError."""
    check_types("acquire", timeout_seconds=(timeout_seconds, int | float))
    if not timeout_seconds >= 0:
        raise _invalid(f"timeout_seconds={value_text(timeout_seconds)} is not a time to wait.", "Give 0 or more seconds.")
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
        raise _invalid(f"max_age_seconds={max_age_seconds} is not an age.", "Give a positive number of seconds, or None.")


def _check_options(
    spec: SandboxSpec | None, parts: HostParts | None, environment: object, options: dict[str, Any]
) -> dict[str, Any]:
    """Return the options of the pool's sandboxes.

    Raises TypeError, and SandboxError ``invalid_configuration`` for what no pool can have.
    """
    if isinstance(spec, str):  # an easy mistake: DockerEnvironment takes its image first
        raise TypeError(f"SandboxPool() takes a SandboxSpec first, not an image: write image={spec!r:.80}.")
    if spec is not None:
        from sandbox.docker.spec import HostParts as Parts
        from sandbox.docker.spec import SandboxSpec as Spec

        check_types("SandboxPool", spec=(spec, Spec), parts=(parts, Parts | None))
        if options or environment is not None:
            other = "environment" if environment is not None else next(iter(options))
            raise _invalid(
                f"A pool takes a spec or options, not both: {other} was given as well.", f"Leave out {other}."
            )
        options = (parts or Parts()).arguments(spec)
        options = {name: value for name, value in options.items() if value != _KEPT.get(name, options)}
    elif parts is not None:
        raise _invalid("A pool was given parts without a spec.", "Give the spec that they belong to.")
    _refuse_kept(options)
    from sandbox.network.services.host_services import split_services

    if beside := split_services(options.get("services"))[1]:
        raise _invalid(
            f"A pool cannot have the side services {', '.join(beside)}: they belong to one sandbox and start with it.",
            "Make that sandbox by itself: DockerEnvironment(services=...).",
        )
    return options


def _refuse_kept(options: Mapping[str, Any]) -> None:
    """Raise SandboxError ``invalid_configuration`` for what no sandbox of a pool can have."""
    if kept := [name for name in _KEPT if name in options]:
        raise _invalid(
            f"A sandbox of a pool cannot have {kept[0]}: the engine is told that when it makes the container, before anybody "
            "acquires it.",
            f"Make that sandbox by itself: DockerEnvironment({kept[0]}=...).",
        )
    if "metadata" in options:
        raise _invalid(
            "Gamebox stores no metadata with a sandbox.", "Keep it in your program, under the sandbox's container_id."
        )


def _docker_environment() -> Callable[..., Any]:
    from sandbox.docker.environment import DockerEnvironment

    return DockerEnvironment


def _is_bridge(network: object) -> bool:
    return isinstance(network, Network) and network.mode == "bridge"


def _invalid(message: str, hint: str) -> SandboxError:
    return SandboxError(ErrorCode.invalid_configuration, message, hint)
