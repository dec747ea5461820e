"""Who may reach a sandbox over envd: one with the token that a key of its tenant was given for it, or a URL signed with that."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import Depends, Request

from sandbox.docker.container.profiles import E2B
from sandbox.frozen import dataclass
from sandbox.service.clock import now
from sandbox.service.fleet.live_sandbox import LiveSandbox
from sandbox.service.fleet.waking import wake
from sandbox.service.house import House, house_of
from sandbox.service.http.problems import Problem
from sandbox.service.keys import Caller, Keys
from sandbox.service.operators.facts import note
from sandbox.service.ports.interpreter import read_sandbox_token, sandbox_token
from sandbox.service.store.tables.sandboxes import SandboxRecord
from sandbox.service.tenants.metering import visit_of
from sandbox.service.wire.e2b.errors import SandboxGoneError, WireError

from .signatures import Signed

ENVD_PORT = 49983
USER, HOME = E2B.user, E2B.home
OPTIONS = "e2b"
# That are kept of one sandbox.
MOST_TOKENS = 64
_UNAUTHORIZED = (
    "unauthorized access, please provide a valid access token or method signing if supported"
)


@dataclass(frozen=True, slots=True)
class Session:
    """A request to a sandbox that was let in. ``user`` is None for the sandbox's own user.

    ``names_user`` says that the request names one.
    """

    house: House
    caller: Caller
    live: LiveSandbox
    user: str | None = None
    names_user: bool = False

    @property
    def sandbox(self) -> str:
        """The id of the sandbox."""
        return self.live.record.id


def options_of(record: SandboxRecord) -> dict[str, Any] | None:
    """Return what this dialect has written down of a sandbox, None for one that was made in another."""
    found = record.options.get(OPTIONS)
    return dict(found) if isinstance(found, dict) else None


def token_of(house: House, sandbox: str, key: str) -> str:
    """Return the token of a sandbox for those with the key of that id. It ends with the key."""
    return sandbox_token(house.tokens, sandbox, key)


async def envd(request: Request) -> Session:
    """Return the sandbox that a request is for, awake. Raises WireError and Problem."""
    return await _session(request, _by_token(request))


async def envd_files(request: Request) -> Session:
    """Return what ``envd`` does; a signature in the query will do as well."""
    if request.headers.get("x-access-token") is None and (signature := request.query_params.get("signature")) is not None:
        return await _session(request, await _by_signature(request, signature))
    return await _session(request, _by_token(request))


EnvdUser = Annotated[Session, Depends(envd)]
EnvdFilesUser = Annotated[Session, Depends(envd_files)]


async def _session(request: Request, found: tuple[Caller, LiveSandbox | None, str]) -> Session:
    house = house_of(request)
    caller, live, sandbox = found
    note(request.scope, caller=caller, target=sandbox)
    visit = visit_of(request.scope)
    visit.enter(house.tenants.find(caller.tenant), house.tenants.ledger, house.callers, caller.key)
    await visit.wait(house.tenants.pace)
    if live is None:
        raise SandboxGoneError(sandbox)
    await wake(house.fleet.workers, house.fleet.changes, live)
    if live.record.state != "running":
        raise SandboxGoneError(sandbox)
    name = _user(request)
    return Session(house, caller, live, None if name == USER else name, name is not None)


def _by_token(request: Request) -> tuple[Caller, LiveSandbox | None, str]:
    house = house_of(request)
    token = request.headers.get("x-access-token", "")
    if (found := read_sandbox_token(house.tokens, token)) is None:
        raise _unauthorized(request)
    sandbox, key = found
    named = named_sandbox(request)
    if named is not None and named != sandbox:
        raise _unauthorized(request)
    caller = house.keys.caller_by_id(key)
    live = house.fleet.known(sandbox)
    if caller is None or (live is not None and live.record.tenant != caller.tenant):
        raise _unauthorized(request)
    return caller, live, sandbox


def named_sandbox(request: Request) -> str | None:
    """Return the sandbox that the Host or a header names, None if neither does."""
    host: str | None = request.scope["state"].get("envd_sandbox")
    return host or request.headers.get("e2b-sandbox-id")


async def _by_signature(request: Request, signature: str) -> tuple[Caller, LiveSandbox | None, str]:
    """Find the sandbox whose token signed the request: its id need not be anywhere in the URL."""
    house, query = house_of(request), request.query_params
    expiration = query.get("signature_expiration")
    operation = "read" if request.method == "GET" else "write"
    signed = Signed.read(
        f"{query.get('path', '')}:{operation}:{query.get('username', '')}:",
        "" if expiration is None else f":{expiration}",
        signature,
    )
    found = await signed.signer(_signers(house, named_sandbox(request))) if signed is not None else None
    if found is None or (caller := house.keys.caller_by_id(found[1])) is None:
        raise _unauthorized(request)
    if expiration is not None and not (expiration.isdecimal() and len(expiration) < 13 and now() < int(expiration)):
        raise WireError("unauthenticated", "signature is already expired")
    live, _ = found
    return caller, live, live.record.id


def _signers(house: House, named: str | None) -> Iterator[tuple[tuple[LiveSandbox, str], bytes]]:
    """Yield whose token may have signed a URL, with the token; the latest sandboxes first."""
    lives = (house.fleet.known(named),) if named is not None else reversed(house.fleet.all())
    keys: dict[str, list[str]] = {}
    for live in lives:
        if live is None or live.is_over or options_of(live.record) is None:
            continue
        tokens: _Tokens = live.beside.setdefault(_Tokens, _Tokens())
        tenant = live.record.tenant
        if tenant not in keys:
            keys[tenant] = [each.id for each in house.keys.of(tenant)]
        for key in keys[tenant]:
            yield (live, key), tokens.of(house, live.record.id, key)


class _Tokens:
    """The tokens of one sandbox, by the ids of keys: making one takes longer than trying it."""

    def __init__(self) -> None:
        self._by_key: dict[str, bytes] = {}

    def of(self, house: House, sandbox: str, key: str) -> bytes:
        """Return the token for those with a key."""
        found = self._by_key.get(key)
        if found is None:
            if len(self._by_key) == MOST_TOKENS:
                del self._by_key[next(iter(self._by_key))]
            found = self._by_key[key] = token_of(house, sandbox, key).encode()
        return found


def _unauthorized(request: Request) -> WireError:
    """Return the error of a request that has no valid token, and count it for its address. Raises Problem if it is locked out."""
    keys: Keys = house_of(request).keys
    address = request.client.host if request.client is not None else ""
    try:
        keys.caller(None, address)
    except Problem as problem:
        if problem.status == 429:
            raise
    return WireError("unauthenticated", _UNAUTHORIZED)


def _user(request: Request) -> str | None:
    """Return the user that a request names, None if it names none. Raises WireError."""
    name = request.query_params.get("username", "")
    scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        try:
            name = base64.b64decode(credentials, validate=True).decode().partition(":")[0]
        except ValueError:
            raise WireError("unauthenticated", "The header Authorization is not that of a user.") from None
    if len(name) > 64 or not name.isprintable():
        raise WireError("unauthenticated", f"invalid username: {name[:64]!r}")
    return name or None
