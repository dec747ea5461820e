"""Which certificates of a service are trusted: those that this host trusts, and those of an authority that is named."""

from __future__ import annotations

import os
import ssl

import httpx

from sandbox.errors import ErrorCode, SandboxError

CA_FILE = "GAMEBOX_CA_FILE"


def trust_of(url: str, ca_file: str | os.PathLike[str] | None) -> ssl.SSLContext | None:
    """Return what judges the certificate of the service at ``url``, None if it has none. Raises SandboxError.

    ``ca_file`` has further authorities, in PEM; without it, the file that GAMEBOX_CA_FILE names has them.
    """
    if not url.startswith("https:"):
        return None
    context = httpx.create_ssl_context()
    path = ca_file or os.environ.get(CA_FILE)
    if path:
        try:
            context.load_verify_locations(path)
        except (OSError, ValueError) as error:
            why = "no certificate in PEM" if isinstance(error, ssl.SSLError) else getattr(error, "strerror", None) or str(error)
            raise SandboxError(
                ErrorCode.invalid_configuration,
                f"The file of authorities {os.fspath(path)} cannot be used: {why}.",
                f"Name the file with ca_file=... or {CA_FILE}: of a service with --tls-local, it is tls/ca.pem in its folder.",
            ) from error
    return context


def is_untrusted(error: Exception) -> bool:
    """Return whether a connection failed because the certificate of the service is not trusted."""
    return "CERTIFICATE_VERIFY_FAILED" in str(error)
