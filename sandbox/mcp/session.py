"""A session of a client: its sandbox, what its user has approved, and which of its commands keep a shell busy."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from sandbox.envelope import Envelope, Failure
from sandbox.errors import ErrorCode
from sandbox.operations import RunResult
from sandbox.pipe.watching import CancelToken

from .place import Place
from .tools import ANSWER_SECONDS, FORWARD, Tool

# A client may name as many shell sessions as it likes; the sandbox has fewer.
MOST_SHELLS = 256
STOP_SECONDS = 10.0
# What it takes to start and to end the wait for a command.
MARGIN_SECONDS = 5.0
_DEFAULT_SHELL = "default"


class Session:
    """One client at work. ``asks`` says that its user is asked before a call that may change something."""

    def __init__(self, place: Place, *, asks: bool = False) -> None:
        self.place, self.asks = place, asks
        self.approved: set[str] = set()
        """Tools that the user has approved until the end of the session."""
        self._shells: dict[str, asyncio.Lock] = {}
        self._busy: dict[str, str] = {}
        self.under_way = 0
        self.worked_at = time.monotonic()
        """When the last call ended."""

    async def carry_out(
        self, tool: Tool, args: Mapping[str, Any], cancel: CancelToken, listen: Callable[[bytes], None] | None
    ) -> Envelope[Any]:
        """Carry out a call, and answer within ``ANSWER_SECONDS``, or little more. Never raises."""
        self.under_way += 1
        try:
            return await self._carried_out(tool, args, cancel, listen)
        finally:
            self.under_way -= 1
            self.worked_at = time.monotonic()

    async def _carried_out(
        self, tool: Tool, args: Mapping[str, Any], cancel: CancelToken, listen: Callable[[bytes], None] | None
    ) -> Envelope[Any]:
        if tool.name == FORWARD:
            port = args.get("port")
            if not isinstance(port, int) or isinstance(port, bool) or set(args) != {"port"}:
                return Failure(ErrorCode.invalid_arguments, "forward takes one number: port.", "Give port=8000, for example.")
            return await self.place.forward(port)
        shell = _shell_of(tool, args)
        if shell is None:
            return await self._within(tool, args, ANSWER_SECONDS, cancel, listen)
        began = time.monotonic()
        async with self._turn(shell) as is_mine:
            seconds = ANSWER_SECONDS - (time.monotonic() - began)
            if not is_mine or seconds < 1:
                return _busy(shell, "")
            if running := await self._running(shell, cancel):
                return _busy(shell, running)
            answer = await self._within(tool, args, seconds, cancel, listen)
            if isinstance(answer.result, RunResult) and answer.result.running and len(self._busy) < MOST_SHELLS:
                self._busy[shell] = answer.result.id
            return answer

    async def _within(
        self,
        tool: Tool,
        args: Mapping[str, Any],
        seconds: float,
        cancel: CancelToken,
        listen: Callable[[bytes], None] | None,
    ) -> Envelope[Any]:
        """Carry out an operation; one that does not answer in time, although it was told to, is stopped."""
        bounded = tool.bounded(args, seconds)
        task = asyncio.create_task(self.place.execute(tool.name, bounded, cancel, listen if tool.name == "run" else None))
        try:
            done, _ = await asyncio.wait([task], timeout=seconds + MARGIN_SECONDS)
            if done:
                return task.result()
            await stop(cancel, task)
        except asyncio.CancelledError:
            await asyncio.shield(asyncio.create_task(stop(cancel, task)))
            raise
        return Failure(
            ErrorCode.timeout,
            f"{tool.name} was not answered within {seconds + MARGIN_SECONDS:g} seconds, and was stopped.",
            "Look with processes, or with run and ps, at what the sandbox is doing; then do it again.",
            effects="unknown",
        )

    @contextlib.asynccontextmanager
    async def _turn(self, shell: str) -> AsyncIterator[bool]:
        """Wait until no other call runs a command in this shell; yield False if that takes too long."""
        lock = self._shells.setdefault(shell, asyncio.Lock())
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await lock.acquire()
        except TimeoutError:
            yield False
            return
        try:
            yield True
        finally:
            lock.release()
            if not lock.locked() and len(self._shells) > MOST_SHELLS:
                self._shells.pop(shell, None)

    async def _running(self, shell: str, cancel: CancelToken) -> str:
        """Return the id of the command that keeps the shell busy, or "" if none does."""
        ident = self._busy.get(shell)
        if ident is None:
            return ""
        answer = await self.place.execute("logs", {"id": ident, "tail_lines": 1, "max_bytes": 1}, cancel)
        if answer.ok and answer.result.running:
            return ident
        self._busy.pop(shell, None)
        return ""


async def stop(cancel: CancelToken, task: asyncio.Task[Any]) -> None:
    """Stop what a task has begun, and wait for its end for a while: the answer is that everything was killed."""
    await asyncio.to_thread(cancel.cancel)  # it may send a frame
    await asyncio.wait([task], timeout=STOP_SECONDS)
    if not task.done():
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())


def _shell_of(tool: Tool, args: Mapping[str, Any]) -> str | None:
    """Return the session of a command that has to wait for the one before it, or None."""
    if tool.name != "run" or args.get("background") is True:
        return None
    shell = args.get("session", _DEFAULT_SHELL)
    return shell[:64] if isinstance(shell, str) else None


def _busy(shell: str, ident: str) -> Failure[Any]:
    what = f"by the command {ident}, which is still running" if ident else "by another call"
    wait = f"Wait with wait_for(id={ident!r}, exit=true), end it with kill(id={ident!r}), or run" if ident else "Run"
    return Failure(
        ErrorCode.too_many_commands,
        f"The session {shell!r} is in use {what}. Nothing was run.",
        f"{wait} this with session=null.",
        retryable=True,
    )
