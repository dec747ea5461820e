"""From a name to a connection: judged, resolved once, judged again, and dialled at the very address that was judged."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from .addresses import Address, is_own, literal, plain
from .policy import Network, Verdict, judge_address, judge_host
from .rules import ascii_name

RESOLVE_SECONDS = 10.0
CONNECT_SECONDS = 10.0
# Of the addresses of a name, so many are tried.
MOST_ADDRESSES = 4
# Of the answer of a company's proxy, in bytes.
MOST_HEAD = 16 * 1024

P = TypeVar("P", bound=asyncio.Protocol)


class RefusedError(Exception):
    """The policy does not let this connection out."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class UnreachableError(Exception):
    """It is allowed, and there is no way there: the name does not resolve, or nothing answers."""

    def __init__(self, why: str, rule: str = "", address: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.rule = rule
        self.address = address


@dataclass(frozen=True, slots=True)
class Route:
    """Where to dial: addresses that were judged, or ``proxy`` of the host's company (host, port, user info) instead."""

    rule: str
    addresses: tuple[Address, ...] = ()
    proxy: tuple[str, int, str] | None = None


async def route(network: Network, host: str, port: int) -> Route:
    """Where ``host`` may be dialled. Raises RefusedError, UnreachableError."""
    verdict = judge_host(network, host, port)
    if not verdict.allowed:
        raise RefusedError(verdict.why)
    address = literal(host)
    if address is not None:
        return Route(_opened(network, None, plain(address), port).rule, (plain(address),))
    name = ascii_name(host) or host
    proxy = company_proxy(name, port)
    try:
        found = await _resolve(name, port)
    except UnreachableError:
        if proxy is None:
            raise
        return Route(verdict.rule, (), proxy)  # names are the proxy's to resolve there
    judged = [(one, judge_address(network, name, one, port, own=is_own(one))) for one in found]
    allowed = tuple(one for one, given in judged if given.allowed)
    if not allowed:
        raise RefusedError(judged[0][1].why)
    return Route(verdict.rule, allowed[:MOST_ADDRESSES], proxy)


def _opened(network: Network, name: str | None, address: Address, port: int) -> Verdict:
    verdict = judge_address(network, name, address, port, own=is_own(address))
    if not verdict.allowed:
        raise RefusedError(verdict.why)
    return verdict


async def _resolve(name: str, port: int) -> list[Address]:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            found = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except TimeoutError as error:
        raise UnreachableError(f"{name} was not resolved within {RESOLVE_SECONDS:g} seconds") from error
    except (OSError, UnicodeError) as error:
        raise UnreachableError(f"{name} does not resolve: {getattr(error, 'strerror', None) or error}") from error
    addresses = [plain(ipaddress.ip_address(str(each[4][0]).partition("%")[0])) for each in found]
    return list(dict.fromkeys(addresses))


def company_proxy(name: str, port: int) -> tuple[str, int, str] | None:
    """The host's own way out, as HTTPS_PROXY, HTTP_PROXY and NO_PROXY in its environment name it; None where it goes out directly.

    Raises UnreachableError where they name something that is no HTTP proxy.
    """
    named = getproxies().get("http" if port == 80 else "https")
    if not named or proxy_bypass(f"{name}:{port}"):
        return None
    parts = urlsplit(named if "://" in named else f"http://{named}")
    if parts.hostname is None or parts.scheme != "http":
        raise UnreachableError(f"the host's proxy setting {parts.scheme}://{parts.hostname} is no http:// proxy")
    return parts.hostname, parts.port or 3128, parts.netloc.rpartition("@")[0]


async def dial(way: Route, host: str, port: int, protocol: Callable[[], P]) -> tuple[P, str]:
    """Connect; answers the protocol and what was dialled. Raises UnreachableError."""
    if way.proxy is not None:
        return await _dial_proxy(way, host, port, protocol)
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
            why = os.strerror(error.errno) if error.errno else str(error)
            problem = UnreachableError(f"{address}:{port} could not be reached: {why}", way.rule, str(address))
    raise problem or UnreachableError(f"{host} has no address", way.rule)


async def _dial_proxy(way: Route, host: str, port: int, protocol: Callable[[], P]) -> tuple[P, str]:
    """A tunnel through the company's proxy (CONNECT)."""
    assert way.proxy is not None  # noqa: S101  the caller looked
    proxy_host, proxy_port, user = way.proxy
    shown = f"{proxy_host}:{proxy_port}"
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(proxy_host, proxy_port, limit=MOST_HEAD)
            # By the address that was judged; where this host resolves no names, they are the proxy's to resolve.
            target = _bracketed(way.addresses[0]) if way.addresses else host
            head = f"CONNECT {target}:{port} HTTP/1.1\r\nHost: {target}:{port}\r\n"
            if user:
                token = base64.b64encode(unquote(user).encode()).decode()
                head += f"Proxy-Authorization: Basic {token}\r\n"
            writer.write(f"{head}\r\n".encode())
            answer = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n", 1)[0].decode("latin-1")
    except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise UnreachableError(
            f"the host's proxy {shown} did not open a way to {host}:{port}: {str(error) or 'timed out'}",
            way.rule,
            shown,
        ) from error
    if answer.split(" ", 2)[1:2] != ["200"]:
        writer.close()
        raise UnreachableError(f"the host's proxy {shown} answered {answer[:200]!r} for {host}:{port}", way.rule, shown)
    made = protocol()
    transport = writer.transport
    transport.set_protocol(made)
    made.connection_made(transport)
    return made, shown


def _bracketed(address: Address) -> str:
    return f"[{address}]" if address.version == 6 else str(address)
