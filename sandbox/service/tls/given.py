"""The certificate of a service: looked at before anything is started, for uvicorn would only raise."""

from __future__ import annotations

import ssl
from pathlib import Path

from sandbox.errors import ErrorCode, SandboxError


def check_tls(certificate: Path | None, key: Path | None) -> None:
    """Raise SandboxError if a service cannot use its certificate and key."""
    if certificate is None or key is None:
        return
    for path, what in ((certificate, "certificate"), (key, "private key")):
        try:
            path.read_bytes()
        except OSError as error:
            hint = "Name a file that this user can read."
            raise _refusal(f"The {what} {path} cannot be read: {error.strerror}.", hint) from error
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")  # it would be asked for
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        hint = "Give both in PEM: the certificate with those that it was signed with, and its own key, without a password."
        raise _refusal(f"The certificate {certificate} and the private key {key} cannot be used: {reason}.", hint) from error


def _refusal(message: str, hint: str) -> SandboxError:
    return SandboxError(ErrorCode.setup_failed, message, f"{hint} They are set with --tls-cert and --tls-key.")
