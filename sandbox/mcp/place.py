"""Where a session works: what the server needs of a sandbox, and the sandbox of this process's own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

from sandbox.aio import AsyncEnvironment
from sandbox.envelope import Envelope, Failure
from sandbox.environment.base import Environment
from sandbox.errors import ErrorCode, OperationError, SandboxError
from sandbox.operations.state import PatchResult
from sandbox.pipe.watching import CancelToken, Watch
from sandbox.readers import Hint

from .tools import ANSWER_SECONDS

T = TypeVar("T")
log = logging.getLogger(__name__)

# After these nothing of the sandbox is left.
_ENDS = frozenset({ErrorCode.sandbox_unavailable, ErrorCode.sandbox_closed, ErrorCode.sandbox_not_found})
_ANEW = "Its files are lost. The next call starts a new sandbox, with the files that this one had at its start."
_STILL_THERE = ("pipe_broken", "engine_gone", "service_unreachable", "service_failed")


class Place(Protocol):
    """The sandbox of a session. It is started by the first call, and a new one by the first call after its end."""

    async def execute(
        self,
        operation: str,
        args: Mapping[str, Any],
        cancel: CancelToken,
        listen: Callable[[bytes], None] | None = None,
    ) -> Envelope[Any]:
        """Carry out an operation with what a model gave; ``listen`` gets the output of a command as it comes. Never raises."""

    async def fetch(self, path: str, most: int) -> bytes:
        """Return the bytes of a file. Raises SandboxError, ``file_too_large`` for more than ``most`` bytes."""

    async def forward(self, port: int) -> Envelope[Any]:
        """Make a port of the sandbox reachable; the result has its ``url``. Never raises."""

    async def describe(self) -> Mapping[str, str]:
        """Return what an agent is told of the sandbox. Raises SandboxError."""

    async def patch(self) -> Envelope[PatchResult]:
        """Return what was changed in the workspace since the start. Raises SandboxError."""


class OwnSandbox:
    """A sandbox that this process starts when it is first used. ``make`` returns it, not started.

    If it ``is_replaceable``, a lost one is followed by another. ``after_start`` is called with each, ``before_end`` before its end.
    """

    def __init__(
        self,
        make: Callable[[], Environment],
        *,
        is_replaceable: bool = True,
        after_start: Callable[[Environment], None] = lambda _: None,
        before_end: Callable[[AsyncEnvironment], Any] | None = None,
    ) -> None:
        self._make, self._is_replaceable = make, is_replaceable
        self._after_start, self._before_end = after_start, before_end
        self._starting: asyncio.Task[AsyncEnvironment] | None = None

    async def execute(
        self,
        operation: str,
        args: Mapping[str, Any],
        cancel: CancelToken,
        listen: Callable[[bytes], None] | None = None,
    ) -> Envelope[Any]:
        """See ``Place``."""
        watch = Watch(cancel=cancel) if listen is None else Watch(on_bytes=lambda _, data: listen(data), cancel=cancel)
        return await self._answered(lambda env: env.execute(operation, args, watch=watch))

    async def fetch(self, path: str, most: int) -> bytes:
        """See ``Place``."""
        env = await self._ready()
        found = Bounded(path, most)
        inner: Any = env.environment
        (await asyncio.to_thread(partial(inner.download_pieces, path, found.take))).unwrap()
        return bytes(found.data)

    async def forward(self, port: int) -> Envelope[Any]:
        """See ``Place``."""
        return await self._answered(lambda env: env.forward(port))

    async def describe(self) -> Mapping[str, str]:
        """See ``Place``."""
        return await (await self._ready()).describe()

    async def patch(self) -> Envelope[PatchResult]:
        """See ``Place``."""
        return await (await self._ready()).export_patch()

    async def close(self) -> None:
        """End the sandbox if there is one; the next call starts another."""
        starting, self._starting = self._starting, None
        if starting is None:
            return
        try:
            env = await starting
        except (SandboxError, asyncio.CancelledError):
            return
        try:
            if self._before_end is not None:
                await self._before_end(env)
        finally:
            await env.close()

    async def _answered(self, work: Callable[[AsyncEnvironment], Any]) -> Envelope[Any]:
        starting = self._starting
        try:
            env = await self._ready()
            starting = self._starting
            answer: Envelope[Any] = await work(env)
        except SandboxError as error:
            answer = Failure.of(error)
        if isinstance(answer, Failure) and self._is_over(answer) and starting is not None and starting.done():
            return await self._without(starting, answer)
        return answer

    def _is_over(self, answer: Failure[Any]) -> bool:
        return self._is_replaceable and answer.code in _ENDS and answer.reason not in _STILL_THERE

    async def _without(self, starting: asyncio.Task[AsyncEnvironment], answer: Failure[Any]) -> Failure[Any]:
        """Let go of a sandbox that has ended, and say so."""
        if self._starting is starting:
            self._starting = None
            with contextlib.suppress(SandboxError):
                await starting.result().close()
        return replace(answer, hint=Hint(_ANEW), next_tool=None)

    async def _ready(self) -> AsyncEnvironment:
        """Return the sandbox, started. Raises SandboxError; the next call tries it again."""
        if self._starting is None or (self._starting.done() and _failed(self._starting)):
            self._starting = asyncio.create_task(self._start())
        return await within(self._starting)

    async def _start(self) -> AsyncEnvironment:
        env = AsyncEnvironment(await asyncio.to_thread(self._make))
        try:
            await env.start()
            self._after_start(env.environment)
            return env
        except BaseException:
            await env.close()
            raise


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.cancelled() or task.exception() is not None


async def within(starting: asyncio.Task[T]) -> T:
    """Return what a task that starts a sandbox returns. Raises SandboxError if that takes longer than a call may."""
    done, _ = await asyncio.wait([starting], timeout=ANSWER_SECONDS)
    if not done:
        raise SandboxError(
            ErrorCode.start_failed,
            f"The sandbox has not started within {ANSWER_SECONDS:g} seconds. Its start goes on.",
            "Do it again in a moment.",
            retryable=True,
        )
    return starting.result()


class Bounded:
    """Collects the bytes of a file. Raises OperationError ``file_too_large`` for one more than ``most``."""

    def __init__(self, path: str, most: int) -> None:
        self._path, self._most = path, most
        self.data = bytearray()

    def take(self, piece: bytes | memoryview) -> None:
        """Take the next piece."""
        if len(self.data) + len(piece) > self._most:
            raise too_large(self._path, self._most)
        self.data += piece

    async def take_awaited(self, piece: bytes | memoryview) -> None:
        """Do what ``take`` does."""
        self.take(piece)


def too_large(path: str, most: int) -> OperationError:
    """Return the error for a file that is larger than what is passed on whole."""
    return OperationError(
        ErrorCode.file_too_large,
        f"{path!r:.300} is larger than {most} bytes, the most that is passed on whole.",
        "Read it in parts, with the tool read.",
    )
