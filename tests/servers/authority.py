"""A certificate authority of the test's own."""

from __future__ import annotations

import ssl
from pathlib import Path

import trustme


class Authority:
    """Signs servers' certificates; whoever is to trust them is given ``bundle``."""

    def __init__(self, folder: Path) -> None:
        self._authority = trustme.CA()
        self.bundle = folder / "test-ca.pem"
        self._authority.cert_pem.write_to_path(self.bundle)

    def context(self, *names: str) -> ssl.SSLContext:
        """For a server of these names."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._authority.issue_cert(*names).configure_cert(context)
        return context
