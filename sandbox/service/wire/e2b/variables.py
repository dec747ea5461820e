"""The environment variables with which clients of E2B find a service."""

from __future__ import annotations

from collections.abc import Mapping

from sandbox.service.addresses import first_key, ports_domain, service_address, trusting
from sandbox.service.http.hosts import LOCALHOST
from sandbox.service.settings import Settings


def variables(settings: Settings, port: int | None = None, *, resolves: bool = True) -> Mapping[str, str]:
    """Return the variables for a service with these settings; without the key if it has not made its first one yet.

    With TLS, clients find each sandbox by its name, unless names below the domain do not resolve (``resolves``).
    """
    url, key = service_address(settings, port), first_key(settings)
    has_names = settings.is_encrypted and settings.domain != LOCALHOST
    return {
        "E2B_API_URL": url,
        "E2B_VOLUME_API_URL": url,
        **({"E2B_DOMAIN": ports_domain(settings, port)} if has_names else {}),
        **({} if has_names and resolves else {"E2B_SANDBOX_URL": url}),
        **({} if key is None else {"E2B_API_KEY": key}),
        **trusting(settings),
    }
