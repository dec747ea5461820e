"""The answers to requests, kept for those who ask again with the same id: so many of all sandboxes together."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from sandbox.envelope import Envelope, Failure, Notice
from sandbox.operations.wire import beside_texts

# Of a whole service. Of those that are forgotten, the sandbox has the outcomes of the last commands and changes.
MOST_ANSWERS, MOST_BYTES = 2048, 128 << 20


class Answer:
    """An envelope as it is sent: it is kept as texts, which take a tenth of the memory of its objects.

    ``plain`` is the envelope as JSON. Bytes of names that are not UTF-8 come as lone surrogates, escaped.
    """

    __slots__ = ("_with_bytes", "code", "notices", "plain")

    def __init__(self, envelope: Envelope[Any]) -> None:
        self.notices: tuple[Notice, ...] = envelope.notices
        self.code = str(envelope.code) if isinstance(envelope, Failure) else ""
        """The code of a failure, else ""."""
        data = envelope.to_dict()
        more = beside_texts(envelope, data)
        self.plain = json.dumps(data).encode()
        self._with_bytes = json.dumps({**data, **more}).encode() if more else self.plain

    def json(self, *, with_bytes: bool) -> bytes:
        """Return the envelope as JSON, with the bytes of its result that texts cannot hold for those who ask for them."""
        return self._with_bytes if with_bytes else self.plain

    @property
    def size(self) -> int:
        """How many bytes it takes."""
        return len(self.plain) + (len(self._with_bytes) if self._with_bytes is not self.plain else 0)


class AnswerRoom:
    """Which answers are kept. If they are too many, the tenant that has most of them loses its oldest. Used in one loop."""

    def __init__(self, most: int = MOST_ANSWERS, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._count = self._total = 0
        # By tenants: what forgets each answer, and its size, in their order; and the sums of these sizes.
        self._kept: dict[str, dict[Callable[[], None], int]] = {}
        self._bytes: dict[str, int] = {}

    def keep(self, tenant: str, forget: Callable[[], None], size: int) -> None:
        """Take room for an answer; ``forget`` is called when it has to go, which may be at once."""
        self._kept.setdefault(tenant, {})[forget] = size
        self._bytes[tenant] = self._bytes.get(tenant, 0) + size
        self._count += 1
        self._total += size
        while self._count > self._most:
            self._drop_oldest(max(self._kept, key=lambda each: len(self._kept[each])))
        while self._total > self._most_bytes:
            self._drop_oldest(max(self._bytes, key=self._bytes.__getitem__))

    def give_back(self, tenant: str, forget: Callable[[], None]) -> None:
        """Have the room of an answer back, if it is kept still."""
        kept = self._kept.get(tenant, {})
        if forget not in kept:
            return
        size = kept.pop(forget)
        self._count -= 1
        self._total -= size
        self._bytes[tenant] -= size
        if not kept:
            del self._kept[tenant], self._bytes[tenant]

    def _drop_oldest(self, tenant: str) -> None:
        oldest = next(iter(self._kept[tenant]))
        self.give_back(tenant, oldest)
        oldest()
