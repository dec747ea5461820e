"""What the networks of a tenant's sandboxes may reach at most: public addresses, and what the operator opens besides."""

from __future__ import annotations

from sandbox.network.ceiling import Ceiling
from sandbox.service.settings import Settings


class Ceilings:
    """The ceilings of the tenants. ``own_ports`` are those the service itself listens on, which nobody reaches."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.own_ports: frozenset[int] = frozenset()

    def of(self, tenant: str) -> Ceiling:  # noqa: ARG002
        """Return the ceiling of a tenant, as it is now."""
        settings = self._settings
        return Ceiling.public(*settings.open_networks, denied=settings.closed_hosts, own_ports=self.own_ports)
