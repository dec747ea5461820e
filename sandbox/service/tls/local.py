"""TLS without anybody else: an authority in the folder of the service, and its certificate for the names of the service.

``tls/ca.key`` has the authority and its key, ``tls/server.pem`` the certificate and its key. Clients trust ``tls/ca.pem``, or
``tls/bundle.pem``, which has the authorities of the system, too: programs that trust it still reach the internet.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from datetime import datetime
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from sandbox.errors import SandboxError
from sandbox.frozen import dataclass
from sandbox.service.http.hosts import is_dns_name
from sandbox.service.operators.logs import log_event

from .authority import (
    AUTHORITY_RENEWAL,
    SERVER_RENEWAL,
    Identity,
    Names,
    covers,
    current_time,
    is_server_of,
    make_authority,
    make_server,
    read_identity,
)
from .private_files import FOLDER, MOST_BYTES, PrivateFiles, private_files

if TYPE_CHECKING:
    from sandbox.service.settings import Settings

log = logging.getLogger(__name__)

AUTHORITY, AUTHORITY_CERTIFICATE, SERVER, BUNDLE = "ca.key", "ca.pem", "server.pem", "bundle.pem"
# How often a running service looks whether its certificate is to be renewed.
LOOK_SECONDS = 6 * 3600.0
# Where systems keep the authorities that they trust.
_SYSTEM = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem", "/etc/ssl/ca-bundle.pem")


@dataclass(frozen=True, slots=True)
class LocalTls:
    """Where the files are. ``made`` says which of them are new: nothing, the certificate, or the authority as well."""

    folder: Path
    made: str = ""

    @property
    def server(self) -> Path:
        """The certificate of the service with its key."""
        return self.folder / SERVER

    @property
    def authority(self) -> Path:
        """The certificate of the authority."""
        return self.folder / AUTHORITY_CERTIFICATE

    @property
    def bundle(self) -> Path:
        """The same with those of the system."""
        return self.folder / BUNDLE


def local_tls(data: Path) -> LocalTls:
    """Return where the files of a service are, whether or not there are any yet."""
    return LocalTls(data.absolute() / FOLDER)


def prepare(settings: Settings) -> LocalTls:
    """Make what is missing, has nearly ended, or is for other names. Raises SandboxError."""
    names, at, made = names_of(settings), current_time(), ""
    with private_files(settings.data) as files:
        authority = _authority(files, names)
        if authority is None or not authority.lasts(at, AUTHORITY_RENEWAL):
            authority, made = make_authority(names, at, authority), "authority"
            files.write(AUTHORITY, authority.pem)
        if not _has_server(files, authority, names, at):
            files.write(SERVER, make_server(authority, names, at).pem)
            made = made or "certificate"
        _publish(files, authority)
    return LocalTls(settings.data.absolute() / FOLDER, made)


def examine(settings: Settings) -> str:
    """Return what ``prepare`` would make now, and make nothing. Raises SandboxError."""
    if not os.path.lexists(settings.data / FOLDER):
        return "authority"
    names, at = names_of(settings), current_time()
    with private_files(settings.data) as files:
        authority = _authority(files, names)
        if authority is None or not authority.lasts(at, AUTHORITY_RENEWAL):
            return "authority"
        return "" if _has_server(files, authority, names, at) else "certificate"


def _authority(files: PrivateFiles, names: Names) -> Identity | None:
    """Return the authority for these names. Other names have another: who trusts one must not trust the other by that."""
    found = read_identity(files.read(AUTHORITY, secret=True))
    return found if found is not None and covers(found, names) else None


def _has_server(files: PrivateFiles, authority: Identity, names: Names, at: datetime) -> bool:
    """Return whether there is a certificate that will do for some time."""
    found = read_identity(files.read(SERVER, secret=True))
    return found is not None and is_server_of(found, authority, names) and found.lasts(at, SERVER_RENEWAL)


def _publish(files: PrivateFiles, authority: Identity) -> None:
    """Write what clients read, if it is not there as it must be."""
    ours = authority.certificate_pem
    bundle = files.path / BUNDLE
    for name, data in ((AUTHORITY_CERTIFICATE, ours), (BUNDLE, _system_authorities(bundle) + b"\n" + ours)):
        if files.read(name) != data:
            files.write(name, data)


def _system_authorities(own: Path) -> bytes:
    """Return the authorities that programs here trust without us."""
    named = [os.environ[each] for each in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE") if os.environ.get(each)]
    for text in (*named, ssl.get_default_verify_paths().cafile, *_SYSTEM, _certifi()):
        try:
            path = Path(text or "/nonexistent")
            # That of another service is not the system's either.
            if path.is_file() and path.name != own.name and path.stat().st_size < MOST_BYTES // 2:
                return path.read_bytes()
        except OSError:
            continue
    return b""


def _certifi() -> str | None:
    try:
        import certifi
    except ImportError:
        return None
    return certifi.where()


def names_of(settings: Settings) -> Names:
    """Return what the certificate of a service is for: its own names, and those of the ports of its sandboxes."""
    texts = ["localhost", settings.domain, f"*.{settings.domain}", *settings.allowed_hosts, settings.host]
    if not settings.is_loopback:
        texts.append(socket.gethostname())
    names, addresses = [], [ip_address("127.0.0.1"), ip_address("::1")]
    for text in map(str.lower, texts):
        try:
            address = ip_address(text)
        except ValueError:
            if is_dns_name(text) and text not in names:
                names.append(text)
        else:
            if not address.is_unspecified and address not in addresses:
                addresses.append(address)
    return Names(names, addresses)


def unresolved_name(settings: Settings) -> str | None:
    """Return a name below the domain that leads nowhere on this host; None if names of ports can be found here."""
    name = f"8000-sandbox.{settings.domain}"
    try:
        socket.getaddrinfo(name, settings.port or 443, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return name
    return None


def resolving_hint(domain: str) -> str:
    """Return what makes names below a domain lead to the service."""
    if domain.endswith(".localhost"):
        return (
            "Install libnss-myhostname (Debian, Ubuntu) or nss-myhostname (others), which resolves all names below localhost, "
            f"or add a line for each name that you use to /etc/hosts, as in: 127.0.0.1 8000-SANDBOX.{domain}"
        )
    return f"Have *.{domain} lead to this host in DNS, or add a line for each name that you use to /etc/hosts."


async def keep_renewing(settings: Settings, context: ssl.SSLContext) -> None:
    """Renew the certificate of a running service before it ends; connections made from then on get the new one."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        try:
            found = await asyncio.to_thread(prepare, settings)
            if found.made:
                context.load_cert_chain(found.server)
                log_event(log, logging.INFO, "the certificate was renewed", made=found.made)
        except (SandboxError, OSError) as error:
            log.warning("the certificate could not be renewed: %s", error)
