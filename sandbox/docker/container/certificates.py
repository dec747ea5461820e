"""Whom the programs of a sandbox trust: the certificates its maker named, and those that this host trusts."""

from __future__ import annotations

import os
from pathlib import Path

from sandbox.docker.images.recipes import HOST_CA_BUNDLE
from sandbox.errors import ErrorCode, SandboxError

from .profiles import Profile

# A place of the sandbox's root that all its users can read.
PUBLIC = "/run/gamebox"


def bundle_path(profile: Profile) -> str:
    """Where the certificates that commands are to trust stand in the sandbox: apt reads them as a user of its own."""
    return f"{PUBLIC if profile.uid == 0 else _settings(profile)}/ca-certificates.crt"


def _settings(profile: Profile) -> str:
    return f"{profile.home}/.config/gamebox"


def merged(bundle: Path) -> bytes:
    """The certificates of ``bundle`` and behind them this host's own (SSL_CERT_FILE, else the system's), as PEM.

    A program that is given a file of certificates trusts nothing beside it. Raises SandboxError ``invalid_configuration``.
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
    except OSError:  # a host that trusts nobody
        own = b""
    return named.rstrip() + b"\n" + own


def apt_configuration(path: str) -> bytes:
    """Have apt trust the certificates in the file ``path`` of the sandbox: it reads no variable for that."""
    return f'Acquire::https::CAInfo "{path}";\n'.encode()


def apt_path(profile: Profile) -> str:
    """Where ``apt_configuration`` stands in the sandbox."""
    return f"{_settings(profile)}/apt.conf"
