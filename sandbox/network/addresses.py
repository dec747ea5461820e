"""Where an address lies: what only a rule that names it may open. Pure but for ``is_own``.

Spellings that C libraries take for an IPv4 address (``127.1``, ``2130706433``, ``0x7f000001``, ``0177.0.0.1``) are read as they
read them; IPv6 forms that carry an IPv4 address (mapped, translated, 6to4, NAT64, Teredo, ISATAP) are judged by what they carry
as well. An address with a zone ("%eth0") is none: it names an interface of this host, and the zone may be any text.
"""

from __future__ import annotations

import ipaddress
import re
import socket

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# Public by its number, yet answered by the hypervisor of one cloud (Azure's wire server), as 169.254.169.254 is elsewhere.
_METADATA = frozenset({ipaddress.ip_address("168.63.129.16")})
_PRIVATE_METADATA = frozenset({ipaddress.ip_address("fd00:ec2::254")})
# Those of companies and homes (RFC 1918, RFC 4193).
_PRIVATE_NETWORKS = tuple(map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")))
# Not public, which older Pythons know in part (192.0.0.192 and 100.100.100.200 are the metadata of clouds).
_RESERVED = tuple(
    map(
        ipaddress.ip_network,
        ("192.0.0.0/24", "100.64.0.0/10", "198.18.0.0/15", "240.0.0.0/4", "fec0::/10", "3fff::/20", "5f00::/16"),
    )
)
# RFC 6052 and RFC 2765 (SIIT): IPv4 in the last 32 bits. RFC 8215: a prefix of any length within, so at any of these places.
_EMBEDDING = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("::ffff:0:0:0/96"))
_LOCAL_NAT64 = ipaddress.ip_network("64:ff9b:1::/48")
_ISATAP = (0x00005EFE, 0x02005EFE)
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]*|[0-9]+")


def literal(host: str) -> Address | None:
    """The address that ``host`` spells, in any form a resolver would take for one; None for a name."""
    text = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if ":" in text:
        if "%" in text:
            return None
        try:
            return ipaddress.IPv6Address(text)
        except ValueError:
            return None
    return _aton(text.removesuffix("."))


def _aton(text: str) -> ipaddress.IPv4Address | None:
    parts = text.split(".")
    if not 1 <= len(parts) <= 4 or not all(_NUMBER.fullmatch(part) for part in parts):
        return None
    try:
        return ipaddress.IPv4Address(socket.inet_aton(text))
    except OSError:  # a number too large: no name either, and the resolver will say so
        return None


def carried(address: Address) -> tuple[Address, ...]:
    """``address`` and every IPv4 address it stands for."""
    if isinstance(address, ipaddress.IPv4Address):
        return (address,)
    inner: list[Address | None] = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    number = int(address)
    compatible = number >> 32 == 0 and number > 1  # ::a.b.c.d
    isatap = (number >> 32) & 0xFFFFFFFF in _ISATAP
    if compatible or isatap or any(address in network for network in _EMBEDDING):
        inner.append(ipaddress.IPv4Address(number & 0xFFFFFFFF))
    if address in _LOCAL_NAT64:
        inner += map(ipaddress.IPv4Address, _translated(number))
    return (address, *(one for one in inner if one is not None))


def _translated(number: int) -> tuple[int, ...]:
    """What RFC 6052 reads in an address for prefixes of 48, 56, 64 and 96 bits; bits 64 to 71 are left out."""
    without = (number >> 64) << 56 | (number & ((1 << 56) - 1))
    return (*((without >> shift) & 0xFFFFFFFF for shift in (40, 32, 24)), number & 0xFFFFFFFF)


def plain(address: Address) -> Address:
    """The IPv4 address where it is a mapped one: so that one address has one spelling."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


PRIVATE = "a private address"


def closed_kind(address: Address) -> str | None:
    """What ``address`` is where only a rule that names it opens it, as in "a private address"; None for a public one.

    An IPv4 address within it decides before the range around it: some versions of Python count all of 6to4 as private.
    """
    kinds = (_kind(one) for one in reversed(carried(address)))
    return next((kind for kind in kinds if kind is not None), None)


def _kind(address: Address) -> str | None:
    if address in _METADATA or (address.is_link_local and str(address) == "169.254.169.254"):
        return "an address of cloud metadata"
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return None  # judged by what it carries
    for yes, kind in (
        (address.is_loopback, "a loopback address of the host"),
        (address.is_unspecified, "the unspecified address"),
        (address.is_link_local, "a link-local address"),
        (address.is_multicast, "a multicast address"),
        (address.is_private, PRIVATE),
        (not address.is_global or any(address in network for network in _RESERVED), "an address that is not public"),
    ):
        if yes:
            return kind
    return None


def is_of_private_network(address: Address) -> bool:
    """Return whether ``address`` belongs to a network that companies and homes use inside, and is no metadata service."""
    return address not in _PRIVATE_METADATA and any(
        address.version == network.version and address in network for network in _PRIVATE_NETWORKS
    )


def is_own(address: Address) -> bool:
    """Whether ``address`` is one of this very host's own, as the routing table has it; nothing is sent."""
    family = socket.AF_INET if isinstance(address, ipaddress.IPv4Address) else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), 9))
            # To itself a host speaks from the address it speaks to.
            return ipaddress.ip_address(probe.getsockname()[0].partition("%")[0]) == address
    except OSError:  # no way there
        return False
