"""Any environment for asyncio: every operation as a coroutine, the output of a command as an asynchronous iterator.

The operations themselves run in threads of their own, at most ``limits.concurrent_actions`` at once, never in the loop.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, ParamSpec, Self, TypeVar, Unpack

from sandbox.environment.async_sessions import AsyncSession
from sandbox.environment.base import ActionLike, Environment
from sandbox.environment.methods import OperationMethods, RunOptions, checked
from sandbox.environment.sandboxed import SandboxedEnvironment
from sandbox.network.connections import Connection
from sandbox.network.forward import Forward
from sandbox.network.policy import Network
from sandbox.network.ports import check_port
from sandbox.pipe.following import PAUSED_SECONDS, WAIT_SECONDS, OutputChunk, Tail, is_paused
from sandbox.pipe.watching import CancelToken, OnOutput, StreamName, Watch
from sandbox.state.methods import StateMethods

from . import operations as op
from .envelope import Envelope, Failure
from .errors import ErrorCode, SandboxError
from .limits import Limits

P = ParamSpec("P")
T = TypeVar("T")
# Pieces of output that may wait for the caller of ``stream`` before the command has to.
PIECES_AHEAD = 16
_LOOK_AGAIN_SECONDS = 0.1
# Calls that only wait have threads of their own, so that they hold up no operation; each is made when it is needed.
MOST_WAITING = 512
# What ends when the task that waits for it is cancelled; all but ``run`` only wait.
_STOPPABLE = frozenset({"run", "logs", "wait_for"})


class AsyncEnvironment:
    """``environment`` for asyncio; ``async with`` starts and closes it. ``environment`` itself stays usable meanwhile.

    Operations are those of ``OperationMethods`` with the same arguments and answers. Cancelling the task of a ``run`` stops the
    command with all it started before the cancellation is raised, that of ``logs`` ends its wait; other operations are carried
    out to their end.
    """

    # Nothing else can be assigned: what was meant for the environment would have no effect here.
    __slots__ = ("__weakref__", "_pool", "_waiters", "environment")

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        limits = getattr(environment, "limits", None) or Limits()
        self._pool = ThreadPoolExecutor(limits.concurrent_actions, thread_name_prefix="gamebox-async")
        self._waiters = ThreadPoolExecutor(MOST_WAITING, thread_name_prefix="gamebox-waiting")

    def __repr__(self) -> str:
        return f"<AsyncEnvironment of {self.environment!r}>"

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def start(self) -> Self:
        """Start the environment. Raises SandboxError."""
        await self._call(self.environment.start)
        return self

    async def close(self) -> None:
        """Close the environment; may be called more than once."""
        try:
            await asyncio.to_thread(self.environment.close)
        finally:
            self._pool.shutdown(wait=False)
            self._waiters.shutdown(wait=False)

    async def remove(self) -> None:
        """End the sandbox, also a kept one, which ``close`` leaves running; may be called more than once."""
        try:
            await asyncio.to_thread(self.environment.remove)
        finally:
            self._pool.shutdown(wait=False)
            self._waiters.shutdown(wait=False)

    async def pause(self) -> None:
        """See ``SandboxedEnvironment.pause``. Raises SandboxError."""
        await asyncio.to_thread(self.environment.pause)

    async def resume(self) -> None:
        """See ``SandboxedEnvironment.resume``. Raises SandboxError."""
        await asyncio.to_thread(self.environment.resume)

    async def secret(self, name: str, value: str, *, always: bool = True) -> None:
        """See ``Environment.secret``. Raises SandboxError."""
        self.environment.secret(name, value, always=always)

    @property
    def network(self) -> Network:
        """See ``SandboxedEnvironment.network``."""
        return self._networked.network

    @network.setter
    def network(self, network: Network) -> None:
        self._networked.network = network

    @property
    def on_connection(self) -> Callable[[Connection], None] | None:
        """See ``SandboxedEnvironment.on_connection``: called in a thread of the network's own, not in the loop."""
        return self._networked.on_connection

    @on_connection.setter
    def on_connection(self, listener: Callable[[Connection], None] | None) -> None:
        self._networked.on_connection = listener

    @property
    def services(self) -> Mapping[str, Any]:
        """The side services that are ready, by their names; see ``DockerEnvironment.services``."""
        return getattr(self.environment, "services", {})

    async def allow(self, *rules: str) -> Network:
        """See ``SandboxedEnvironment.allow``."""
        return await self._call(self._networked.allow, *rules)

    async def deny(self, *rules: str) -> Network:
        """See ``SandboxedEnvironment.deny``."""
        return await self._call(self._networked.deny, *rules)

    @property
    def connections(self) -> tuple[Connection, ...]:
        """See ``SandboxedEnvironment.connections``."""
        return self._networked.connections

    async def forward(self, port: int, host_port: int = 0) -> Envelope[Forward]:
        """See ``SandboxedEnvironment.forward``."""
        return await self._call(self._networked.forward, port, host_port)

    def forwards(self) -> tuple[Forward, ...]:
        """See ``SandboxedEnvironment.forwards``."""
        return self._networked.forwards()

    @property
    def _networked(self) -> SandboxedEnvironment:
        if not isinstance(self.environment, SandboxedEnvironment):
            raise SandboxError(
                ErrorCode.operation_not_supported,
                f"{type(self.environment).__name__} has no network of its own.",
                "Use DockerEnvironment(network=...).",
            )
        return self.environment

    async def describe(self) -> dict[str, str]:
        """See ``Environment.describe``."""
        return await asyncio.to_thread(self.environment.describe)

    async def _call(self, method: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, partial(method, *args, **options))

    # --- commands ------------------------------------------------------------------
    async def run(
        self, command: str | Sequence[str] | None = None, *, cancel: CancelToken | None = None, **options: Any
    ) -> Envelope[op.RunResult]:
        """See ``OperationMethods.run``; ``stdin`` may be an asynchronous iterable, too.

        ``on_output`` is called in a thread of the pool; ``stream`` is the way for coroutines.
        """
        if isinstance(options.get("stdin"), AsyncIterable):
            options["stdin"] = _from_loop(options["stdin"], asyncio.get_running_loop())
        return await self._stoppable(partial(self.environment.run, command, **options), cancel, self._pool)

    async def sh(
        self, command: str | Sequence[str], *, check: bool = False, **options: Unpack[RunOptions]
    ) -> op.RunResult:
        """See ``OperationMethods.sh``."""
        result = (await self.run(command, **options)).unwrap()
        return checked(command, result) if check else result

    async def logs(self, id: str, *, cancel: CancelToken | None = None, **options: Any) -> Envelope[op.LogsResult]:  # noqa: A002
        """See ``OperationMethods.logs``."""
        return await self._stoppable(partial(self.environment.logs, id, **options), cancel, self._waiters)

    async def service_logs(self, name: str, **options: Any) -> Envelope[op.LogsResult]:
        """See ``Environment.service_logs``."""
        return await asyncio.get_running_loop().run_in_executor(
            self._waiters, partial(self.environment.service_logs, name, **options)
        )

    async def wait_for(self, *, cancel: CancelToken | None = None, **options: Any) -> Envelope[op.WaitForResult]:
        """See ``OperationMethods.wait_for``."""
        return await self._stoppable(partial(self.environment.wait_for, **options), cancel, self._waiters)

    async def wait_for_port(
        self, port: int, *, timeout_seconds: float = 30.0, **options: Any
    ) -> Envelope[op.WaitForResult]:
        """See ``OperationMethods.wait_for_port``."""
        try:
            check_port("wait_for_port", "port", port)
        except SandboxError as error:
            return Failure.of(error)
        return await self.wait_for(port=port, timeout_seconds=timeout_seconds, **options)

    async def follow(
        self, id: str, *, offset: int = 0, cancel: CancelToken | None = None  # noqa: A002
    ) -> AsyncGenerator[OutputChunk, None]:
        """``async for chunk in env.follow(id)``: see ``OperationMethods.follow``. Leaving the loop leaves the command alone."""
        tail = Tail(offset)
        while tail.ended is None:
            answer = await self.logs(id, offset=tail.offset, follow=True, wait_seconds=WAIT_SECONDS, cancel=cancel)
            if is_paused(answer):
                await asyncio.sleep(PAUSED_SECONDS)
                continue
            chunk = tail.take(answer.unwrap())
            if chunk is not None:
                yield chunk

    async def _stoppable(
        self, call: Callable[..., Envelope[T]], cancel: CancelToken | None, pool: ThreadPoolExecutor
    ) -> Envelope[T]:
        """Carry out ``call``; where this task is cancelled, so is what it waits for."""
        token = cancel or CancelToken()
        under_way = asyncio.get_running_loop().run_in_executor(pool, partial(call, cancel=token))
        try:
            return await asyncio.shield(under_way)
        except asyncio.CancelledError:
            token.cancel()
            await _settled(under_way)
            raise

    def stream(self, command: str | Sequence[str] | None = None, **options: Any) -> OutputOfCommand:
        """Run a command: ``async for chunk in env.stream(...)`` gives its output as it comes; options as for ``run``."""
        return OutputOfCommand(self, command, options)

    async def execute_action(self, action: ActionLike, args: Any) -> dict[str, Any]:
        """See ``Environment.execute_action``."""
        return await self._call(self.environment.execute_action, action, args)

    async def execute(self, operation: str, args: Mapping[str, Any], *, watch: Watch | None = None) -> Envelope[Any]:
        """See ``Environment.execute``; every operation goes through here or through a method of its own name."""
        if operation not in _STOPPABLE:
            return await self._call(self.environment.execute, operation, args, watch=watch)
        watched = watch or Watch()

        def call(cancel: CancelToken) -> Envelope[Any]:
            return self.environment.execute(operation, args, watch=replace(watched, cancel=cancel))

        return await self._stoppable(call, watched.cancel, self._pool if operation == "run" else self._waiters)

    # --- files ------------------------------------------------------------------
    async def read(self, path: str, **options: Any) -> Envelope[op.ReadResult]:
        """See ``OperationMethods.read``."""
        return await self._call(self.environment.read, path, **options)

    async def write(self, path: str, content: str, *, request_id: str | None = None) -> Envelope[op.WriteResult]:
        """See ``OperationMethods.write``."""
        return await self._call(self.environment.write, path, content, request_id=request_id)

    async def upload(
        self, data_or_path: bytes | str | os.PathLike[str], path: str, *, mode: int | None = None
    ) -> Envelope[op.UploadResult]:
        """See ``OperationMethods.upload``, and ``SandboxedEnvironment.upload`` for ``mode``."""
        upload: Callable[..., Envelope[op.UploadResult]] = self.environment.upload
        return await self._call(upload, data_or_path, path, **({} if mode is None else {"mode": mode}))

    async def download(
        self,
        path: str,
        to: str | os.PathLike[str] | None = None,
        *,
        without: Sequence[str] = (),
        overwrite: bool = False,
    ) -> Envelope[op.DownloadResult]:
        """See ``OperationMethods.download``."""
        options: dict[str, Any] = {"without": tuple(without)} if without else {}
        return await self._call(self.environment.download, path, to, overwrite=overwrite, **options)

    async def stat(self, path: str) -> Envelope[op.StatResult]:
        """See ``OperationMethods.stat``."""
        return await self._call(self.environment.stat, path)

    async def open_session(self, session: str, *, user: str | int | None = None) -> Envelope[op.OpenSessionResult]:
        """See ``OperationMethods.open_session``."""
        return await self._call(self.environment.open_session, session, user=user)

    async def sessions(self, *, user: str | int | None = None) -> Envelope[op.SessionsResult]:
        """See ``OperationMethods.sessions``."""
        return await self._call(self.environment.sessions, user=user)

    async def end_session(self, session: str, *, user: str | int | None = None) -> Envelope[op.EndSessionResult]:
        """See ``OperationMethods.end_session``."""
        return await self._call(self.environment.end_session, session, user=user)

    def session(self, name: str, *, user: str | int | None = None) -> AsyncSession:
        """See ``OperationMethods.session``: ``async with env.session("build") as session:``."""
        return AsyncSession(self, name, user)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """The other operations (``edit``, ``logs`` ...) and ``changes``, ``checkpoint``, ``rollback`` ... as coroutines."""
        if name.startswith("_") or not (name in vars(OperationMethods) or name in vars(StateMethods)):
            raise AttributeError(f"AsyncEnvironment has no {name!r}")
        return partial(self._call, getattr(self.environment, name))


