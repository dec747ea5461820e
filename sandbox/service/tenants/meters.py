"""How much was used lately, as a bucket that leaks: a few bytes for each tenant, however fast it asks. Pure: times are given."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(slots=True)
class Meter:
    """What was used at ``at``, less what has leaked since: ``most`` leaks within ``seconds``.

    A tenant that did nothing for a while may use ``most`` at once, and from then on as much as leaks.
    """

    seconds: float
    level: float = 0.0
    at: float = 0.0

    def spend(self, amount: float, most: float, at: float) -> float:
        """Use ``amount``, and return 0; or use nothing, and return after how many seconds it will be possible.

        What is more than ``most`` is never possible: infinity.
        """
        self.leak(most, at)
        over = self.level + amount - most
        if over <= 1e-9:
            self.level += amount
            return 0.0
        return math.inf if amount > most else over * self.seconds / most

    def add(self, amount: float, most: float, at: float) -> float:
        """Use ``amount``, which was not to be refused any more; return by how much that was too much, 0 if it was not."""
        self.leak(most, at)
        self.level += amount
        return max(0.0, self.level - most)

    def give_back(self, amount: float) -> None:
        """Have ``amount`` not used after all."""
        self.level = max(0.0, self.level - amount)

    def left(self, most: float, at: float) -> int:
        """Return how much may be used now."""
        self.leak(most, at)
        return max(0, math.floor(most - self.level + 1e-9))

    def reset_seconds(self, most: float, at: float) -> int:
        """Return after how many seconds all of it may be used again."""
        self.leak(most, at)
        return 0 if most <= 0 else math.ceil(self.level * self.seconds / most)

    def leak(self, most: float, at: float) -> None:
        """Have leaked what leaks until ``at``; a clock that went back has no effect."""
        if at > self.at:
            self.level = max(0.0, self.level - (at - self.at) * most / self.seconds)
        self.at = at
