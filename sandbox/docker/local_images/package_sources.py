"""What this host's own apt, pip and npm install from, for the steps of a build that its user started."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import re
import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import SplitResult, urlsplit

from sandbox.frozen import dataclass
from sandbox.network.addresses import closed_kind, embedded_addresses, is_host_address, is_metadata, parse_address
from sandbox.network.policy import Network
from sandbox.packages.apt_sources import host_sources
from sandbox.packages.host_indexes import find_host_indexes

log = logging.getLogger(__name__)

_URL = re.compile(r"https?://[^\s]+")
_MOST_HOSTS = 16


@dataclass(frozen=True)
class PackageSources:
    """``variables`` name the indexes of pip, uv and npm; ``secrets`` those that have a password in them.

    ``rules`` open the addresses of all sources that are not public, as those of a company's own mirror are.
    """

    variables: dict[str, str]
    secrets: dict[str, str]
    rules: tuple[str, ...]

    def network(self) -> Network:
        """Return a policy of every public host and these sources."""
        return Network.open(*self.rules)


def find_package_sources() -> PackageSources:
    """Ask this host's tools, which takes a second, once for a process; a tool that is missing is left out."""
    own = find_host_indexes()
    variables: dict[str, str] = {}
    secrets: dict[str, str] = {}
    urls = [*_apt_urls(), *(f"https://{host}" for host in os.environ.get("GAMEBOX_PACKAGE_HOSTS", "").split())]
    for url, names in ((own.pypi, ("PIP_INDEX_URL", "UV_DEFAULT_INDEX")), (own.npm, ("npm_config_registry",))):
        parts = _split(url or "")
        if url and parts is not None and not _is_near(parts.hostname or ""):
            (secrets if "@" in parts.netloc else variables).update(dict.fromkeys(names, url))
            urls.append(url)
    return PackageSources(variables, secrets, tuple(address_rules(urls)))


def _apt_urls() -> list[str]:
    with contextlib.suppress(OSError):
        codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
        if codename:
            return [url for text in host_sources(codename).values() for url in _URL.findall(text)]
    return []


def address_rules(urls: Iterable[str]) -> list[str]:
    """Return rules for the addresses of these hosts that no policy of public hosts opens, with the ports of the URLs."""
    hosts: dict[str, set[int]] = {}
    for url in urls:
        parts = _split(url)
        if parts is not None and parts.hostname and len(hosts) < _MOST_HOSTS:
            hosts.setdefault(parts.hostname, {80, 443}).update({parts.port} - {None})  # type: ignore[arg-type]
    rules: dict[str, None] = {}
    with ThreadPoolExecutor(_MOST_HOSTS) as threads:
        for ports, found in zip(hosts.values(), threads.map(_closed_addresses, hosts), strict=True):
            rules |= dict.fromkeys(
                f"[{address}]:{port}" if ":" in address else f"{address}:{port}" for address in found for port in sorted(ports)
            )
    return list(rules)


def _closed_addresses(host: str) -> list[str]:
    """Return the addresses of a host that are not public, and neither this host's own nor a cloud's metadata."""
    try:
        found = {str(each[4][0]) for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError) as error:
        log.debug("%s was not resolved: %s", host, error)
        return []
    closed = []
    for text in sorted(found):
        address = parse_address(text)
        if address is None or closed_kind(address) is None:
            continue
        near = any(each.is_loopback or each.is_link_local or each.is_unspecified for each in embedded_addresses(address))
        if not (near or is_metadata(address) or is_host_address(address)):
            closed.append(str(address))
    return closed


def _is_near(host: str) -> bool:
    """Return whether a sandbox would look for this host in itself."""
    address = parse_address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    return parts
