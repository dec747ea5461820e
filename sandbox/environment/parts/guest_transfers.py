"""Files and folders that a host copies into a sandbox and out of it, whole or piece by piece."""

from __future__ import annotations

import contextlib
import os
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeVar

from sandbox import operations as op
from sandbox.argument_types import HOST_PATH, check_types
from sandbox.envelope import Envelope, Success
from sandbox.errors import SandboxError
from sandbox.limits import SILENCE_SECONDS

from .guest_operations import GuestOperations

if TYPE_CHECKING:
    from sandbox.state.file_state import FileState
    from sandbox.state.initial_workspace import InitialWorkspace

T = TypeVar("T")


class GuestTransfers(GuestOperations):
    """Uploads and downloads over the pipe of a sandbox, for threads and, without one, in an asyncio loop."""

    track_changes: bool

    @property
    @abstractmethod
    def state(self) -> FileState:
        """The state of the sandbox's files."""

    def upload(
        self, data_or_path: bytes | str | os.PathLike[str], path: str, *, mode: int | None = None
    ) -> Envelope[op.UploadResult]:
        """See ``OperationMethods.upload``; ``mode`` is the file's, where it should not be the host file's own."""
        data = (data_or_path, bytes | bytearray | memoryview | HOST_PATH)
        check_types("upload", data_or_path=data, path=(path, str), mode=(mode, int | None))
        return self._upload(data_or_path, path, mode)

    def _upload(
        self,
        data_or_path: bytes | str | os.PathLike[str],
        path: str,
        mode: int | None = None,
        passing: Callable[[Iterable[bytes]], Iterable[bytes]] | None = None,
    ) -> Envelope[op.UploadResult]:
        def work(started: float) -> Envelope[op.UploadResult]:
            from sandbox.transfers.copying import outgoing

            kind, own_mode, pieces = outgoing(data_or_path, self.limits.transfer_bytes)
            body = pieces if passing is None else passing(pieces)
            return self._sent(kind, body, path, own_mode if mode is None else mode, started)

        return self.hidden.envelope(self._answered(op.Upload, work))

    def upload_pieces(
        self,
        kind: Literal["file", "tree"],
        pieces: Iterable[bytes],
        path: str,
        *,
        mode: int | None = None,
        initial: bool = False,
    ) -> Envelope[op.UploadResult]:
        """Do what ``upload`` does with bytes as they come: a file's, or the tar of a folder (``kind`` "tree").

        ``initial`` says that they are the files that the sandbox starts with, which later changes are compared with. What
        ``pieces`` raises is raised.
        """

        def work(started: float) -> Envelope[op.UploadResult]:
            from sandbox.transfers.copying import bounded

            body = bounded(pieces, self.limits.transfer_bytes)
            if not initial:
                return self._sent(kind, body, path, mode, started)
            base = self._begin_base()
            try:
                envelope = self._sent(kind, base.copy_passing(body), path, mode, started)
            except BaseException:
                self._drop_base(base)
                raise
            self._finish_base(base, envelope.ok)
            return envelope

        return self.hidden.envelope(self._answered(op.Upload, work))

    def _begin_base(self) -> InitialWorkspace:
        """Return what keeps the files that the sandbox starts with, for patches."""
        return self.state.history.begin_base(self.limits.checkpoint_bytes if self.track_changes else 0)

    def _drop_base(self, base: InitialWorkspace) -> None:
        with self.state.history.lock:
            if not base.lost:
                base.give_up("the upload failed")

    def _finish_base(self, base: InitialWorkspace, arrived: bool) -> None:
        with self.state.history.lock:
            if not arrived:
                self._drop_base(base)
            if self.track_changes:
                self.state.begin(empty=False)

    def _sent(
        self, kind: Literal["file", "tree"], body: Iterable[bytes], path: str, mode: int | None, started: float
    ) -> Envelope[op.UploadResult]:
        request = op.Upload(path=path, kind=kind, mode=mode)
        reply = self._live().request("upload", request.model_dump(), timeout_seconds=SILENCE_SECONDS, body=body)
        return self._envelope(request, request.read_reply(reply, self._host), started)

    def download_pieces(
        self, path: str, sink: Callable[[bytes | memoryview], None], *, without: Sequence[str] = ()
    ) -> Envelope[op.DownloadResult]:
        """Pass a file, or the tar of a folder, to ``sink`` as it comes, in this thread; what it raises is raised.

        The result says which of both it was. After a failure ``sink`` may have got a part.
        """

        def work(started: float) -> Envelope[op.DownloadResult]:
            request = op.Download(path=path, without=tuple(without))
            reply = self._live().request("download", request.model_dump(), timeout_seconds=SILENCE_SECONDS, sink=sink)
            return self._envelope(request, request.read_reply(reply, self._host), started)

        return self.hidden.envelope(self._answered(op.Download, work))

    async def upload_awaited(
        self,
        kind: Literal["file", "tree"],
        pieces: AsyncIterable[bytes],
        path: str,
        *,
        mode: int | None = None,
        initial: bool = False,
        attributes: Mapping[str, str] | None = None,
    ) -> Envelope[op.UploadResult]:
        """Do what ``upload_pieces`` does, in an asyncio loop: a thread works only where the pipe has no room for a piece.

        ``attributes`` are extended attributes of a file; their names begin with ``user.``.
        """
        import asyncio

        from sandbox.pipe.awaiting import request as ask
        from sandbox.transfers.copying import too_large

        base: InitialWorkspace | None = None

        async def passing() -> AsyncGenerator[bytes, None]:
            sent = 0
            async for piece in pieces:
                sent += len(piece)
                if sent > self.limits.transfer_bytes:
                    raise too_large(self.limits.transfer_bytes)
                if base is not None:
                    base.keep(piece)
                yield piece

        async def work(started: float) -> Envelope[op.UploadResult]:
            nonlocal base
            request = op.Upload(path=path, kind=kind, mode=mode, attributes=None if attributes is None else dict(attributes))
            base = await asyncio.to_thread(self._begin_base) if initial else None
            transport, args = self._live(), request.model_dump()
            try:
                async with contextlib.aclosing(passing()) as body:
                    reply = await ask(transport, "upload", args, timeout_seconds=SILENCE_SECONDS, stoppable=False, body=body)
            except BaseException:
                if base is not None:
                    await asyncio.to_thread(self._drop_base, base)
                raise
            envelope: Envelope[op.UploadResult] = self._envelope(request, request.read_reply(reply, self._host), started)
            if base is not None:
                await asyncio.to_thread(self._finish_base, base, envelope.ok)
            return envelope

        return self.hidden.envelope(await self._awaited(op.Upload, work))

    async def download_awaited(
        self, path: str, sink: Callable[[bytes | memoryview], Awaitable[None]], *, without: Sequence[str] = ()
    ) -> Envelope[op.DownloadResult]:
        """Do what ``download_pieces`` does, in an asyncio loop and without a thread."""
        from sandbox.pipe.awaiting import request as ask

        async def work(started: float) -> Envelope[op.DownloadResult]:
            request = op.Download(path=path, without=tuple(without))
            transport, args = self._live(), request.model_dump()
            reply = await ask(
                transport, "download", args, timeout_seconds=SILENCE_SECONDS, stoppable=False, sink=sink
            )
            return self._envelope(request, request.read_reply(reply, self._host), started)

        return self.hidden.envelope(await self._awaited(op.Download, work))

    async def _awaited(
        self, kind: type[op.Request], work: Callable[[float], Awaitable[Envelope[T]]]
    ) -> Envelope[T]:
        """Do what ``_answered`` does with a coroutine."""
        from pydantic import ValidationError

        started = time.monotonic()
        try:
            return await work(started)
        except (ValidationError, SandboxError, OSError) as error:
            return self._failed(kind, error, started)

    def download(
        self,
        path: str,
        to: str | os.PathLike[str] | None = None,
        *,
        without: Sequence[str] = (),
        overwrite: bool = False,
    ) -> Envelope[op.DownloadResult]:
        """See ``OperationMethods.download``."""
        check_types("download", path=(path, str), to=(to, HOST_PATH | None), without=(without, Sequence))

        def work(started: float) -> Envelope[op.DownloadResult]:
            from sandbox.transfers.copying import Incoming

            request = op.Download(path=path, without=tuple(without))
            with Incoming(to, self.limits.transfer_bytes, overwrite=overwrite) as incoming:
                reply = self._live().request(
                    "download", request.model_dump(), timeout_seconds=SILENCE_SECONDS, sink=incoming.take
                )
                answer = request.read_reply(reply, self._host)
                envelope: Envelope[op.DownloadResult] = self._envelope(request, answer, started)
                if envelope.ok:
                    return Success(
                        incoming.finish(envelope.result), duration_ms=envelope.duration_ms, notices=envelope.notices
                    )
                return envelope

        return self.hidden.envelope(self._answered(op.Download, work))
