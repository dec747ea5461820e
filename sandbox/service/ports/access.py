"""Who may reach a port: everybody if it is public, else a key of the tenant, or a token that was made with one."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AbstractContextManager, nullcontext

from sandbox.environment.sandboxed import SandboxedEnvironment
from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass
from sandbox.network.dialling import UnreachableError
from sandbox.network.services.peer_port import NO_SERVER, PortStream
from sandbox.service.connections import PUBLIC
from sandbox.service.fleet.live_sandbox import LiveSandbox
from sandbox.service.fleet.waking import AGAIN_SECONDS, wake
from sandbox.service.house import House
from sandbox.service.http.hosts import Host, PortName, is_own_page
from sandbox.service.http.problems import Problem, ProblemCode
from sandbox.service.keys import Scope, check_scope
from sandbox.service.tenants.account import Account

from . import interpreter
from .headers import COOKIE, Headers, key_in, text_of, tokens_in
from .traffic import in_words_of_e2b, is_let_in

log = logging.getLogger(__name__)

# What a stream reads ahead.
READ_BYTES = 64 << 10
# A server in a sandbox that was just woken has this long to listen.
WOKEN_SECONDS, WOKEN_WAIT_SECONDS = 5.0, 0.1


@dataclass(frozen=True, slots=True)
class PortRequest:
    """The head of a request to a port. Names of headers are in small letters; ``client`` and ``scheme`` are those believed."""

    name: PortName
    host: Host
    method: str
    path: bytes
    query: bytes
    headers: Headers
    client: str
    scheme: str

    @property
    def host_text(self) -> str:
        """The host as a Host header has it."""
        return self.host.name if self.host.port is None else f"{self.host.name}:{self.host.port}"


@dataclass(frozen=True, slots=True)
class Admission:
    """``key`` is the id of the key by which it was granted, or what all that come to the public port have.

    ``token`` is one that came in the query: a browser is to keep it as a cookie.
    """

    live: LiveSandbox
    key: str
    token: str | None = None


def account_of(house: House, admission: Admission) -> Account:
    """Return the tenant whose transfers those to the port are. Raises Problem if it may have none now."""
    account = house.tenants.find(admission.live.record.tenant)
    if (over := account.transfer(0)) is not None:
        raise over
    return account


def key_place(house: House, admission: Admission) -> AbstractContextManager[None]:
    """Count a request for its key during the block; a public port has none. Raises Problem if the key has too many."""
    if admission.key.startswith(PUBLIC):
        return nullcontext()
    return house.callers.held(admission.key, "This key")


def public_key(port: int) -> str:
    """Return what connections to a public port have in the place of a key."""
    return f"{PUBLIC}{port}"


def admit(house: House, request: PortRequest) -> Admission:
    """Return the sandbox of the port, for one who may reach it. Raises Problem."""
    live, port = house.fleet.known(request.name.sandbox), request.name.port
    if not 0 < port < 65536:
        raise Problem(404, ProblemCode.invalid_query, f"{port} is not a port.", "Use 1 to 65535.")
    if live is not None and port in live.public_ports:
        return Admission(live, public_key(port))
    if live is not None and is_let_in(house.tokens, live.record, request.headers):
        if not interpreter.is_interpreter(live.record, port):
            return Admission(live, public_key(port))
        if (own := interpreter.key_of_token(house, live.record, request.headers)) is not None:
            return Admission(live, own)
        if key_in(request.headers) is None:
            interpreter.check_may_run(request.path)
            return Admission(live, public_key(port))
    if (key := key_in(request.headers)) is not None:
        caller = house.keys.caller(key, request.client)
        if live is None or live.record.tenant != caller.tenant:
            raise _unknown(request)
        check_scope(caller, Scope.use)
        return Admission(live, caller.key)
    if live is None:
        raise _unknown(request)
    return _admit_token(house, request, live)


def _admit_token(house: House, request: PortRequest, live: LiveSandbox) -> Admission:
    for place, token in tokens_in(request.headers, request.query):
        key = house.tokens.key_of(token, request.name.sandbox, request.name.port)
        if key is None or not house.keys.is_valid_key(key, live.record.tenant):
            continue
        if place == "cookie" and not _is_own_page(request):
            raise Problem(
                403,
                ProblemCode.origin_refused,
                "A page of another host sent this request with the cookie of this host.",
                f"Send a token in X-Gamebox-Token, or make the port public. The cookie {COOKIE} works only for pages of this host.",
            )
        return Admission(live, key, token if place == "query" else None)
    raise Problem(
        401,
        ProblemCode.unauthorized,
        f"Port {request.name.port} of this sandbox is private.",
        "Send 'Authorization: Bearer KEY', or ask for a token: POST /v1/sandboxes/{id}/ports/{port}/tokens.",
        headers={"WWW-Authenticate": "Bearer"},
    )


async def connect(house: House, live: LiveSandbox, port: int) -> PortStream:
    """Return a connection to the server at a port of a sandbox, which is woken if that is wanted. Raises Problem, SandboxError."""
    # A server may have been paused before it listened.
    until = time.monotonic() + (WOKEN_SECONDS if await _woken(house, live, port) else 0.0)
    begun = False
    while True:
        inner = (await live.ready()).environment
        found = inner.peer_port(port) if isinstance(inner, SandboxedEnvironment) else None
        try:
            if found is None:
                raise UnreachableError("the sandbox has ended")
            return await found.open_stream(READ_BYTES)
        except UnreachableError as error:
            if error.why == NO_SERVER and interpreter.is_interpreter(live.record, port):
                until, begun = (until, True) if begun else (time.monotonic() + interpreter.START_SECONDS, True)
                await interpreter.start(house, live)
            if error.why == NO_SERVER and time.monotonic() < until:
                await asyncio.sleep(WOKEN_WAIT_SECONDS)
                continue
            if error.why == NO_SERVER:
                problem = f"Nothing listens on port {port} of the sandbox."
                hint = "Start a server there that listens on 127.0.0.1 or on all addresses, or use the port of one that runs."
                raise Problem(502, ProblemCode.port_closed, problem, hint, retryable=True) from error
            problem = f"Port {port} of the sandbox was not reached: {error.why}."
            raise Problem(502, ProblemCode.port_failed, problem, "Try again in a moment.", retryable=True) from error


async def _woken(house: House, live: LiveSandbox, port: int) -> bool:
    """Wake a sandbox if it is paused and wants that; return whether it did. Raises Problem, SandboxError."""
    try:
        return await wake(house.fleet.workers, house.fleet.changes, live, by_port=True)
    except (Problem, SandboxError) as error:
        if live.is_over:
            raise
        log.info("%s was not woken by a request to port %s: %s", live.record.id, port, error)
        # Not the reason, such as what a tenant has in use: the caller need not have a key.
        raise Problem(
            503,
            ProblemCode.port_failed,
            "The sandbox is paused, and could not be woken.",
            f"Try again in {AGAIN_SECONDS:g} s. Its owner learns the reason from POST /v1/sandboxes/{live.record.id}/resume.",
            retryable=True,
            headers={"Retry-After": f"{AGAIN_SECONDS:g}"},
        ) from error


def worded(house: House, name: PortName, problem: Problem) -> Problem:
    """Return a refusal in the words of the dialect in which the sandbox was made."""
    live = house.fleet.known(name.sandbox)
    return problem if live is None else in_words_of_e2b(problem, live.record, name.port)


def _is_own_page(request: PortRequest) -> bool:
    site, mode = (text_of(request.headers, f"sec-fetch-{each}") or "" for each in ("site", "mode"))
    origin = text_of(request.headers, "origin")
    return is_own_page(origin, site, mode, request.method, request.host, request.scheme)


def _unknown(request: PortRequest) -> Problem:
    return Problem(
        404,
        ErrorCode.sandbox_not_found,
        f"There is no sandbox {request.name.sandbox!r:.80}.",
        "List yours with GET /v1/sandboxes; their ports are at {port}-{id}.DOMAIN.",
    )
