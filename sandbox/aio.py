"""Any environment for asyncio: every operation as a coroutine, the output of a command as an asynchronous iterator.

A request to a sandbox is sent in the loop, and its answer wakes the task: no thread waits for it. Threads carry out what else may
take time: start and end, files of the host, what streams beside a request, tools, environments of other kinds. At most
``limits.concurrent_actions`` are under way at once.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, Self, TypeVar, Unpack, cast
from weakref import WeakKeyDictionary

from sandbox.environment.async_sessions import AsyncSession
from sandbox.environment.base import ActionLike, Environment, failure_of_request, validates_as_usual
from sandbox.environment.call_errors import check_call, check_cancel, raise_if_closed
from sandbox.environment.generated.coroutines import AsyncRunOptions, GeneratedCoroutines
from sandbox.environment.generated.methods import LogsOptions
from sandbox.environment.methods import OperationMethods, prepare_run, raise_if_failed
from sandbox.environment.sandboxed import SandboxedEnvironment
from sandbox.network.ceiling import Ceiling
from sandbox.network.connections import Connection
from sandbox.network.forward import Forward
from sandbox.network.policy import Network
from sandbox.network.ports import check_port
from sandbox.pipe.following import PAUSED_SECONDS, WAIT_SECONDS, OutputChunk, Tail, is_paused
from sandbox.pipe.stdin import is_source
from sandbox.pipe.watching import CancelToken, OnOutput, StreamName, Watch, onlooker

from . import operations as op
from .envelope import Envelope, Failure
from .errors import ErrorCode, SandboxError
from .limits import Limits
from .operations import OPERATIONS, Request

P = ParamSpec("P")
T = TypeVar("T")
# Pieces of output that may wait for the caller of ``stream`` before the command has to.
PIECES_AHEAD = 16
_LOOK_AGAIN_SECONDS = 0.1
# Calls that only wait have threads of their own, so that they hold up no operation; each is made when it is needed.
MOST_WAITING = 512


class AsyncEnvironment(GeneratedCoroutines):
    """An environment for asyncio; ``async with`` starts and closes it. ``environment`` itself can be used meanwhile.

    It has the methods of ``OperationMethods`` and ``StateMethods``, with the same arguments and answers. If the task of a ``run``
    is cancelled, the command and all it started are stopped before the cancellation is raised; that of ``logs`` or ``wait_for``
    stops waiting. Other operations are carried out to their end.
    """

    # Nothing else can be assigned: what was meant for the environment would have no effect here.
    __slots__ = ("__weakref__", "_most", "_pool", "_turns", "_waiters", "environment")

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        limits = getattr(environment, "limits", None) or Limits()
        self._most = limits.concurrent_actions
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
        self._pool = ThreadPoolExecutor(limits.concurrent_actions, thread_name_prefix="gamebox-async")
        self._waiters = ThreadPoolExecutor(MOST_WAITING, thread_name_prefix="gamebox-waiting")

    def __repr__(self) -> str:
        return f"<AsyncEnvironment of {self.environment!r}>"

    async def __aenter__(self) -> Self:
        try:
            return await self.start()
        except BaseException:  # cancelled, for one: the start goes on in its thread, and nobody else would close what it makes
            await self.close()
            raise

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def start(self) -> Self:
        """Start the environment. Raises SandboxError."""
        await self._call(self.environment.start)
        return self

    async def close(self, *, wait: bool = False) -> None:
        """Close the environment, see ``SandboxedEnvironment.close``; may be called more than once.

        If the task is cancelled meanwhile, it is closed all the same.
        """
        await self._end(partial(self.environment.close, wait=True) if wait else self.environment.close)

    async def remove(self) -> None:
        """See ``SandboxedEnvironment.remove``; may be called more than once."""
        await self._end(self.environment.remove)

    async def _end(self, end: Callable[[], None]) -> None:
        try:
            await asyncio.shield(asyncio.to_thread(end))  # a call that no thread has begun yet could be cancelled
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
    def ceiling(self) -> Ceiling | None:
        """See ``SandboxedEnvironment.ceiling``."""
        return self._networked.ceiling

    @ceiling.setter
    def ceiling(self, ceiling: Ceiling | None) -> None:
        self._networked.ceiling = ceiling

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
        """The environment, which has the methods of ``SandboxedEnvironment`` on the network; a remote one has them, too."""
        if not hasattr(type(self.environment), "network"):
            raise SandboxError(
                ErrorCode.operation_not_supported,
                f"{type(self.environment).__name__} has no network of its own.",
                "Use DockerEnvironment(network=...).",
            )
        return cast("SandboxedEnvironment", self.environment)

    async def describe(self) -> dict[str, str]:
        """See ``Environment.describe``."""
        return await asyncio.to_thread(self.environment.describe)

    async def _call(self, method: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, partial(method, *args, **options))

    def _call_operation(
        self, operation: str, args: Mapping[str, Any], cancel: CancelToken | None = None
    ) -> Awaitable[Envelope[Any]]:
        kind = OPERATIONS[operation]
        if self._has_method(operation) and (sandbox := self._awaited(kind)) is not None:
            check_cancel(operation, cancel)
            return self._call_awaited(sandbox, operation, args, None if cancel is None else Watch(cancel=cancel))
        method = partial(getattr(self.environment, operation), **args)
        return self._stoppable(method, cancel, self._waiters) if kind.waits else self._call(method)

    def _run_command(self, args: dict[str, Any], cancel: CancelToken | None) -> Awaitable[Envelope[op.RunResult]]:
        """Run a command; its ``on_output`` is called in a thread of the pool, so coroutines had better use ``stream``."""
        if isinstance(args["stdin"], AsyncIterable):
            args["stdin"] = _from_loop(args["stdin"], asyncio.get_running_loop())
        streams = args["on_output"] is not None or is_source(args["stdin"])
        if not streams and self._has_method("run") and (sandbox := self._awaited(op.Run)) is not None:
            del args["on_output"]
            return self._call_awaited(sandbox, "run", args, prepare_run(args, None, cancel))
        return self._stoppable(partial(self.environment.run, **args), cancel, self._pool)

    # Requests that are awaited without a thread

    def _has_method(self, operation: str) -> bool:
        """Return whether the environment carries out the operation as all do."""
        return getattr(type(self.environment), operation, None) is getattr(OperationMethods, operation)

    def _awaited(self, kind: type[Request] | None, watch: object = None) -> SandboxedEnvironment | None:
        """Return the environment if it sends one request for the operation, and the loop can take what that streams; else None."""
        env = self.environment
        if not isinstance(env, SandboxedEnvironment) or kind is None or kind.carry_out is not Request.carry_out:
            return None
        if isinstance(watch, Watch) and (watch.stdin is not None or (watch.listens and watch.room is None)):
            return None
        own = type(env)
        return env if own.perform is SandboxedEnvironment.perform and own.execute is Environment.execute else None

    async def _call_awaited(
        self, env: SandboxedEnvironment, operation: str, args: Mapping[str, Any], watch: Watch | None
    ) -> Envelope[Any]:
        given, request = check_call(OPERATIONS[operation], args)
        checked = request if request is not None and validates_as_usual(env) else env.validated(operation, given)
        answer = await self._answer_awaited(env, checked, watch)
        raise_if_closed(answer)
        return answer

    async def _answer_awaited(
        self, env: SandboxedEnvironment, request: Request | Failure[Any], watch: Watch | None
    ) -> Envelope[Any]:
        started = time.monotonic()
        answer: Envelope[Any]
        if isinstance(request, Failure):
            answer = request
        else:
            try:
                answer = await self._perform_awaited(env, request, watch)
            except SandboxError as error:
                answer = failure_of_request(request, error, started)
        return env.hidden.envelope(answer)

    async def _perform_awaited(self, env: SandboxedEnvironment, request: Request, watch: Watch | None) -> Envelope[Any]:
        with onlooker(None):  # it would be called in the loop
            call = env.prepared(request, watch)
        if call.prepared.source is not None:  # more input than a request holds: a thread streams it
            return await self._watched(partial(env.perform, request), type(request), watch)
        async with nullcontext() if request.waits else self._turn():
            return await env.carry_out_awaited(call)

    def _turn(self) -> asyncio.Semaphore:
        """Return what bounds the operations that are under way in this loop."""
        return self._turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._most))

    async def sh(
        self, command: str | Sequence[str], *, check: bool = False, **options: Unpack[AsyncRunOptions]
    ) -> op.RunResult:
        """See ``OperationMethods.sh``."""
        result = (await self.run(command, **options)).unwrap()
        return raise_if_failed(command, result) if check else result

    async def service_logs(self, name: str, **options: Unpack[LogsOptions]) -> Envelope[op.LogsResult]:
        """See ``Environment.service_logs``."""
        return await asyncio.get_running_loop().run_in_executor(
            self._waiters, partial(self.environment.service_logs, name, **options)
        )

    async def wait_for_port(
        self,
        port: int,
        *,
        timeout_seconds: float = 30.0,
        id: str | None = None,  # noqa: A002
        host: str | None = None,
        cancel: CancelToken | None = None,
    ) -> Envelope[op.WaitForResult]:
        """See ``OperationMethods.wait_for_port``."""
        try:
            check_port("wait_for_port", "port", port)
        except SandboxError as error:
            return Failure.of(error)
        return await self.wait_for(port=port, timeout_seconds=timeout_seconds, id=id, host=host, cancel=cancel)

    async def follow(
        self,
        id: str,  # noqa: A002
        *,
        offset: int = 0,
        cancel: CancelToken | None = None,
    ) -> AsyncGenerator[OutputChunk, None]:
        """Yield the output of a command as it comes: ``async for chunk in env.follow(id)``; see ``OperationMethods.follow``.

        Leaving the loop leaves the command alone.
        """
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
        """Call it in a thread of the pool; if this task is cancelled, so is what it waits for."""
        token = cancel or CancelToken()
        under_way = asyncio.get_running_loop().run_in_executor(pool, partial(call, cancel=token))
        try:
            return await asyncio.shield(under_way)
        except asyncio.CancelledError:
            token.cancel()
            await settled(under_way)
            raise

    def stream(self, command: str | Sequence[str] | None = None, **options: Unpack[AsyncRunOptions]) -> OutputOfCommand:
        """Run a command and iterate over its output as it comes: ``async for chunk in env.stream("make"):``.

        The options are those of ``run``. The answer is in ``envelope`` afterwards.
        """
        return OutputOfCommand(self, command, dict(options))

    async def execute_action(self, action: ActionLike, args: Any) -> dict[str, Any]:
        """See ``Environment.execute_action``."""
        return await self._call(self.environment.execute_action, action, args)

    async def execute(self, operation: str, args: Mapping[str, Any], *, watch: Watch | None = None) -> Envelope[Any]:
        """See ``Environment.execute``."""
        named: object = operation  # by callers whose types nobody has checked
        request = OPERATIONS.get(named) if isinstance(named, str) else None
        if (sandbox := self._awaited(request, watch)) is not None:
            return await self._answer_awaited(sandbox, sandbox.validated(operation, args), watch)
        return await self._watched(partial(self.environment.execute, operation, args), request, watch)

    async def perform(self, request: Request, watch: Watch | None = None) -> Envelope[Any]:
        """See ``Environment.perform``."""
        given: object = request
        kind = type(given) if isinstance(given, Request) else None
        if (sandbox := self._awaited(kind, watch)) is not None:
            return await self._perform_awaited(sandbox, request, watch)
        return await self._watched(partial(self.environment.perform, request), kind, watch)

    async def _watched(
        self, method: Callable[..., Envelope[T]], request: type[Request] | None, watch: Watch | None
    ) -> Envelope[T]:
        """Carry out an operation; if this task is cancelled, so is what can be."""
        if request is None or not (request.starts_process or request.waits):
            return await self._call(method if watch is None else partial(method, watch=watch))
        watched = watch or Watch()

        def call(cancel: CancelToken) -> Envelope[T]:
            return method(watch=replace(watched, cancel=cancel))

        return await self._stoppable(call, watched.cancel, self._waiters if request.waits else self._pool)

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

    def session(self, name: str, *, user: str | int | None = None) -> AsyncSession:
        """See ``OperationMethods.session``: ``async with env.session("build") as session:``."""
        return AsyncSession(self, name, user)

    if not TYPE_CHECKING:  # a type checker is to find unknown names itself

        def __getattr__(self, name: str) -> NoReturn:
            """Raise AttributeError."""
            raise AttributeError(f"AsyncEnvironment has no {name!r}")


class OutputOfCommand:
    """The output of one command as it comes, to iterate over once; ``envelope`` is the answer when the iteration has ended.

    If the loop is left early, ``aclose`` (or the end of ``async with``) stops the command.
    """

    def __init__(
        self, environment: AsyncEnvironment, command: str | Sequence[str] | None, options: Mapping[str, Any]
    ) -> None:
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
        """Stop the command if it still runs, and wait until none of its processes is left."""
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
            await settled(command)

    def _on_output(self, loop: asyncio.AbstractEventLoop) -> OnOutput:
        def take(stream: StreamName, text: str) -> None:
            while not (self._given_up or self._token.cancelled):
                if self._room.acquire(timeout=_LOOK_AGAIN_SECONDS):
                    loop.call_soon_threadsafe(self._chunks.put_nowait, OutputChunk(stream, text))
                    return

        return take


def _from_loop(source: AsyncIterable[bytes], loop: asyncio.AbstractEventLoop) -> Iterator[bytes]:
    """Yield the pieces of ``source``, which lives in ``loop``, in another thread."""
    iterator = aiter(source)

    async def step() -> bytes | None:
        return await anext(iterator, None)

    while (piece := asyncio.run_coroutine_threadsafe(step(), loop).result()) is not None:
        yield piece


async def settled(future: asyncio.Future[Any]) -> None:
    """Wait until ``future`` is done, whatever comes of it, also if this task is cancelled again."""
    while not future.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([future])
    if not future.cancelled():
        future.exception()
