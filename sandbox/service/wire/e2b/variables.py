"""The environment variables with which clients of E2B find a service."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address

from sandbox.service.settings import Settings


def variables(settings: Settings) -> Mapping[str, str]:
    """Return the variables for a service with these settings; without the key if it has not made its first one yet."""
    url = f"{'http' if settings.tls_cert is None else 'https'}://{_host(settings)}:{settings.port}"
    found = {"E2B_API_URL": url, "E2B_SANDBOX_URL": url}
    try:
        key = (settings.data / "admin.key").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return found
    return {**found, "E2B_API_KEY": key}


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
