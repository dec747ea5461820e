"""Remove the sandboxes that were closed, in one thread for all of this process: nobody waits for the engine to tidy up."""

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
from dataclasses import dataclass, field

from sandbox.interrupts import Shield, exit_seconds_left

from .container import removal
from .engine.client import engine_address
from .engine.events import EngineEvents

log = logging.getLogger(__name__)

# A guest that was told to end does so in milliseconds; one that does not is killed.
END_SECONDS = 1.0
# The engine removes a container that has ended in some 40 ms, and in seconds if a hundred end at once.
REMOVED_SECONDS = 10.0
WAIT_SECONDS = 60.0
_TURN_SECONDS = 0.05


@dataclass(eq=False)
class Removal:
    """One closed sandbox, of the engine in use when it was closed. ``release(gone)`` is called at the end, with whether its
    container is known to be gone.

    ``events`` are those of its engine, if the guest was told to end and the engine then removes the container; otherwise None.
    """

    name: str
    container_id: str
    release: Callable[[bool], None]
    events: EngineEvents | None = None
    may_appear: bool = False
    has_volumes: bool = False
    _address: str = field(default_factory=engine_address)
    _since: float = field(default_factory=time.monotonic)
    _finished: threading.Event = field(default_factory=threading.Event)

    def finish(self) -> None:
        """Remove what the engine has not removed by itself. A failure is logged; the sweep tries again."""
        gone = False
        try:
            gone = self._removed_itself() or removal.remove(
                self.name, may_appear=self.may_appear, has_volumes=self.has_volumes, address=self._address
            )
        except Exception:
            log.exception("could not remove sandbox %s", self.name)
        finally:
            try:
                self.release(gone)
            finally:
                self._finished.set()

    def _removed_itself(self) -> bool:
        """Return whether the engine says that it has removed the container, and so its volumes, because its guest ended."""
        if self.events is None or not self.events.fate(self.container_id, self._left(END_SECONDS)).died:
            return False
        fate = self.events.fate(self.container_id, self._left(END_SECONDS + REMOVED_SECONDS), lambda fate: fate.removed)
        return fate.removed and not fate.killed_by_engine  # ``docker rm --force`` leaves the volumes

    def _left(self, seconds: float) -> float:
        return self._since + seconds - time.monotonic()

    def wait(self, seconds: float = WAIT_SECONDS) -> bool:
        """Wait until it was dealt with. Returns whether it was, within ``seconds``."""
        deadline = time.monotonic() + seconds
        while not self._finished.is_set() and time.monotonic() < deadline:
            with Shield():  # an Event's own lock can be left taken by a signal
                self._finished.wait(_TURN_SECONDS)
        return self._finished.is_set()


class Remover:
    """Finishes removals one after the other, in the order of their closes, in a thread of its own."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin with nothing to do; also in a forked process, whose parent finishes what it has closed."""
        self._lock = threading.Lock()
        self._queue: deque[Removal] = deque()
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()  # rings once for each
        self._works = False

    def begin(self) -> None:
        """Start the thread: from Python 3.12 on, the end of the interpreter can start none. Raises RuntimeError."""
        with Shield(), self._lock:
            if not self._works:
                threading.Thread(target=self._work, name="gamebox-remover", daemon=True).start()
                self._works = True

    def add(self, closed: Removal) -> None:
        """Have the removal finished, and return at once; without a thread to do it, when it is finished."""
        try:
            self.begin()
        except RuntimeError:  # this process may have no more threads
            closed.finish()
            return
        with Shield(), self._lock:
            self._queue.append(closed)
            self._bell.put(None)

    def _work(self) -> None:
        while True:
            self._bell.get()
            closed = self._queue[0]
            try:
                closed.finish()
            except Exception:
                log.exception("could not let go of sandbox %s", closed.name)
            with self._lock:
                self._queue.popleft()

    def wait(self, seconds: float) -> bool:
        """Wait until nothing is left to do. Returns whether that is so, within ``seconds``."""
        deadline = time.monotonic() + seconds
        while True:
            with Shield(), self._lock:
                last = self._queue[-1] if self._queue else None
            if last is None or not last.wait(deadline - time.monotonic()):
                return last is None

    def finish_at_exit(self) -> None:
        """Wait at the end of the interpreter; Ctrl-C ends the wait: the sandboxes end by themselves."""
        with contextlib.suppress(KeyboardInterrupt):
            if not self.wait(exit_seconds_left()):
                log.warning("%d closed sandboxes are still being removed", len(self._queue))


remover = Remover()
# Functions that a program registers later, such as ``env.close``, are called before this one.
atexit.register(remover.finish_at_exit)
os.register_at_fork(after_in_child=remover.forget)
