"""Who may reach a sandbox over envd: one with the token that a key of its tenant was given for it, or a URL signed with that."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request

from sandbox.docker.container.profiles import E2B
from sandbox.service.clock import now
from sandbox.service.fleet.live_sandbox import LiveSandbox
from sandbox.service.fleet.waking import wake
from sandbox.service.house import House, house_of
from sandbox.service.http.problems import Problem
from sandbox.service.keys import Caller, Keys
from sandbox.service.operators.facts import note
from sandbox.service.store.sandboxes import SandboxRecord
from sandbox.service.tenants.metering import visit_of

from .errors import SandboxGoneError, WireError

ENVD_PORT = 49983
USER, HOME = E2B.user, E2B.home
OPTIONS = "e2b"
# Which token signed a URL is found by trying: those of one tenant's keys for one sandbox are few, those of all may be many.
MOST_TRIED = 20_000
_TOKEN = re.compile(r"gbe_([a-z][a-z0-9]{0,40})_([0-9a-z]{1,40})_[A-Za-z0-9_-]{43}")
_UNAUTHORIZED = (
    "unauthorized access, please provide a valid access token or method signing if supported"
)


@dataclass(frozen=True, slots=True)
class Session:
    """A request to a sandbox that was let in. ``user`` is None for the sandbox's own user."""

    house: House
    caller: Caller
    live: LiveSandbox
    user: str | None = None

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
    return f"gbe_{sandbox}_{key}_{house.tokens.sign(f'gamebox envd token 1|{sandbox}|{key}')}"


async def envd(request: Request) -> Session:
    """Return the sandbox that a request is for, awake. Raises WireError and Problem."""
    return await _session(request, _by_token(request))


async def envd_files(request: Request) -> Session:
    """Return what ``envd`` does; a signature in the query will do as well."""
    if request.headers.get("x-access-token") is None and (signature := request.query_params.get("signature")) is not None:
        return await _session(request, _by_signature(request, signature))
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
    return Session(house, caller, live, _user(request))


def _by_token(request: Request) -> tuple[Caller, LiveSandbox | None, str]:
    house = house_of(request)
    token = request.headers.get("x-access-token", "")
    found = _TOKEN.fullmatch(token)
    if found is None or not hmac.compare_digest(token, token_of(house, found[1], found[2])):
        raise _unauthorized(request)
    sandbox, key = found[1], found[2]
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


def _by_signature(request: Request, signature: str) -> tuple[Caller, LiveSandbox | None, str]:
    """Find the sandbox whose token signed the request: its id need not be anywhere in the URL."""
    house, query = house_of(request), request.query_params
    expiration = query.get("signature_expiration")
    operation = "read" if request.method == "GET" else "write"
    text = f"{query.get('path', '')}:{operation}:{query.get('username', '')}:"
    for live, key in _candidates(house, named_sandbox(request)):
        signed = f"{text}{token_of(house, live.record.id, key)}" + ("" if expiration is None else f":{expiration}")
        right = "v1_" + base64.b64encode(hashlib.sha256(signed.encode("utf-8", "surrogatepass")).digest()).decode().rstrip("=")
        if not hmac.compare_digest(right.encode(), signature.encode("utf-8", "surrogatepass")):
            continue
        caller = house.keys.caller_by_id(key)
        if caller is None:
            break
        if expiration is not None and not (expiration.isdecimal() and len(expiration) < 13 and now() < int(expiration)):
            raise WireError("unauthenticated", "signature is already expired")
        return caller, live, live.record.id
    raise _unauthorized(request)


def _candidates(house: House, named: str | None) -> Iterator[tuple[LiveSandbox, str]]:
    lives = (house.fleet.known(named),) if named is not None else house.fleet.all()
    tried = 0
    for live in lives:
        if live is None or live.is_over or options_of(live.record) is None:
            continue
        for record in house.keys.of(live.record.tenant):
            tried += 1
            if tried > MOST_TRIED:
                return
            yield live, record.id


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
    """Return the user that a request names, None for the sandbox's own. Raises WireError."""
    name = request.query_params.get("username", "")
    scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        try:
            name = base64.b64decode(credentials, validate=True).decode().partition(":")[0]
        except ValueError:
            raise WireError("unauthenticated", "The header Authorization is not that of a user.") from None
    if len(name) > 64 or not name.isprintable():
        raise WireError("unauthenticated", f"invalid username: {name[:64]!r}")
    return None if name in ("", USER) else name
