"""Sandboxes that stand by in a pool: made ahead of time, replaced when they are dead or old, and handed out in order."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import tenacity

from sandbox.environment.sandboxed import SandboxedEnvironment
from sandbox.frozen import dataclass
from sandbox.pipe import forked_processes as forks

from .errors import ErrorCode, SandboxError
from .interrupts import Shield, exit_seconds_left, interpreter_ends

E = TypeVar("E", bound=SandboxedEnvironment)
log = logging.getLogger(__name__)

# How many are made at once for callers that wait; refilling makes one at a time.
MOST_AT_ONCE = 4
# Refilling leaves the processors to the first commands in what was acquired: it begins this long after the last acquire, and no
# later than MOST_QUIET_SECONDS after the first of several.
QUIET_SECONDS, MOST_QUIET_SECONDS = 0.1, 1.0
# How often to look whether a waiting member has died.
LOOK_SECONDS = 1.0
# How long ``close`` waits for sandboxes that are being made, which cannot be interrupted.
CLOSE_SECONDS = 10.0
_BACK_OFF = tenacity.wait_exponential(multiplier=0.5, max=30.0)


@dataclass(frozen=True, slots=True)
class PoolStats:
    """The state of a pool. The last four are totals since it was made.

    ``ready`` members wait for callers, ``waiting`` callers wait for members, ``creating`` members are being made, and ``in_use``
    sandboxes were acquired and not closed. ``discarded`` members died, or grew too old, before anybody acquired them.
    """

    ready: int
    creating: int
    waiting: int
    in_use: int
    acquired: int
    created: int
    discarded: int
    failures: int


@dataclass(slots=True, eq=False)
class Member(Generic[E]):
    """A sandbox that has stood by since ``since`` (monotonic)."""

    environment: E
    since: float


@dataclass(slots=True, eq=False)
class Waiter(Generic[E]):
    """A caller of ``acquire``, for whom ``environment`` takes a member. ``wake`` is called when there is one, or an error."""

    environment: E
    wake: Callable[[], None]
    member: Member[E] | None = None
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


class Standby(Generic[E]):
    """The members of a pool, and the callers that wait for one. ``make`` makes an environment that was not started.
    ``discarded`` is called with each that was ended before anybody got it, in any thread.

    Safe for use by several threads. A thread of its own, the keeper, makes and replaces members.
    """

    def __init__(
        self,
        make: Callable[[], E],
        size: int,
        max_size: float,
        max_age_seconds: float,
        discarded: Callable[[E], None] | None = None,
    ) -> None:
        self._make, self._size, self._max_size, self._max_age = make, size, max_size, max_age_seconds
        self._discarded = discarded
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()  # wakes the keeper
        self._keeper: threading.Thread | None = None
        self._closed = False
        self._ready: deque[Member[E]] = deque()
        self._waiting: deque[Waiter[E]] = deque()
        self._creating = 0
        self._in_use: set[E] = set()  # also those that their callers dropped without closing them: they still run
        self._totals = _Totals()
        self._last_acquire = self._missing_since = self._not_before = 0.0  # monotonic
        self._failed_in_a_row = 0

    def start(self) -> None:
        """See ``SandboxPool.start``."""
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
                atexit.register(self._close_at_exit)

    def _close_at_exit(self) -> None:
        self.close(most_seconds=exit_seconds_left())

    def close(self, *, wait: bool = False, most_seconds: float = CLOSE_SECONDS) -> None:
        """See ``SandboxPool.close``. Waits up to ``most_seconds`` for sandboxes that are being made."""
        if forks.forked_since(self._pid):
            return
        with Shield(), self._lock:
            self._closed = True
            for waiter in self._waiting:
                waiter.error = _closed()
                waiter.wake()
            self._waiting.clear()
        self._bell.put(None)
        # From now on none is taken out: a Ctrl-C must not lose one, and a later call may wait for them.
        for member in tuple(self._ready):
            self._end(member.environment)
        until = time.monotonic() + most_seconds
        while self._creating and time.monotonic() < until:
            time.sleep(0.005)
        for member in tuple(self._ready) if wait else ():
            member.environment.close(wait=True)
        atexit.unregister(self._close_at_exit)

    def __repr__(self) -> str:
        return "closed" if self._closed else f"{len(self._ready)} of {self._size} ready, {len(self._in_use)} in use"

    def stats(self) -> PoolStats:
        """See ``SandboxPool.stats``."""
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

    # Callers

    def enter(self, waiter: Waiter[E]) -> None:
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

    def note_acquired(self) -> None:
        """Note that a sandbox was acquired: refilling leaves its first command some time."""
        with Shield(), self._lock:
            self._totals.acquired += 1
            self._last_acquire = time.monotonic()

    def leave(self, waiter: Waiter[E]) -> None:
        """Undo ``enter``: a member that was not told to begin goes back to the others, any other is destroyed."""
        with Shield(), self._lock:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            member = waiter.member
            if member is not None and self._is_fresh(member) and not self._closed:
                self._ready.appendleft(member)
                self._in_use.discard(waiter.environment)
                self._serve_waiting()
                member = None
            self._totals.discarded += member is not None
        waiter.environment.close()
        if member is not None:
            member.environment.close()
        self.release(waiter.environment)

    def take(self) -> Member[E] | None:
        """Return a member at once, the oldest first, or None if none is ready. It is the caller's to adopt, or to give back."""
        with Shield(), self._lock:
            self._last_acquire = time.monotonic()
            if len(self._ready) >= self._size:
                self._missing_since = self._last_acquire
            found = None if self._waiting or self._closed else next(filter(self._is_fresh, self._ready), None)
            if found is not None:
                self._ready.remove(found)
                self._totals.acquired += 1
        self._bell.put(None)
        return found

    def give_back(self, member: Member[E]) -> None:
        """Undo ``take`` for a member that was not told to begin."""
        with Shield(), self._lock:
            self._totals.acquired -= 1
            if closed := self._closed:
                self._totals.discarded += 1
            else:
                self._ready.appendleft(member)
                self._serve_waiting()
        if closed:
            self._end(member.environment)

    def release(self, environment: E) -> None:
        """Note that a sandbox is closed: there is room for another one."""
        if not forks.forked_since(self._pid):
            with Shield(), self._lock:
                self._in_use.discard(environment)
            self._bell.put(None)

    def _is_fresh(self, member: Member[E]) -> bool:
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
        while True:
            with self._lock:
                if self._closed:
                    return
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
                self._end(member.environment)
            with contextlib.suppress(queue.Empty):
                self._bell.get(timeout=self._next_look())

    def _due(self) -> int:
        """Return how many members to begin to make now; the lock is held."""
        under_way, room = self._creating, self._room()
        if room <= 0 or interpreter_ends():
            return 0
        if len(self._waiting) > under_way:
            return int(min(len(self._waiting) - under_way, room))
        return int(not under_way and len(self._ready) < self._size and time.monotonic() >= self._refill_at())

    def _room(self) -> float:
        """Return how many members may be begun; the lock is held."""
        under_way = self._creating
        return min(MOST_AT_ONCE - under_way, self._max_size - len(self._in_use) - len(self._ready) - under_way)

    def _refill_at(self) -> float:
        quiet = min(self._last_acquire + QUIET_SECONDS, self._missing_since + MOST_QUIET_SECONDS)
        return max(quiet, self._not_before)

    def _next_look(self) -> float:
        """Return the seconds until the keeper looks again if nothing rings."""
        with self._lock:
            due = [time.monotonic() + LOOK_SECONDS]
            if not self._creating and len(self._ready) < self._size and self._room() > 0:
                due.append(self._refill_at())
            due += [member.since + self._max_age for member in self._ready]
            return max(0.001, min(due) - time.monotonic())

    def _create(self) -> None:
        """Make one member, for the caller who has waited longest, or for those to come. Runs in a thread of its own."""
        environment, error = None, None
        try:
            environment = self._make()
            environment.stand_by()
        except SandboxError as raised:
            error = raised
        except Exception as raised:  # whatever it is, the caller who waits must get it
            if not interpreter_ends():
                log.exception("a sandbox of a pool could not be made")
            error = _start_failed(raised)
        self._finish(environment, error)

    def _finish(self, environment: E | None, error: SandboxError | None) -> None:
        """Take a member that was made, or note why it was not."""
        with self._lock:
            closed = self._closed
            if error is None and environment is not None:
                self._ready.append(Member(environment, time.monotonic()))
            if error is not None and not closed:
                self._fail(error)
            elif not closed:
                self._failed_in_a_row, self._not_before = 0, 0.0
                self._totals.created += 1
                self._serve_waiting()
        if environment is not None and (closed or error is not None):
            self._end(environment)
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
        elif not interpreter_ends():
            log.warning("a pool could not make a sandbox: %s", error)

    def _end(self, environment: E) -> None:
        """Destroy a sandbox that nobody will use. A failure is logged: others must be served all the same."""
        try:
            environment.close()
        except Exception:
            log.exception("a sandbox of a pool could not be closed")
        if self._discarded is not None:
            self._discarded(environment)


def _closed() -> SandboxError:
    return SandboxError(ErrorCode.sandbox_closed, "The pool was closed.", "Make another pool.")


def _start_failed(error: Exception) -> SandboxError:
    words = f"A sandbox of the pool could not be made: {type(error).__name__}: {error}."
    return SandboxError(ErrorCode.start_failed, words, "See the log.", retryable=True)
