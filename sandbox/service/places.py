"""Who holds how many places, such as connections: nobody has more of them than are left for others."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from .http.problems import Problem, ProblemCode


class Places:
    """``most`` places for all holders together, of which one holder has at most ``each``. It is used in one thread.

    A holder gets no place either if it would then have more than are free: so those that came first always leave room for
    others, however many of them there are.
    """

    def __init__(self, most: int, each: int) -> None:
        self.most, self.each = most, each
        self.taken = 0
        self._of: dict[Hashable, int] = {}

    def of(self, holder: Hashable) -> int:
        """Return how many places a holder has."""
        return self._of.get(holder, 0)

    def take(self, holder: Hashable | None) -> bool:
        """Give the holder one more place; return whether there was one. None takes a place that counts for nobody."""
        if self.taken >= self.most:
            return False
        if holder is not None:
            held = self._of.get(holder, 0) + 1
            if held > self.each or held >= self.most - self.taken:
                return False
            self._of[holder] = held
        self.taken += 1
        return True

    def give_back(self, holder: Hashable | None) -> None:
        """Have a place back that ``take`` gave."""
        self.taken -= 1
        if holder is not None:
            held = self._of[holder] - 1
            if held:
                self._of[holder] = held
            else:
                del self._of[holder]

    @contextmanager
    def held(self, holder: Hashable, what: str) -> Iterator[None]:
        """Hold a place during the block. Raises Problem, which says ``what`` has too many requests, if there is none."""
        if not self.take(holder):
            raise too_many(what, self.of(holder))
        try:
            yield
        finally:
            self.give_back(holder)


def too_many(what: str, held: int) -> Problem:
    """Return the problem of a holder that has so many requests or connections under way, and may have no more."""
    return Problem(
        429,
        ProblemCode.too_many_connections,
        f"{what} already has {held} requests and connections under way.",
        "Close some of them, or wait until one has ended; the operator sets how many there may be.",
        retryable=True,
        headers={"Retry-After": "5"},
    )
