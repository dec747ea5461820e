"""Parse addresses, and tell public ones from those that only a rule with the address opens. Pure but for ``is_host_address``.

Spellings that C libraries read as an IPv4 address (``127.1``, ``2130706433``, ``0x7f000001``, ``0177.0.0.1``) are read the same way
here. IPv6 forms that embed an IPv4 address (mapped, translated, 6to4, NAT64, Teredo, ISATAP) are judged by that address as well.
An address with a zone ("%eth0") is not accepted: it names an interface of this host, and the zone may be any text.
"""

from __future__ import annotations

import ipaddress
import re
import socket

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# A public address, yet the hypervisor of one cloud answers it (Azure's wire server), as 169.254.169.254 elsewhere.
_METADATA = frozenset({ipaddress.ip_address("168.63.129.16")})
_PRIVATE_METADATA = frozenset({ipaddress.ip_address("fd00:ec2::254")})
# Of companies and homes (RFC 1918, RFC 4193).
_PRIVATE_NETWORKS = tuple(map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")))
# Not public, which older Pythons know only in part (192.0.0.192 and 100.100.100.200 are metadata services of clouds).
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


def parse_address(host: str) -> Address | None:
    """Return the address that ``host`` spells, in any form that a resolver accepts, or None for a name."""
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
    except OSError:  # the number is too large; it is not a name either, and the resolver will say so
        return None


def embedded_addresses(address: Address) -> tuple[Address, ...]:
    """Return ``address`` and every IPv4 address that it embeds."""
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
    return (address, *(each for each in inner if each is not None))


def _translated(number: int) -> tuple[int, ...]:
    """Return the IPv4 numbers that RFC 6052 finds for prefixes of 48, 56, 64 and 96 bits; it skips bits 64 to 71."""
    without = (number >> 64) << 56 | (number & ((1 << 56) - 1))
    return (*((without >> shift) & 0xFFFFFFFF for shift in (40, 32, 24)), number & 0xFFFFFFFF)


def unmap(address: Address) -> Address:
    """Return the IPv4 address of a mapped one, so that each address has one spelling; any other as it is."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


PRIVATE = "a private address"


def is_metadata(address: Address) -> bool:
    """Return whether a cloud answers this address, or one that it embeds, with what only its machines may know."""
    return any(
        each in _METADATA or each in _PRIVATE_METADATA or str(each) == "169.254.169.254" for each in embedded_addresses(address)
    )


def closed_kind(address: Address) -> str | None:
    """Return what kind of closed address this is, as in "a private address", or None for a public one.

    An embedded IPv4 address decides before the range around it: some versions of Python count all of 6to4 as private.
    """
    kinds = (_kind(each) for each in reversed(embedded_addresses(address)))
    return next((kind for kind in kinds if kind is not None), None)


def _kind(address: Address) -> str | None:
    if address in _METADATA or (address.is_link_local and str(address) == "169.254.169.254"):
        return "an address of cloud metadata"
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return None  # judged by the address that it embeds
    for applies, kind in (
        (address.is_loopback, "a loopback address of the host"),
        (address.is_unspecified, "the unspecified address"),
        (address.is_link_local, "a link-local address"),
        (address.is_multicast, "a multicast address"),
        (address.is_private, PRIVATE),
        (not address.is_global or any(address in network for network in _RESERVED), "an address that is not public"),
    ):
        if applies:
            return kind
    return None


def is_of_private_network(address: Address) -> bool:
    """Return whether ``address`` is one of a company's or home's private network, and not a metadata service."""
    return address not in _PRIVATE_METADATA and any(
        address.version == network.version and address in network for network in _PRIVATE_NETWORKS
    )


def is_host_address(address: Address) -> bool:
    """Return whether ``address`` is one of this host's own, by its routing table. Sends nothing."""
    family = socket.AF_INET if isinstance(address, ipaddress.IPv4Address) else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), 9))
            # A host that connects to itself does so from the same address.
            return ipaddress.ip_address(probe.getsockname()[0].partition("%")[0]) == address
    except OSError:  # there is no route to it
        return False
