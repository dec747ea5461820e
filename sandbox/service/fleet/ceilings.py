"""What the networks of a tenant's sandboxes may reach at most: public addresses, and what the operator opens besides."""

from __future__ import annotations

from sandbox.network.ceiling import Ceiling
from sandbox.service.tenants.tenants import Tenants


class Ceilings:
    """The ceilings of the tenants. ``own_ports`` are those the service itself listens on, which nobody reaches."""

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants
        self.own_ports: frozenset[int] = frozenset()

    def of(self, tenant: str) -> Ceiling:
        """Return the ceiling of a tenant, as it is now."""
        found = self._tenants.find(tenant).ceiling
        closed = ("*",) if found.network == "none" else found.closed_hosts  # services, too
        return Ceiling.public(*found.open_networks, denied=closed, own_ports=self.own_ports)

    def volume_bytes(self, tenant: str) -> int | None:
        """Return how much the volumes of a tenant may hold together."""
        return self._tenants.find(tenant).quota.volume_bytes

    def packages(self, tenant: str) -> bool:
        """Return whether a tenant may use the package cache."""
        return self._tenants.find(tenant).ceiling.packages
