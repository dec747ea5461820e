"""What the routes work with."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends
from starlette.requests import HTTPConnection

from .connections import OpenConnections
from .fleet.broadcast import Broadcast
from .fleet.fleet import Fleet
from .fleet.live_sandbox import LiveSandbox
from .http.hosts import Hosts
from .http.payloads.body_room import BodyRoom
from .http.problems import Problem, ProblemCode
from .keys import DEFAULT_TENANT, Caller, Keys, Scope, check_scope
from .listener import client_network
from .operators.facts import note
from .operators.observation import Observation
from .places import Places
from .ports.tokens import PortTokens
from .settings import Settings
from .store.database import Database
from .templates.templates import Templates
from .tenants.metering import visit_of
from .tenants.tenants import Tenants

# As many as there may be connections: each has one request at a time.
MOST_REQUESTS = 10_000


@dataclass(slots=True)
class House:
    """The parts of one service. ``ready`` says that it takes requests, ``draining`` that it is about to end."""

    settings: Settings
    database: Database
    keys: Keys
    broadcast: Broadcast
    fleet: Fleet
    observation: Observation
    tenants: Tenants
    templates: Templates
    bodies: BodyRoom = field(default_factory=BodyRoom)
    ready: bool = False
    draining: bool = field(default=False)
    hosts: Hosts = field(init=False)
    connections: OpenConnections = field(init=False)
    tokens: PortTokens = field(init=False)
    mcp: Any = None
    """``McpSessions``, once the service runs."""
    clients: Places = field(init=False)
    """Of requests under way, by the addresses of clients behind proxies; the listener counts the connections of others."""
    callers: Places = field(init=False)
    """Of requests under way, by keys."""

    def __post_init__(self) -> None:
        self.hosts = Hosts(self.settings)
        self.connections = OpenConnections(self.settings.sandbox_connections)
        self.tokens = PortTokens(self.settings.data)
        self.clients = Places(MOST_REQUESTS, self.settings.address_connections)
        self.callers = Places(MOST_REQUESTS, self.settings.key_connections)

    def client_place(self, address: str) -> AbstractContextManager[None]:
        """Count a request of a client during the block, if it came through a proxy. Raises Problem if it has too many."""
        if not self.settings.behind_proxy:
            return nullcontext()
        return self.clients.held(client_network(address), f"The client {address:.60}")


def house_of(request: HTTPConnection) -> House:
    """Return the parts of the service that got the request."""
    found: House = request.app.state.house
    return found


def caller_of(request: HTTPConnection) -> Caller:
    """Return who sent the request. Raises Problem."""
    header = request.headers.get("authorization", "")
    scheme, _, token = header.partition(" ")
    key = token.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key")
    address = request.client.host if request.client is not None else ""
    house = house_of(request)
    caller = house.keys.caller(key or None, address)
    note(request.scope, caller=caller)
    visit_of(request.scope).enter(house.tenants.find(caller.tenant), house.tenants.ledger, house.callers, caller.key)
    return caller


async def entered(request: HTTPConnection) -> Caller:
    """Return who sent the request, when it may go on: those of a busy tenant wait while others are there. Raises Problem."""
    caller = caller_of(request)
    await visit_of(request.scope).wait(house_of(request).tenants.pace)
    return caller


async def reader(request: HTTPConnection) -> Caller:
    """Return who sent the request, if they may look. Raises Problem."""
    return await entered(request)


async def user(request: HTTPConnection) -> Caller:
    """Return who sent the request, if they may use sandboxes. Raises Problem."""
    caller = await entered(request)
    check_scope(caller, Scope.use)
    return caller


async def manager(request: HTTPConnection) -> Caller:
    """Return who sent the request, if they may create and end sandboxes. Raises Problem."""
    caller = await entered(request)
    check_scope(caller, Scope.manage)
    return caller


async def admin(request: HTTPConnection) -> Caller:
    """Return who sent the request, if they may make keys. Raises Problem."""
    caller = await entered(request)
    check_scope(caller, Scope.admin)
    return caller


async def operator(request: HTTPConnection) -> Caller:
    """Return who sent the request, if they may administer all tenants. Raises Problem."""
    caller = await entered(request)
    check_scope(caller, Scope.admin)
    if not is_operator(caller):
        raise Problem(
            403,
            ProblemCode.forbidden,
            f"This needs an admin key of the operator, and the key of this request belongs to the tenant {caller.tenant!r}.",
            "Ask the operator. Keys of your own tenant are at /v1/keys, and its quota at /v1/quota.",
        )
    return caller


def is_operator(caller: Caller) -> bool:
    """Return whether a caller runs the service: an admin of the tenant that its first key is of."""
    return caller.scope is Scope.admin and caller.tenant == DEFAULT_TENANT


Reader = Annotated[Caller, Depends(reader)]
User = Annotated[Caller, Depends(user)]
Manager = Annotated[Caller, Depends(manager)]
Admin = Annotated[Caller, Depends(admin)]
Operator = Annotated[Caller, Depends(operator)]


def sandbox_of(request: HTTPConnection, caller: Caller, ident: str) -> LiveSandbox:
    """Return a sandbox of the caller's. Raises Problem."""
    return house_of(request).fleet.find(caller.tenant, ident)
