"""One sandbox of the service: what the store says of it, its environment once it is attached, and its requests."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sandbox.aio import AsyncEnvironment
from sandbox.docker.spec import SandboxSpec
from sandbox.envelope import Envelope, Failure
from sandbox.errors import ErrorCode, SandboxError, SandboxUnavailableError
from sandbox.operations import OPERATIONS, Change, HostArguments
from sandbox.pipe.watching import CancelToken, Watch
from sandbox.readers import Hint
from sandbox.service.clock import iso, now
from sandbox.service.http.state_arguments import STATE_ARGUMENTS, state_problem
from sandbox.service.requests.answers import Answer
from sandbox.service.requests.bridges import BodyBridge
from sandbox.service.requests.output import OutputLog
from sandbox.service.requests.refill import refill
from sandbox.service.requests.sent_again import is_safe, unknown_effects
from sandbox.service.requests.spill import Spill, SpillRoom
from sandbox.service.requests.under_way import Requests, RequestUnderWay, digest_of, reused
from sandbox.service.store.database import Database
from sandbox.service.store.tables import requests as rows
from sandbox.service.store.tables.requests import KnownRequest
from sandbox.service.store.tables.sandboxes import OVER, SandboxRecord

from .checkpoints import Checkpoints
from .watching import Ended, Watching

_RESUME = "Call resume() of a RemoteEnvironment that is attached to it."
LIFETIME_OVER = "lifetime_over"
# The methods on the state of the files that change nothing.
_LOOKS = frozenset({"changes", "checkpoints", "export_patch"})


@dataclass(eq=False)
class LiveSandbox:
    """One sandbox. ``attach`` reaches one that runs already; ``changing`` is held while its state changes."""

    record: SandboxRecord
    attach: Callable[[], asyncio.Task[AsyncEnvironment]]
    spills: SpillRoom
    checkpoints: Checkpoints
    watching: Watching = field(default_factory=Watching)
    environment: AsyncEnvironment | None = None
    requests: Requests = field(default_factory=Requests)
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    deadline: float = 0.0
    # Ends our ownership of a paused sandbox that was not attached yet.
    release: Callable[[], None] | None = None
    attaching: asyncio.Task[AsyncEnvironment] | None = None
    # When to try it again, if it failed (monotonic).
    attach_at: float = 0.0
    # Those that everybody may reach.
    public_ports: set[int] = field(default_factory=set)
    # What a dialect keeps of it, by the type of that.
    beside: dict[type, Any] = field(default_factory=dict)

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

    def may_attach_again(self) -> bool:
        """Return whether it is not attached, nothing is under way to change that, and it is time to try it."""
        idle = self.attaching is None or self.attaching.done()
        return self.environment is None and idle and time.monotonic() > self.attach_at

    async def ready(self) -> AsyncEnvironment:
        """Return the environment, attached if it was not yet. Raises SandboxError if there is none."""
        if self.record.state == "paused":
            raise SandboxError(
                ErrorCode.sandbox_paused,
                "The sandbox is paused: nothing in it runs.",
                Hint(f"Resume it: POST /v1/sandboxes/{self.record.id}/resume.", _RESUME, _RESUME),
            )
        if self.is_over or self.record.state == "deleting":
            raise self.loss()
        if self.environment is not None:
            return self.environment
        if self.attaching is None or self.attaching.done():
            self.attaching = self.attach()
        return await asyncio.shield(self.attaching)

    async def describe(self) -> dict[str, str]:
        """Return what an agent is told of the sandbox, from memory if it is not attached or does not run."""
        if self.record.state == "running" and self.environment is not None:
            return await self.environment.describe()
        return dict(self.record.description)

    def loss(self) -> SandboxUnavailableError:
        """Return why the sandbox cannot be used any more."""
        record = self.record
        when = iso(record.ended_at)
        why = record.post_mortem or "It was deleted."
        return SandboxUnavailableError(
            record.reason or "closed",
            f"The sandbox {record.id} {'is gone' if when is None else f'ended at {when}'}. {why}",
            Hint("Create another one: POST /v1/sandboxes.", "Start another one.", "Start another one."),
        )

    async def send(
        self,
        database: Database,
        operation: str,
        args: Mapping[str, Any],
        ident: str,
        *,
        streams: bool = False,
        reads: bool = False,
    ) -> RequestUnderWay:
        """Send a request, or find the one that was sent with the same id. Raises Problem.

        It is written down before it is sent; one that a service before this one sent is sent again with its id, and the guest
        answers with what became of the first. ``streams`` says that its output is wanted as it comes: of one that is sent again,
        the sandbox has it. ``reads`` says that its standard input will be streamed, which is not possible then.
        """
        digest = database.seal.digest(await digest_of(operation, args))
        if (found := self.requests.same(ident, digest)) is not None:
            return found
        self.requests.check_room()
        known = None
        if not is_repeatable(operation):
            begun, sandbox = now(), self.record.id
            known = await database.call(lambda c: rows.begin(c, sandbox, ident, operation, digest, begun))
            if known is not None and known.digest != digest:
                raise reused(ident)
            if (found := self.requests.same(ident, digest)) is not None:  # it was made while we waited
                return found
        foreground, resent = operation == "run" and not args.get("background"), known is not None
        cancel = CancelToken()
        request = RequestUnderWay(
            ident,
            operation,
            digest,
            OutputLog(lambda: cancel.cancelled, Spill(self.spills), catches_up=resent) if streams and foreground else None,
            BodyBridge() if reads and foreground and not resent else None,
            cancel,
            resent=resent,
        )

        async def work(request: RequestUnderWay) -> Answer:
            watched = Ended(self.record.id, self.record.tenant, operation, ident)
            with self.watching.around(watched):
                envelope = await self._followed(request, self._carry_out(request, args, database, known))
                watched.note(envelope)
            answer = Answer(envelope)
            if not is_repeatable(operation):
                done, sandbox = now(), self.record.id
                database.note(lambda c: rows.answered(c, sandbox, ident, done))
            return answer

        return self.requests.begin(request, work)

    async def _carry_out(
        self, request: RequestUnderWay, args: Mapping[str, Any], database: Database, known: KnownRequest | None
    ) -> Envelope[Any]:
        kind, ident = OPERATIONS.get(request.operation), self.record.id
        try:
            if known is not None and not await database.call(lambda c: is_safe(c, ident, known, args)):
                return unknown_effects()
            environment = await self.ready()
            if kind is None:
                return await _of_state(self.checkpoints, environment, request, args)
            given = HostArguments(args)
            if issubclass(kind, Change):
                given["request_id"] = request.id
            watch = _watch(request) if kind.starts_process or kind.waits else None
            return self._worded(await environment.execute(request.operation, given, watch=watch))
        except SandboxError as error:
            return Failure.of(error)

    async def _followed(self, request: RequestUnderWay, answer: Coroutine[Any, Any, Envelope[Any]]) -> Envelope[Any]:
        """Return the answer; the output of a run that was sent before comes from the sandbox meanwhile."""
        if request.output is None or not request.resent:
            return await answer
        answering = asyncio.ensure_future(answer)
        with contextlib.suppress(SandboxError):
            await refill(await self.ready(), request.id, request.output, answering.done)
        known = await answering
        total = getattr(known.result, "output_bytes", 0)
        if request.output.end < total:  # it is not to be had from the sandbox
            request.output.skip_to(total)
        return known

    def _worded(self, answer: Envelope[Any]) -> Envelope[Any]:
        """Have an answer speak of the time to live, which may not be what the sandbox was started with."""
        if isinstance(answer, Failure) and answer.reason == LIFETIME_OVER:
            return replace(answer, error=ended(self.record, over=True).message)
        return answer


def ended(record: SandboxRecord, *, over: bool = False) -> SandboxUnavailableError:
    """Return why a sandbox is gone, as far as it is known without its last words; ``over`` says that its time was over."""
    if over or now() >= record.ends_at:
        message = f"Its time to live of {record.time_to_live_seconds:g} s was over."
        return SandboxUnavailableError(LIFETIME_OVER, message)
    return SandboxUnavailableError("removed", "It ended while the service was not running, or with its engine.")


def is_repeatable(operation: str) -> bool:
    """Return whether an operation, or a method on the state of the files, changes nothing."""
    kind = OPERATIONS.get(operation)
    return operation in _LOOKS if kind is None else kind.repeatable


def _watch(request: RequestUnderWay) -> Watch:
    output = request.output
    if output is None or request.resent:  # what was sent again is refilled
        return Watch(cancel=request.cancel, stdin=request.stdin)
    if request.stdin is not None:  # a thread has both
        return Watch(on_bytes=output.append, cancel=request.cancel, stdin=request.stdin)
    return Watch(on_bytes=output.add, cancel=request.cancel, room=output.room)


async def _of_state(
    checkpoints: Checkpoints, environment: AsyncEnvironment, request: RequestUnderWay, args: Mapping[str, Any]
) -> Envelope[Any]:
    """Return what a method on the state of the files answers."""
    if (problem := state_problem(request.operation, args)) is not None:
        takes = ", ".join(STATE_ARGUMENTS[request.operation].model_fields) or "no arguments"
        return Failure(ErrorCode.invalid_arguments, problem, f"{request.operation} takes {takes}.")
    return await checkpoints.carry_out(environment, request.operation, args, request.id, resent=request.resent)