class OutputOfCommand:
    """The output of one command as it comes: iterate it once. ``envelope`` is the answer when the iteration has ended.

    Where the loop is left early, ``aclose`` (or the end of ``async with``) stops the command.
    """

    def __init__(self, environment: AsyncEnvironment, command: str | Sequence[str] | None, options: Mapping[str, Any]) -> None:
        self.envelope: Envelope[op.RunResult] | None = None
        self._token = options.get("cancel") or CancelToken()
        self._chunks: asyncio.Queue[OutputChunk | None] = asyncio.Queue()
        self._room = threading.Semaphore(PIECES_AHEAD)
        self._given_up = False
        self._iterator = self._iterate(environment, {**options, "command": command, "cancel": self._token})

    def __aiter__(self) -> AsyncIterator[OutputChunk]:
        return self._iterator

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop the command if it still runs, and wait until nothing of it is left."""
        await self._iterator.aclose()

    async def _iterate(
        self, environment: AsyncEnvironment, options: dict[str, Any]
    ) -> AsyncGenerator[OutputChunk, None]:
        on_output = self._on_output(asyncio.get_running_loop())
        command = asyncio.ensure_future(environment.run(**options, on_output=on_output))
        command.add_done_callback(lambda _: self._chunks.put_nowait(None))
        try:
            while (chunk := await self._chunks.get()) is not None:
                self._room.release()
                yield chunk
            self.envelope = await command
        finally:
            self._given_up = True
            self._token.cancel() if not command.done() else None
            await _settled(command)

    def _on_output(self, loop: asyncio.AbstractEventLoop) -> OnOutput:
        def take(stream: StreamName, text: str) -> None:
            while not self._room.acquire(timeout=_LOOK_AGAIN_SECONDS):
                if self._given_up or self._token.cancelled:
                    return
            loop.call_soon_threadsafe(self._chunks.put_nowait, OutputChunk(stream, text))

        return take


def _from_loop(source: AsyncIterable[bytes], loop: asyncio.AbstractEventLoop) -> Iterator[bytes]:
    """What ``source`` gives in ``loop``, for another thread."""
    iterator = aiter(source)

    async def step() -> bytes | None:
        return await anext(iterator, None)

    while (piece := asyncio.run_coroutine_threadsafe(step(), loop).result()) is not None:
        yield piece


async def _settled(future: asyncio.Future[Any]) -> None:
    """Wait for ``future`` whatever it brings, through further cancellations."""
    while not future.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([future])
    if not future.cancelled():
        future.exception()
