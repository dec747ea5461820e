"""Compare what is written down with the engine: at the start, when the engine is there again, and from time to time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping

from sandbox.errors import SandboxError
from sandbox.service.store.tables.sandboxes import stopped_at

from .live_sandbox import LiveSandbox

log = logging.getLogger(__name__)

# Ends of sandboxes that are attached are seen at once; this is for the others: paused ones, and containers that others removed.
COMPARE_SECONDS = 20.0
# While the engine does not answer.
AGAIN_SECONDS = 2.0
# What a container is called that may still be used.
ALIVE = ("running", "paused", "restarting")


class Reconciling:
    """Calls ``settle(sandbox, state)`` for each sandbox that is not what the engine says of its container, None if it has none.

    ``states`` returns the states of all containers by their names, and raises SandboxError if the engine does not answer.
    ``sandboxes`` are those that are not over. ``settle`` is called while the sandbox is not changed by anything else.
    """

    def __init__(
        self,
        sandboxes: Callable[[], list[LiveSandbox]],
        states: Callable[[], Awaitable[Mapping[str, str]]],
        settle: Callable[[LiveSandbox, str | None], Awaitable[None]],
    ) -> None:
        self._sandboxes, self._states, self._settle = sandboxes, states, settle
        self._missing: set[str] = set()
        self._is_away = False

    async def work(self) -> None:
        """Compare again and again."""
        while True:
            answered = await self.compare()
            await asyncio.sleep(COMPARE_SECONDS if answered else AGAIN_SECONDS)

    async def compare(self) -> bool:
        """Compare all sandboxes with their containers; return whether the engine answered."""
        # A state that was changed while the engine was asked is not compared with what it said before.
        before = [(live, live.record) for live in self._sandboxes() if not live.changing.locked()]
        try:
            states = await self._states()
        except SandboxError as error:  # attaching finds it out, too
            if not self._is_away:
                log.warning("the engine does not list its sandboxes: %s", error)
            self._is_away = True
            return False
        self._is_away = False
        missing: set[str] = set()
        for live, record in before:
            state = states.get(record.ident)
            stopped = stopped_at(record.options) is not None
            if state is None if stopped else _agrees(record.state, state):
                continue
            if live.environment is not None and state not in ALIVE and record.id not in self._missing:
                missing.add(record.id)  # its own end says why, in a moment
                continue
            async with live.changing:
                if live.record is record:
                    with contextlib.suppress(SandboxError):  # it is logged, and tried again
                        await self._settle(live, state)
        self._missing = missing
        return True


def _agrees(recorded: str, state: str | None) -> bool:
    """Return whether a container in that state can belong to such a record; those that come and go are left to their tasks."""
    if recorded == "paused":
        return state in ("paused", "restarting")
    return recorded != "running" or state in ALIVE
