"""Commands that a service before this one started: the sandbox still has them, and says enough of them to follow them again."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection

from sandbox.operations import ListedCommand
from sandbox.service.fleet.live_sandbox import LiveSandbox
from sandbox.service.fleet.terminal import Terminal
from sandbox.service.requests.refill import by_stream
from sandbox.service.wire.e2b.errors import WireError, unwrapped

from .marks import is_marked, read_mark
from .process import MOST_PID_BYTES, InTerminal, Piece

# Of those that have ended: enough for a client that was following one when the service ended.
MOST_ENDED = 8


class Adopted(InTerminal):
    """A command of an earlier service, by its id in the sandbox. One with an input, but no terminal, ended with that service."""

    async def output(self, offset: int) -> AsyncGenerator[Piece, None]:
        async for piece in self._printed(offset):
            if self.asked.size is not None:
                yield "pty", piece.data
                continue
            for stream, data in by_stream(piece.data, piece.streams):
                yield "stderr" if stream == "stderr" else "stdout", data

    async def write(self, data: bytes) -> None:
        if self.asked.size is None:
            raise WireError("failed_precondition", "The process has no standard input.")
        await super().write(data)


async def adopt(live: LiveSandbox, known: Collection[int]) -> list[tuple[Adopted, bool]]:
    """Return commands of earlier services and whether they run, the last ones that have ended too. Raises WireError.

    Those with the ids ``known`` are left out.
    """
    environment = await live.ready()
    listed = unwrapped(await environment.execute("processes", {}), live.record.id).commands
    marked = [each for each in listed if is_marked(each.command)]
    chosen = [each for each in marked if each.running] + [each for each in marked if not each.running][:MOST_ENDED]
    found = [(await _adopt(live, each), each.running) for each in chosen]
    return [(each, runs) for each, runs in found if each is not None and each.pid not in known]


async def _adopt(live: LiveSandbox, listed: ListedCommand) -> Adopted | None:
    read = read_mark(listed.command)
    if read is None:
        return None
    asked, tag = read
    environment = await live.ready()
    logs = await environment.execute("logs", {"id": listed.id, "offset": 0, "max_bytes": MOST_PID_BYTES})
    if not logs.ok or logs.result.offset:
        return None
    line, end, _ = logs.result.content_bytes.partition(b"\n")
    if not end or not line.strip().isdigit():
        return None
    config = {"cmd": asked.argv[0], "args": list(asked.argv[1:]), "envs": {}}
    made = Adopted(live, asked, pid=int(line), config=config, tag=tag, start=len(line) + 1)
    made.terminal = Terminal(live, listed.id, asked.user)
    return made

