"""What all threads of this process share: one client per engine, one stream of events."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Shared(dict[K, T]):
    """One value per key, made by the first caller that asks for it with ``obtain``.

    Others that ask for the same one wait until it is made; those that ask for another do not.
    """

    def __init__(self) -> None:
        super().__init__()
        self._unlock()
        os.register_at_fork(after_in_child=self._unlock)

    def _unlock(self) -> None:
        """In a forked process too: another thread of the parent may have held a lock then, and is not here to release it."""
        self._lock = threading.Lock()
        self._turns: dict[K, threading.Lock] = {}

    def obtain(self, key: K, make: Callable[[], T], usable: Callable[[T], bool] = lambda _: True) -> T:
        """Return the value of ``key``; ``make`` makes it if there is none that is still ``usable``, and may raise."""
        found = self.get(key)
        if found is not None and usable(found):
            return found
        with self._lock:
            turn = self._turns.setdefault(key, threading.Lock())
        with turn:
            found = self.get(key)
            if found is None or not usable(found):  # else it was made while this caller waited
                found = self[key] = make()
            return found
