"""Values that all threads of this process share, such as one client per engine."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Shared(dict[K, T]):
    """One value per key, made by the first caller of ``obtain``.

    Callers for the same key wait until it is made; callers for other keys do not.
    """

    def __init__(self) -> None:
        super().__init__()
        self._unlock()
        os.register_at_fork(after_in_child=self._unlock)

    def _unlock(self) -> None:
        """Make new locks, also after a fork: a thread of the parent may have held the old ones, and does not exist here."""
        self._lock = threading.Lock()
        self._turns: dict[K, threading.Lock] = {}

    def obtain(self, key: K, make: Callable[[], T], usable: Callable[[T], bool] = lambda _: True) -> T:
        """Return the value of ``key``. Without a ``usable`` one it is made by ``make``, whose exceptions pass."""
        found = self.get(key)
        if found is not None and usable(found):
            return found
        with self._lock:
            turn = self._turns.setdefault(key, threading.Lock())
        with turn:
            found = self.get(key)
            if found is None or not usable(found):  # else another caller made it meanwhile
                found = self[key] = make()
            return found
