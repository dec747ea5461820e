"""Connect to a host: judge its name, resolve it once, judge the addresses, and dial exactly those that were judged."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
from collections.abc import Callable
from typing import TypeVar

from sandbox.frozen import dataclass
from sandbox.pipe import descriptors

from .addresses import Address, is_host_address, parse_address, unmap
from .ceiling import Ceiling
from .policy import Network, RefusalKind, Verdict, judge_address, judge_host
from .rules import ascii_name
from .upstream_proxy import ProxyError, UpstreamProxy, connect_via, find_proxy

RESOLVE_SECONDS = 10.0
CONNECT_SECONDS = 10.0
# How many addresses of a name are tried.
MOST_ADDRESSES = 4
# What a resolver says of a name that it does not know, or that has no address.
_UNKNOWN = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})

P = TypeVar("P", bound=asyncio.Protocol)


class RefusedError(Exception):
    """The policy refuses the connection. The fields are those of ``Verdict``."""

    def __init__(self, why: str, kind: RefusalKind = "no_rule", about: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.kind = kind
        self.about = about

    @classmethod
    def of(cls, verdict: Verdict) -> RefusedError:
        """Return the error for a refusing verdict."""
        return cls(verdict.why, verdict.kind, verdict.about)


class UnreachableError(Exception):
    """The connection is allowed but failed: the name does not resolve, or nothing answers."""

    def __init__(self, why: str, rule: str = "", address: str = "", *, unknown: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.rule = rule
        self.address = address
        self.unknown = unknown  # there is no such name


@dataclass(frozen=True, slots=True)
class Route:
    """Where to dial: addresses that were judged, and the proxy to go through, if any."""

    rule: str
    addresses: tuple[Address, ...] = ()
    proxy: UpstreamProxy | None = None


async def route(network: Network, host: str, port: int, ceiling: Ceiling | None = None) -> Route:
    """Return where ``host`` may be dialled. Raises RefusedError, UnreachableError."""
    verdict = judge_name(network, host, port, ceiling)
    if not verdict.allowed:
        raise RefusedError.of(verdict)
    address = parse_address(host)
    if address is not None:
        address = unmap(address)
        verdict = judge_dialled(network, None, address, port, ceiling)
        if not verdict.allowed:
            raise RefusedError.of(verdict)
        return _with_proxy(verdict.rule, (address,), _find_proxy(str(address), port))
    name = ascii_name(host) or host
    proxy = _find_proxy(name, port)
    pinned = network.address_of(name)
    try:
        found = [pinned] if pinned is not None else await _resolve(name, port)
    except UnreachableError as error:
        if ceiling is not None and error.unknown:
            raise RefusedError.of(ceiling.no_public_address(name)) from error
        if proxy is None or ceiling is not None:  # what a proxy finds for a name could not be judged
            raise
        return Route(verdict.rule, (), proxy)  # the proxy resolves names where this host cannot
    verdicts = {each: judge_dialled(network, name, each, port, ceiling) for each in found}
    allowed = tuple(each for each, verdict in verdicts.items() if verdict.allowed)
    if not allowed:
        raise RefusedError.of(verdicts[found[0]])
    return _with_proxy(verdict.rule, allowed[:MOST_ADDRESSES], proxy)


def _with_proxy(rule: str, addresses: tuple[Address, ...], proxy: UpstreamProxy | None) -> Route:
    """Return the route through ``proxy``, unless an address means this host or its link, which the proxy does not share."""
    near = any(each.is_loopback or each.is_link_local or is_host_address(each) for each in addresses)
    return Route(rule, addresses, None if near else proxy)


def _find_proxy(name: str, port: int) -> UpstreamProxy | None:
    try:
        return find_proxy(name, port)
    except ProxyError as error:
        raise UnreachableError(str(error)) from error


def judge_name(network: Network, host: str, port: int, ceiling: Ceiling | None) -> Verdict:
    """Judge ``host`` by the policy and the ceiling before it is resolved."""
    verdict = judge_host(network, host, port)
    if ceiling is None or (not verdict.allowed and verdict.kind != "closed_address"):
        return verdict
    address = parse_address(host)
    if address is not None:
        return ceiling.judge_address(None, address, port) or verdict
    return ceiling.judge_name(ascii_name(host) or host, port) or verdict


def judge_dialled(
    network: Network, name: str | None, address: Address, port: int, ceiling: Ceiling | None
) -> Verdict:
    """Judge an address that is to be dialled by the policy and the ceiling; ``name`` resolved to it, if any did.

    The ceiling comes first: the words of the policy tell which address a name has.
    """
    refused = None if ceiling is None else ceiling.judge_address(name, address, port)
    return refused or judge_address(network, name, address, port, own=is_host_address(address))


async def _resolve(name: str, port: int) -> list[Address]:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            found = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except TimeoutError as error:
        raise UnreachableError(f"{name} was not resolved within {RESOLVE_SECONDS:g} seconds") from error
    except (OSError, UnicodeError) as error:
        # A resolver that runs out of descriptors reports an unknown name.
        shortage = descriptors.want()
        why = descriptors.words(shortage) if shortage else getattr(error, "strerror", None) or error
        unknown = not shortage and getattr(error, "errno", socket.EAI_NONAME) in _UNKNOWN
        raise UnreachableError(f"{name} does not resolve: {why}", unknown=unknown) from error
    addresses = [unmap(ipaddress.ip_address(str(each[4][0]).partition("%")[0])) for each in found]
    return list(dict.fromkeys(addresses))


async def dial(way: Route, host: str, port: int, protocol: Callable[[], P]) -> tuple[P, str]:
    """Connect, and return the protocol and the address that was dialled. Raises UnreachableError."""
    if way.proxy is not None:
        # The address that was judged, not the name: the proxy might resolve that to another one.
        target = str(way.addresses[0]) if way.addresses else ascii_name(host) or host
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await connect_via(way.proxy, target, port, protocol), way.proxy.address
        except (ProxyError, OSError, TimeoutError) as error:
            why = str(error) or f"it did not answer within {CONNECT_SECONDS:g} seconds"
            raise UnreachableError(
                f"the host's proxy {way.proxy.address} opened no way to {host}:{port}: {why}",
                way.rule,
                way.proxy.address,
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
