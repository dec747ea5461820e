"""One sandbox of the service: what the store says of it, its environment once it is attached, and its requests."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sandbox.aio import AsyncEnvironment
from sandbox.docker.spec import SandboxSpec
from sandbox.envelope import Envelope, Failure
from sandbox.errors import ErrorCode, SandboxError, SandboxUnavailableError
from sandbox.operations import OPERATIONS, Change, HostArguments
from sandbox.pipe.watching import Watch

from .clock import iso, now
from .output import OutputLog
from .requests_under_way import Requests, RequestUnderWay, digest_of, reused
from .store import requests as rows
from .store.database import Database
from .store.requests import KnownRequest
from .store.sandboxes import OVER, SandboxRecord


@dataclass(eq=False)
class LiveSandbox:
    """One sandbox. ``attach`` reaches one that runs already; ``changing`` is held while its state changes."""

    record: SandboxRecord
    attach: Callable[[], asyncio.Task[AsyncEnvironment]]
    environment: AsyncEnvironment | None = None
    requests: Requests = field(default_factory=Requests)
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    deadline: float = 0.0
    # Ends our ownership of a paused sandbox that was not attached yet.
    release: Callable[[], None] | None = None
    attaching: asyncio.Task[AsyncEnvironment] | None = None

    def __post_init__(self) -> None:
        self.set_deadline()

    def set_deadline(self) -> None:
        """Have ``deadline``, on the monotonic clock, follow the record's."""
        self.deadline = time.monotonic() + self.record.ends_at - now()

    @property
    def spec(self) -> SandboxSpec:
        """What the sandbox was made from."""
        return SandboxSpec.from_data(self.record.spec)

    @property
    def is_over(self) -> bool:
        """Whether nothing runs in it any more."""
        return self.record.state in OVER

    async def ready(self) -> AsyncEnvironment:
        """Return the environment, attached if it was not yet. Raises SandboxError if there is none."""
        if self.record.state == "paused":
            raise SandboxError(
                ErrorCode.sandbox_paused,
                "The sandbox is paused: nothing in it runs.",
                f"Resume it: POST /v1/sandboxes/{self.record.id}/resume.",
            )
        if self.is_over or self.record.state == "deleting":
            raise self.loss()
        if self.environment is not None:
            return self.environment
        if self.attaching is None or self.attaching.done():
            self.attaching = self.attach()
        return await asyncio.shield(self.attaching)

    def loss(self) -> SandboxUnavailableError:
        """Return why the sandbox cannot be used any more."""
        record = self.record
        when = iso(record.ended_at)
        why = record.post_mortem or "It was deleted."
        return SandboxUnavailableError(
            record.reason or "closed",
            f"The sandbox {record.id} {'is gone' if when is None else f'ended at {when}'}. {why}",
            "Create another one: POST /v1/sandboxes.",
        )

    async def send(
        self, database: Database, operation: str, args: Mapping[str, Any], ident: str, *, streams: bool
    ) -> RequestUnderWay:
        """Send a request, or find the one that was sent with the same id. Raises Problem.

        It is written down before it is sent; one that a service before this one sent is sent again with its id, and the guest
        answers with what became of the first.
        """
        digest = digest_of(operation, args)
        if (found := self.requests.same(ident, digest)) is not None:
            return found
        kind, known = OPERATIONS[operation], None
        if not kind.repeatable:
            begun, sandbox = now(), self.record.id
            known = await database.call(lambda c: rows.begin(c, sandbox, ident, operation, digest, begun))
            if known is not None and known.digest != digest:
                raise reused(ident)
            if (found := self.requests.same(ident, digest)) is not None:  # it was made while we waited
                return found
        listens = streams and operation == "run" and not args.get("background")
        request = RequestUnderWay(ident, operation, digest, OutputLog() if listens else None)

        async def work(request: RequestUnderWay) -> bytes:
            envelope = await self._carry_out(request, args, known)
            if not kind.repeatable:
                done, sandbox = now(), self.record.id
                database.note(lambda c: rows.answered(c, sandbox, ident, done))
            return encode(envelope)

        return self.requests.begin(request, work)

    async def _carry_out(
        self, request: RequestUnderWay, args: Mapping[str, Any], known: KnownRequest | None
    ) -> Envelope[Any]:
        kind = OPERATIONS[request.operation]
        given = dict(args)
        if issubclass(kind, Change):
            given["request_id"] = request.id
        elif known is not None:
            return _unknown_effects()
        watch = None
        if kind.starts_process or kind.waits:
            output = request.output
            watch = Watch(on_bytes=None if output is None else output.append, cancel=request.cancel)
        try:
            environment = await self.ready()
            return await environment.execute(request.operation, HostArguments(given), watch=watch)
        except SandboxError as error:
            return Failure.of(error)


def encode(envelope: Envelope[Any]) -> bytes:
    """Return the envelope as JSON. Bytes of names that are not UTF-8 come as lone surrogates, escaped."""
    return json.dumps(envelope.to_dict()).encode()


def _unknown_effects() -> Failure[Any]:
    return Failure(
        ErrorCode.transfer_incomplete,
        "The request was sent before the service was restarted, and what became of it is not known.",
        "Look at what it should have changed before you send it again, with another request id.",
        effects="unknown",
    )
