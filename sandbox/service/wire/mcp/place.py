"""The sandbox of a session: one that exists, or one that the first call creates and that ends with the session."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from sandbox.envelope import Envelope, Failure, Success
from sandbox.environment.sandboxed import SandboxedEnvironment
from sandbox.errors import ErrorCode, SandboxError, SandboxUnavailableError
from sandbox.frozen import dataclass
from sandbox.mcp.place import Bounded, within
from sandbox.mcp.tools import ForwardResult
from sandbox.operations.state import PatchResult
from sandbox.pipe.watching import CancelToken
from sandbox.service.clock import iso, now
from sandbox.service.fleet.live_sandbox import LiveSandbox
from sandbox.service.house import House
from sandbox.service.http.bodies import checked_arguments
from sandbox.service.http.hosts import parse_host
from sandbox.service.http.problems import Problem
from sandbox.service.keys import Caller, Scope, check_scope
from sandbox.service.ports.headers import TOKEN_PARAMETER
from sandbox.service.requests.output import OutputGoneError
from sandbox.service.requests.under_way import RequestUnderWay
from sandbox.service.routes.ports import TOKEN_SECONDS

from .options import Options

_ANEW = "Its files are lost. The next call creates a new sandbox."
LOOK_SECONDS = 15.0


class ServiceSandbox:
    """A ``Place`` in the sandboxes of a tenant. ``address`` is the scheme and Host by which the client reaches the service."""

    def __init__(self, house: House, caller: Caller, options: Options, address: tuple[str, str]) -> None:
        self._house, self._caller, self._options, self._address = house, caller, options, address
        self._creating: asyncio.Task[str] | None = None

    @property
    def ident(self) -> str:
        """The id of the sandbox, "" if there is none yet."""
        made = self._creating
        if made is not None and made.done() and not made.cancelled() and made.exception() is None:
            return made.result()
        return self._options.sandbox or ""

    async def execute(
        self,
        operation: str,
        args: Mapping[str, Any],
        cancel: CancelToken,
        listen: Callable[[bytes], None] | None = None,
    ) -> Envelope[Any]:
        """See ``Place``."""
        refused = checked_arguments(operation, args)
        if refused is not None:
            return Failure(ErrorCode.invalid_arguments, f"{operation} has no argument {refused!r}.", f"Leave out {refused}.")
        try:
            live = await self._live()
            sent = await live.send(
                self._house.database, operation, dict(args), f"mcp-{secrets.token_hex(12)}", streams=listen is not None
            )
        except (Problem, SandboxError) as error:
            return _failure(error)
        with cancel.calling(sent.cancel.cancel):
            return self._worded(await _answer(sent, listen))

    async def fetch(self, path: str, most: int) -> bytes:
        """See ``Place``."""
        try:
            environment = await (await self._live()).ready()
        except Problem as problem:
            raise _error(problem) from problem
        inner, found = environment.environment, Bounded(path, most)
        assert isinstance(inner, SandboxedEnvironment)  # noqa: S101  # the fleet makes no other
        async with self._house.fleet.workers.moving.turn(self._caller.tenant):
            (await inner.download_awaited(path, found.take_awaited)).unwrap()
        return bytes(found.data)

    async def forward(self, port: int) -> Envelope[Any]:
        """Return the address of a port, with a token for an hour."""
        if not 0 < port < 65536:
            return Failure(ErrorCode.invalid_arguments, f"{port} is not a port.", "Give a number from 1 to 65535.")
        try:
            live = await self._live()
        except (Problem, SandboxError) as error:
            return _failure(error)
        scheme, given = self._address
        host = parse_host(given)
        own = "" if host is None or host.port is None else f":{host.port}"
        until = now() + TOKEN_SECONDS
        token = self._house.tokens.make(live.record.id, port, self._caller.key, until)
        url = f"{scheme}://{port}-{live.record.id}.{self._house.settings.domain}{own}/?{TOKEN_PARAMETER}={token}"
        return Success(_Forwarded(ForwardResult(url=url, sandbox_port=port, expires_at=iso(until))))

    async def describe(self) -> Mapping[str, str]:
        """See ``Place``."""
        try:
            live = await self._live()
            async with self._house.fleet.workers.asking.turn(self._caller.tenant):
                return {"id": live.record.id, **await live.describe()}
        except Problem as problem:
            raise _error(problem) from problem

    async def patch(self) -> Envelope[PatchResult]:
        """See ``Place``."""
        return await self.execute("export_patch", {}, CancelToken())

    async def close(self) -> None:
        """End the sandbox if this session has created it."""
        creating, self._creating = self._creating, None
        if creating is None:
            return
        with contextlib.suppress(Problem, SandboxError, asyncio.CancelledError):
            live = self._house.fleet.known(await creating)
            if live is not None:
                await self._house.fleet.delete(live)

    async def _live(self) -> LiveSandbox:
        """Return the sandbox; it is created if there is none. Raises Problem, SandboxError."""
        fleet, tenant = self._house.fleet, self._caller.tenant
        if self._options.sandbox is not None:
            return fleet.find(tenant, self._options.sandbox)
        if self._creating is None or (self._creating.done() and (self._creating.cancelled() or self._creating.exception())):
            check_scope(self._caller, Scope.manage)
            self._creating = asyncio.create_task(self._create())
        ident = await within(self._creating)
        live = fleet.known(ident)
        if live is None:  # somebody else has deleted it
            self._creating = None
            raise SandboxUnavailableError("closed", f"The sandbox {ident} was deleted.", _ANEW)
        return live

    async def _create(self) -> str:
        body = self._options.body
        digest = hashlib.sha256(body.model_dump_json().encode()).digest()
        return str((await self._house.fleet.create(self._caller.tenant, body, None, digest))["id"])

    def _worded(self, answer: Envelope[Any]) -> Envelope[Any]:
        """Let go of a sandbox of this session's own that has ended, and say so."""
        ident = self.ident
        live = self._house.fleet.known(ident)
        gone = live is None or live.is_over
        if not (isinstance(answer, Failure) and self._creating is not None and gone and answer.code == "sandbox_unavailable"):
            return answer
        self._creating = None
        return replace(answer, hint=_ANEW, next_tool=None)


@dataclass(frozen=True)
class _Forwarded:
    """Where a port is, as the result of an envelope."""

    found: ForwardResult

    def model_dump(self) -> dict[str, Any]:
        return self.found.model_dump()

    def to_text(self) -> str:
        return f"Port {self.found.sandbox_port} of the sandbox is at {self.found.url} until {self.found.expires_at}."


async def _answer(sent: RequestUnderWay, listen: Callable[[bytes], None] | None) -> Envelope[Any]:
    """Return the answer to a request; its output goes to ``listen`` meanwhile, as fast as it comes."""
    output = sent.output
    if output is not None and listen is not None:
        with contextlib.suppress(OutputGoneError), output.reading(0) as note:
            offset = 0
            while True:
                pieces = output.after(offset)
                for piece in pieces:
                    listen(piece.data)
                    offset = piece.end
                    note(offset)
                if not pieces and output.ended:
                    break
                if not pieces:
                    await output.wait(offset, LOOK_SECONDS)
    return await sent.envelope(PatchResult if sent.operation == "export_patch" else None)


def _failure(error: Problem | SandboxError) -> Failure[Any]:
    return Failure.of(error if isinstance(error, SandboxError) else _error(error))


def _error(problem: Problem) -> SandboxError:
    """Return what the service refuses as what a call answers."""
    code: Any = problem.code
    return SandboxError(code, problem.detail, problem.hint, retryable=problem.retryable)
