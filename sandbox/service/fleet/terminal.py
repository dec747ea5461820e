"""A command with a terminal in a sandbox, for one who types and looks on from afar. The command does not end with its onlookers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from sandbox.envelope import Envelope, Failure
from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass
from sandbox.operations import LogsResult, Request, Send
from sandbox.pipe.following import PAUSED_SECONDS, all_printed, is_paused

from .live_sandbox import LiveSandbox

READ_BYTES = 64 << 10
WAIT_SECONDS = 15.0
# A sandbox whose pipe broke, or whose service was restarted, is attached to again within this time.
ATTACH_SECONDS = 30.0
ATTACH_AGAIN_SECONDS = 0.5
# What one request may type; the bytes of a frame are typed in pieces.
TYPED_BYTES = 32 << 10
# Beyond this, an onlooker that takes nothing is cut.
MOST_BEHIND_BYTES = 1 << 20


class Keystrokes(Send):
    """Type exactly these bytes, and look at no screen: that would be drawn for each key."""

    text: str = ""
    carry_out = Request.carry_out

    def guest_arguments(self) -> dict[str, Any]:
        """See the base class; bytes that are not UTF-8 are surrogates in the text, which pydantic does not write."""
        return {**self.model_copy(update={"text": ""}).model_dump(mode="json"), "text": self.text}


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of output; ``skipped`` bytes before ``offset`` are not kept. ``ended`` is the last state of the command.

    ``streams`` says where it was printed to, as ``LogsResult`` has it.
    """

    data: bytes
    offset: int
    skipped: int = 0
    ended: LogsResult | None = None
    streams: Sequence[tuple[int, int]] = ()


@dataclass(slots=True)
class Terminal:
    """A command with a terminal, by its ``id``. ``user`` is the one it runs as, if that is not the usual one."""

    live: LiveSandbox
    id: str
    user: str | None = None

    @classmethod
    async def start(cls, live: LiveSandbox, args: Mapping[str, Any]) -> tuple[Terminal | None, Envelope[Any]]:
        """Start a command with the arguments of ``run``; return its terminal, None if it did not start, and the answer."""
        try:
            environment = await live.ready()
            options = {"background": True, "pty": True, "session": None}
            answer: Envelope[Any] = await environment.execute("run", {**args, **options})
        except SandboxError as error:
            answer = Failure.of(error)
        return (cls(live, str(answer.result.id), args.get("user")) if answer.ok else None), answer

    async def output(self, offset: int) -> AsyncIterator[Output]:
        """Yield the output from ``offset`` on to its end. Raises SandboxError if the sandbox or the command is gone."""
        unreached_since: float | None = None
        while True:
            args = {"id": self.id, "offset": offset, "max_bytes": READ_BYTES, "follow": True, "wait_seconds": WAIT_SECONDS}
            answer = await self._ask("logs", args)
            if is_paused(answer):
                await asyncio.sleep(PAUSED_SECONDS)
                continue
            if isinstance(answer, Failure):
                now = time.monotonic()
                unreached_since = now if unreached_since is None else unreached_since
                gone = answer.code is not ErrorCode.sandbox_unavailable or self.live.is_over
                if gone or now - unreached_since > ATTACH_SECONDS:
                    answer.unwrap()
                await asyncio.sleep(ATTACH_AGAIN_SECONDS)
                continue
            unreached_since, found = None, answer.unwrap()
            skipped = max(0, found.offset - offset) if offset >= 0 else 0
            offset = found.next_offset
            yield Output(found.content_bytes, found.offset, skipped, found if all_printed(found) else None, found.streams)
            if all_printed(found):
                return

    async def printed(self) -> int:
        """Return how many bytes it has printed. Raises SandboxError."""
        return int((await self._ask("logs", {"id": self.id, "offset": -1, "max_bytes": 1})).unwrap().total_bytes)

    async def is_behind(self, offset: int) -> bool:
        """Return whether there is much more output than up to ``offset``."""
        state = await self.state(offset)
        return state is not None and state.total_bytes - offset > MOST_BEHIND_BYTES

    async def state(self, offset: int = 0) -> LogsResult | None:
        """Return the state of the command, None if it is not known any more."""
        answer = await self._ask("logs", {"id": self.id, "offset": offset, "max_bytes": 1})
        return answer.result if answer.ok else None

    async def type(self, data: bytes) -> Failure[Any] | None:
        """Type bytes as they are; return the failure if it could not be."""
        for at in range(0, len(data), TYPED_BYTES):
            for keys in _keystrokes(data[at : at + TYPED_BYTES]):
                request = Keystrokes(id=self.id, **keys, wait_seconds=0, user=self.user)
                try:
                    answer: Envelope[Any] = await (await self.live.ready()).perform(request)
                except SandboxError as error:
                    return Failure.of(error)
                if isinstance(answer, Failure):
                    return answer
        return None

    async def resize(self, rows: int, cols: int) -> Failure[Any] | None:
        """Change the size of the terminal; return the failure if it could not be."""
        return _failure(await self._ask("resize", {"id": self.id, "rows": rows, "cols": cols, "user": self.user}))

    async def kill(self, signal: str | None = None) -> Failure[Any] | None:
        """Kill the command and all it started, or send them a signal; return the failure if it could not be."""
        return _failure(await self._ask("kill", {"id": self.id, "signal": signal, "user": self.user}))

    async def _ask(self, operation: str, args: Mapping[str, Any]) -> Envelope[Any]:
        try:
            return await (await self.live.ready()).execute(operation, args)
        except SandboxError as error:
            return Failure.of(error)


def _keystrokes(data: bytes) -> list[dict[str, Any]]:
    """Return the texts and keys that type these bytes: line ends of a text would become those of the Enter key."""
    *lines, last = data.decode("utf-8", "surrogateescape").split("\n")
    steps: list[dict[str, Any]] = [{"text": line, "keys": ("ctrl-j",)} for line in lines]
    return [*steps, {"text": last}] if last else steps


def _failure(answer: Envelope[Any]) -> Failure[Any] | None:
    return answer if isinstance(answer, Failure) else None
