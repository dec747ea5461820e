"""Where programs on this host find a service, and what they have to know to use it."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address

from .settings import Settings
from .tls.local import local_tls

HTTPS_PORT = 443


def service_address(settings: Settings, port: int | None = None) -> str:
    """Return the address of a service for clients of this host; ``port`` is that at which it listens, if that is known."""
    return f"{'https' if settings.is_encrypted else 'http'}://{_host(settings)}:{settings.port if port is None else port}"


def ports_domain(settings: Settings, port: int | None = None) -> str:
    """Return the domain of the ports of sandboxes as clients append it, which is with the port of the service."""
    number = settings.port if port is None else port
    return settings.domain if settings.is_encrypted and number == HTTPS_PORT else f"{settings.domain}:{number}"


def first_key(settings: Settings) -> str | None:
    """Return the first key of a service, None if it has not made one yet."""
    try:
        return (settings.data / "admin.key").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None


def trusting(settings: Settings) -> Mapping[str, str]:
    """Return the variables by which programs trust the certificate of a service; none if they need not be told."""
    if not settings.tls_local:
        return {}
    files = local_tls(settings.data)
    bundle = str(files.bundle)
    return {"SSL_CERT_FILE": bundle, "REQUESTS_CA_BUNDLE": bundle, "NODE_EXTRA_CA_CERTS": str(files.authority)}


def variables(settings: Settings, port: int | None = None) -> Mapping[str, str]:
    """Return the variables for ``gamebox`` itself; without the key if the service has not made its first one yet."""
    key = first_key(settings)
    ca = {"GAMEBOX_CA_FILE": str(local_tls(settings.data).authority)} if settings.tls_local else {}
    return {"GAMEBOX_URL": service_address(settings, port), **({} if key is None else {"GAMEBOX_API_KEY": key}), **ca}


def _host(settings: Settings) -> str:
    """Return a name at which clients of this machine reach the service."""
    named = next((each for each in settings.allowed_hosts if not each.startswith("*.")), None)
    if named is not None:
        return named
    try:
        address = ip_address(settings.host)
    except ValueError:
        return settings.host
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "[::1]"
    return settings.host if address.version == 4 else f"[{settings.host}]"
