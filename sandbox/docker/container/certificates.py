"""The certificates that the programs of a sandbox trust: those its maker named, and this host's own."""

from __future__ import annotations

import os
from pathlib import Path

from sandbox.docker.images.recipes import HOST_CA_BUNDLE
from sandbox.errors import ErrorCode, SandboxError

from .profiles import Profile

# A folder of root in the sandbox that all its users can read.
PUBLIC = "/run/gamebox"


def bundle_path(profile: Profile) -> str:
    """Return the path of the certificates in the sandbox. apt reads them as a user of its own."""
    return f"{PUBLIC if profile.uid == 0 else _settings_folder(profile)}/ca-certificates.crt"


def _settings_folder(profile: Profile) -> str:
    return f"{profile.home}/.config/gamebox"


def merge_host_certificates(bundle: Path) -> bytes:
    """Return the certificates of ``bundle`` followed by this host's own (SSL_CERT_FILE, else the system's), as PEM.

    A program that is configured with a file of certificates trusts no others. Raises SandboxError ``invalid_configuration``.
    """
    try:
        named = bundle.read_bytes()
    except OSError as error:
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"The CA bundle {str(bundle)!r} cannot be read: {error.strerror}.",
            "Name a PEM file that can be read.",
        ) from error
    try:
        own = Path(os.environ.get("SSL_CERT_FILE") or HOST_CA_BUNDLE).read_bytes()
    except OSError:  # the host has no certificates
        own = b""
    return named.rstrip() + b"\n" + own


def apt_configuration(path: str) -> bytes:
    """Return the configuration that makes apt trust the certificates at ``path`` in the sandbox. It reads no variable for that."""
    return f'Acquire::https::CAInfo "{path}";\n'.encode()


def apt_path(profile: Profile) -> str:
    """Return the path of ``apt_configuration`` in the sandbox."""
    return f"{PUBLIC if profile.uid == 0 else _settings_folder(profile)}/apt.conf"
