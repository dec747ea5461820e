"""The commands of a sandbox by their process ids."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from sandbox.service.fleet.live_sandbox import LiveSandbox
from sandbox.service.store.database import Database
from sandbox.service.wire.e2b.errors import WireError

from .adopted import adopt
from .marks import Asked
from .process import START_SECONDS, InTerminal, Piped, Process

# Those that have ended are known for a while, so that a late caller learns how.
ENDED_SECONDS, MOST_ENDED = 30.0, 64
MOST_ROWS, MOST_COLS = 100, 300


class Processes:
    """The commands of one sandbox that this dialect has started; those of a service before this one are looked for once."""

    def __init__(self, live: LiveSandbox) -> None:
        self._live = live
        self._by_pid: dict[int, Process] = {}
        self._ended: dict[int, Process] = {}
        self._adopting = asyncio.Lock()
        self._adopted = False

    @classmethod
    def of(cls, live: LiveSandbox) -> Processes:
        """Return those of a sandbox."""
        found = live.beside.get(cls)
        if found is None:
            found = live.beside[cls] = cls(live)
        return found

    async def start(self, database: Database, asked: Asked, config: Mapping[str, Any], tag: str | None) -> Process:
        """Start a command. Raises WireError, SandboxError, Problem."""
        made: Process
        try:
            if asked.size is None:
                made = piped = Piped(self._live, asked, config=config, tag=tag)
                await piped.begin(database)
            else:
                rows, cols = (max(1, min(asked.size[0], MOST_ROWS)), max(1, min(asked.size[1], MOST_COLS)))
                made = terminal = InTerminal(self._live, asked, config=config, tag=tag)
                await terminal.begin(rows, cols)
        except TimeoutError:
            raise WireError("deadline_exceeded", f"The command did not start within {START_SECONDS:g} s.") from None
        self._by_pid[made.pid] = made
        self._ended.pop(made.pid, None)
        if isinstance(made, Piped) and made.request.task is not None:
            made.request.task.add_done_callback(lambda _: self.note_end(made))
        return made

    def note_end(self, process: Process) -> None:
        """Remember for a while that a command has ended."""
        if self._by_pid.get(process.pid) is not process:
            return
        del self._by_pid[process.pid]
        self._ended[process.pid] = process
        while len(self._ended) > MOST_ENDED:
            del self._ended[next(iter(self._ended))]
        asyncio.get_running_loop().call_later(ENDED_SECONDS, self._forget, process)

    def _forget(self, process: Process) -> None:
        if self._ended.get(process.pid) is process:
            del self._ended[process.pid]

    async def _adopt(self) -> None:
        async with self._adopting:
            if self._adopted:
                return
            for each, runs in await adopt(self._live, self._by_pid.keys()):
                if runs:
                    self._by_pid.setdefault(each.pid, each)
                elif each.pid not in self._by_pid and each.pid not in self._ended:
                    self._by_pid[each.pid] = each
                    self.note_end(each)
            self._adopted = True

    async def running(self) -> list[Process]:
        """Return those that run. Raises WireError, SandboxError."""
        await self._adopt()
        for each in [each for each in self._by_pid.values() if not await each.is_running()]:
            self.note_end(each)
        return list(self._by_pid.values())

    async def find(self, selector: object, *, ended: bool = False) -> Process:
        """Return the command with a pid or a tag; those that have ended only with ``ended``. Raises WireError, SandboxError."""
        asked = selector if isinstance(selector, dict) else {}
        name = "pid" if "pid" in asked else "tag"
        wanted = asked.get(name)
        found = self._known(name, wanted, ended)
        if found is None and not self._adopted:
            await self._adopt()
            found = self._known(name, wanted, ended)
        if found is None:
            raise WireError("not_found", f"process with {name} {str(wanted)[:80]} not found")
        return found

    def _known(self, name: str, wanted: object, ended: bool) -> Process | None:
        known: list[Process] = [*self._by_pid.values(), *(self._ended.values() if ended else ())]
        named = (each for each in known if wanted is not None and wanted == (each.pid if name == "pid" else each.tag))
        return next(named, None)
