"""From a name to a connection: judged, resolved once, judged again, and dialled at the very address that was judged."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sandbox.pipe import descriptors

from .addresses import Address, is_own, literal, plain
from .policy import Network, RefusalKind, Verdict, judge_address, judge_host
from .rules import ascii_name
from .upstream_proxy import CompanyProxy, NoWayError, company_proxy, through

RESOLVE_SECONDS = 10.0
CONNECT_SECONDS = 10.0
# Of the addresses of a name, so many are tried.
MOST_ADDRESSES = 4

P = TypeVar("P", bound=asyncio.Protocol)


class RefusedError(Exception):
    """The policy does not let this connection out; see ``Verdict`` for its fields."""

    def __init__(self, why: str, kind: RefusalKind = "no_rule", about: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.kind = kind
        self.about = about

    @classmethod
    def of(cls, verdict: Verdict) -> RefusedError:
        """The error of a verdict that refuses."""
        return cls(verdict.why, verdict.kind, verdict.about)


class UnreachableError(Exception):
    """It is allowed, and there is no way there: the name does not resolve, or nothing answers."""

    def __init__(self, why: str, rule: str = "", address: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.rule = rule
        self.address = address


@dataclass(frozen=True, slots=True)
class Route:
    """Where to dial: addresses that were judged, by ``proxy`` of the host's company where there is one."""

    rule: str
    addresses: tuple[Address, ...] = ()
    proxy: CompanyProxy | None = None


async def route(network: Network, host: str, port: int) -> Route:
    """Where ``host`` may be dialled. Raises RefusedError, UnreachableError."""
    verdict = judge_host(network, host, port)
    if not verdict.allowed:
        raise RefusedError.of(verdict)
    address = literal(host)
    if address is not None:
        address = plain(address)
        return _way(_opened(network, None, address, port).rule, (address,), _company_proxy(str(address), port))
    name = ascii_name(host) or host
    proxy = _company_proxy(name, port)
    pinned = network.address_of(name)
    try:
        found = [pinned] if pinned is not None else await _resolve(name, port)
    except UnreachableError:
        if proxy is None:
            raise
        return Route(verdict.rule, (), proxy)  # names are the proxy's to resolve there
    judged = [(one, judge_address(network, name, one, port, own=is_own(one))) for one in found]
    allowed = tuple(one for one, given in judged if given.allowed)
    if not allowed:
        raise RefusedError.of(judged[0][1])
    return _way(verdict.rule, allowed[:MOST_ADDRESSES], proxy)


def _way(rule: str, addresses: tuple[Address, ...], proxy: CompanyProxy | None) -> Route:
    """With the company's proxy where that leads to the same place: this host's loopback and link are not the proxy's."""
    near = any(one.is_loopback or one.is_link_local or is_own(one) for one in addresses)
    return Route(rule, addresses, None if near else proxy)


def _company_proxy(name: str, port: int) -> CompanyProxy | None:
    try:
        return company_proxy(name, port)
    except NoWayError as error:
        raise UnreachableError(str(error)) from error


def _opened(network: Network, name: str | None, address: Address, port: int) -> Verdict:
    verdict = judge_address(network, name, address, port, own=is_own(address))
    if not verdict.allowed:
        raise RefusedError.of(verdict)
    return verdict


async def _resolve(name: str, port: int) -> list[Address]:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            found = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except TimeoutError as error:
        raise UnreachableError(f"{name} was not resolved within {RESOLVE_SECONDS:g} seconds") from error
    except (OSError, UnicodeError) as error:
        # A resolver that can open nothing says that there is no such name.
        why = descriptors.words(none) if (none := descriptors.want()) else getattr(error, "strerror", None) or error
        raise UnreachableError(f"{name} does not resolve: {why}") from error
    addresses = [plain(ipaddress.ip_address(str(each[4][0]).partition("%")[0])) for each in found]
    return list(dict.fromkeys(addresses))


async def dial(way: Route, host: str, port: int, protocol: Callable[[], P]) -> tuple[P, str]:
    """Connect; answers the protocol and what was dialled. Raises UnreachableError."""
    if way.proxy is not None:
        # By the address that was judged; where this host resolves no names, they are the proxy's to resolve.
        target = str(way.addresses[0]) if way.addresses else ascii_name(host) or host
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await through(way.proxy, target, port, protocol), way.proxy.shown
        except (NoWayError, OSError, TimeoutError) as error:
            why = str(error) or f"it did not answer within {CONNECT_SECONDS:g} seconds"
            raise UnreachableError(
                f"the host's proxy {way.proxy.shown} opened no way to {host}:{port}: {why}", way.rule, way.proxy.shown
            ) from error
    problem: Exception | None = None
    for address in way.addresses:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, made = await asyncio.get_running_loop().create_connection(protocol, str(address), port)
            return made, str(address)
        except TimeoutError:
            problem = UnreachableError(
                f"{address}:{port} did not answer within {CONNECT_SECONDS:g} seconds", way.rule, str(address)
            )
        except OSError as error:
            found = descriptors.shortage(error)
            why = descriptors.words(found) if found else os.strerror(error.errno) if error.errno else str(error)
            problem = UnreachableError(f"{address}:{port} could not be reached: {why}", way.rule, str(address))
    raise problem or UnreachableError(f"{host} has no address", way.rule)
