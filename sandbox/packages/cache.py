"""PackageCache: which indexes are cached, where, and what the programs of a sandbox are told of it. Values only."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from sandbox.errors import ErrorCode, SandboxError

from .upstreams import npm_of_host, pypi_of_host

HOST, PORT = "packages.internal", 80
URL = f"http://{HOST}"
GIB = 1 << 30
# What is asked of the cache is answered when it is whole, and a file of some GiB takes its time.
_PATIENCE_SECONDS = "600"


@dataclass(frozen=True, slots=True)
class Upstreams:
    """Base URLs with a slash at the end; None where there is no such index."""

    pypi: str | None
    npm: str | None


@dataclass(frozen=True, slots=True)
class PackageCache:
    """Packages of a Python index and an npm registry, kept in ``directory`` of this host and shared by all who name it.

    ``pypi`` and ``npm`` are the URLs to ask (user name and password in them stay on the host); None: as pip and npm on this host
    are configured, "": none. ``max_bytes`` bounds the directory: what was not used for longest goes first. ``fresh_seconds`` is
    how long a page of an index is not asked for again. ``ca_bundle`` is a file of certificates (PEM) to trust beside those of this
    host. Pages of an index may lead to any public host, to the index's own host and port, and to ``private_hosts``
    ("files.example.com" or "files.example.com:8443"), which may lie at private, loopback or link-local addresses.
    Raises SandboxError ``invalid_configuration``.
    """

    directory: str | os.PathLike[str]
    pypi: str | None = None
    npm: str | None = None
    max_bytes: int = 10 * GIB
    fresh_seconds: float = 600.0
    ca_bundle: str | os.PathLike[str] | None = None
    private_hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, url in (("pypi", self.pypi), ("npm", self.npm)):
            if url:
                _check(name, url)
        hosts: object = self.private_hosts  # a text would be taken for its letters
        if not isinstance(hosts, tuple | list) or not all(isinstance(host, str) and host for host in hosts):
            raise _refused(
                f"private_hosts={self.private_hosts!r:.200} is not a tuple of hosts.",
                'Give them as in private_hosts=("files.example.com",).',
            )
        if self.max_bytes < 1:
            raise _refused(f"max_bytes of the package cache is {self.max_bytes}.", "Give the bytes it may take.")
        if not self.fresh_seconds >= 0:
            raise _refused(f"fresh_seconds of the package cache is {self.fresh_seconds}.", "Give 0 or more.")
        if self.ca_bundle is not None and not os.access(self.ca_bundle, os.R_OK):
            raise _refused(f"{str(self.ca_bundle)!r} cannot be read.", "Name a PEM file that can be read.")

    def upstreams(self) -> Upstreams:
        """What is asked; may start pip and npm, once in a process. Raises SandboxError where there is no index at all."""
        found = {
            "pypi": pypi_of_host() if self.pypi is None else self.pypi,
            "npm": npm_of_host() if self.npm is None else self.npm,
        }
        for name, url in found.items():
            if url:
                _check(name, url)
        if not any(found.values()):
            raise _refused(
                "No package index is configured on this host.",
                "Name one: PackageCache(directory, pypi='https://index.example.com/simple/', npm='https://npm.example.com/').",
            )
        slashed = {name: f"{url.rstrip('/')}/" if url else None for name, url in found.items()}
        return Upstreams(slashed["pypi"], slashed["npm"])

    def place(self) -> Path:
        """``directory``, made where it is missing, for this user alone. Raises SandboxError ``invalid_configuration``."""
        folder = Path(self.directory).expanduser().absolute()
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            for part in ("pages", "files", "incoming", "locks"):
                (folder / part).mkdir(exist_ok=True, mode=0o700)
        except OSError as error:
            raise _refused(
                f"The package cache cannot be kept in {str(folder)!r}: {error.strerror}.", "Name a folder to write to."
            ) from error
        if folder.stat().st_uid not in (os.getuid(), 0) or folder.stat().st_mode & 0o022:
            raise _refused(
                f"Others may write to {str(folder)!r}, and could change packages in it.",
                "Name a folder of your own, or chmod go-w it.",
            )
        return folder


def variables(upstreams: Upstreams) -> dict[str, str]:
    """Have pip, uv and npm in a sandbox ask the cache; only for what it has an upstream."""
    told: dict[str, str] = {}
    if upstreams.pypi is not None:
        index = f"{URL}/pypi/simple/"
        told |= {
            "PIP_INDEX_URL": index, "PIP_TRUSTED_HOST": HOST, "PIP_DEFAULT_TIMEOUT": _PATIENCE_SECONDS,
            "UV_DEFAULT_INDEX": index, "UV_INDEX_URL": index, "UV_INSECURE_HOST": HOST, "UV_HTTP_TIMEOUT": _PATIENCE_SECONDS,
        }  # fmt: skip
    if upstreams.npm is not None:
        # Audits are POSTs of what is installed, for which a cache has no answer.
        told |= {
            "npm_config_registry": f"{URL}/npm/", "npm_config_audit": "false",
            "npm_config_fetch_timeout": f"{_PATIENCE_SECONDS}000",
        }  # fmt: skip
    return told


def describe(upstreams: Upstreams) -> str:
    """One sentence for the model."""
    tools = " and ".join(
        name for name, url in (("pip and uv", upstreams.pypi), ("npm", upstreams.npm)) if url is not None
    )
    return f" {tools[0].upper()}{tools[1:]} install from a package cache of the host ({URL}/) by themselves, with no rule for it."


def _check(name: str, url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        shown = url if "@" not in url else f"{name}=..."
        raise _refused(f"{shown!r} is no URL of a package index.", f"Give {name}='https://index.example.com/...'.")


def _refused(why: str, hint: str) -> SandboxError:
    return SandboxError(ErrorCode.invalid_configuration, why, hint)
