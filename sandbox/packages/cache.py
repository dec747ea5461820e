"""PackageCache: which indexes to cache, where, and the variables that lead a sandbox's programs to it. Values only."""

from __future__ import annotations

import math
import os
from dataclasses import field
from pathlib import Path
from urllib.parse import urlsplit

from sandbox.errors import configuration_error
from sandbox.frozen import dataclass
from sandbox.user_cache import user_cache

from .host_indexes import find_host_indexes

HOST, PORT = "packages.internal", 80
URL = f"http://{HOST}"
GIB = 1 << 30
# The cache answers when it has the whole file, and a file of some GiB takes its time.
_TIMEOUT_SECONDS = "600"


@dataclass(frozen=True, slots=True)
class Upstreams:
    """The base URLs of the indexes, with a final slash; None for one that is not cached."""

    pypi: str | None
    npm: str | None


def user_folder() -> Path:
    """Return the folder of this user's own cache of packages."""
    return user_cache("packages")


@dataclass(frozen=True, slots=True)
class PackageCache:
    """A cache of a Python index and an npm registry in ``directory`` on this host, shared by all sandboxes that name it.

    Without ``directory`` it is this user's own, ~/.cache/gamebox/packages, which the option ``--packages`` uses, too.
    ``pypi`` and ``npm`` are the URLs of the upstreams; a user name and password in them stay on the host. None means the index that
    pip or npm on this host is configured for, "" means no such index. ``max_bytes`` bounds the directory: the least recently used
    entries are removed first. A page of an index is used for ``fresh_seconds`` before it is requested again. ``ca_bundle`` is a
    file of certificates (PEM) to trust in addition to this host's. Pages of an index may lead to any public host, to the
    index's own host and port, and to ``private_hosts`` ("files.example.com" or "files.example.com:8443"), which may have private,
    loopback or link-local addresses.
    Raises SandboxError ``invalid_configuration``.
    """

    directory: str | os.PathLike[str] = field(default_factory=user_folder)
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
        hosts: object = self.private_hosts  # a string would be read as a tuple of its letters
        if not isinstance(hosts, tuple | list) or not all(isinstance(host, str) and host for host in hosts):
            raise configuration_error(
                f"private_hosts={self.private_hosts!r:.200} is not a tuple of hosts.",
                'Give them as in private_hosts=("files.example.com",).',
            )
        if not 1 <= self.max_bytes < math.inf:  # JSON, in which a spec is written down, has no infinity
            raise configuration_error(
                f"max_bytes of the package cache is {self.max_bytes}.", "Give the bytes it may take."
            )
        if not 0 <= self.fresh_seconds < math.inf:
            raise configuration_error(
                f"fresh_seconds of the package cache is {self.fresh_seconds}.",
                "Give 0 or more; a large number if a page is never to be requested again.",
            )
        if self.ca_bundle is not None and not os.access(self.ca_bundle, os.R_OK):
            raise configuration_error(f"{str(self.ca_bundle)!r} cannot be read.", "Name a PEM file that can be read.")

    def upstreams(self) -> Upstreams:
        """Return the indexes to ask. May run pip and npm, once per process. Raises SandboxError if there is no index at all."""
        own = find_host_indexes(pypi=self.pypi is None, npm=self.npm is None)
        found = {"pypi": own.pypi if self.pypi is None else self.pypi, "npm": own.npm if self.npm is None else self.npm}
        for name, url in found.items():
            if url:
                _check(name, url)
        if not any(found.values()):
            raise configuration_error(
                "No package index is configured on this host.",
                "Name one: PackageCache(directory, pypi='https://index.example.com/simple/', npm='https://npm.example.com/').",
            )
        slashed = {name: f"{url.rstrip('/')}/" if url else None for name, url in found.items()}
        return Upstreams(slashed["pypi"], slashed["npm"])

    def prepare_directory(self) -> Path:
        """Create ``directory`` if it is missing, for this user only. Raises SandboxError ``invalid_configuration``."""
        folder = Path(self.directory).expanduser().absolute()
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            for part in ("pages", "files", "incoming", "locks"):
                (folder / part).mkdir(exist_ok=True, mode=0o700)
        except OSError as error:
            raise configuration_error(
                f"The package cache cannot be kept in {str(folder)!r}: {error.strerror}.", "Name a folder to write to."
            ) from error
        if folder.stat().st_uid not in (os.getuid(), 0) or folder.stat().st_mode & 0o022:
            raise configuration_error(
                f"Others may write to {str(folder)!r}, and could change packages in it.",
                "Name a folder of your own, or chmod go-w it.",
            )
        return folder


def variables(upstreams: Upstreams) -> dict[str, str]:
    """Return the variables that make pip, uv, npm, pnpm and yarn use the cache, for the indexes that it has."""
    found: dict[str, str] = {}
    if upstreams.pypi is not None:
        index = f"{URL}/pypi/simple/"
        found |= {
            "PIP_INDEX_URL": index,
            "PIP_TRUSTED_HOST": HOST,
            "PIP_DEFAULT_TIMEOUT": _TIMEOUT_SECONDS,
            "UV_DEFAULT_INDEX": index,
            "UV_INDEX_URL": index,
            "UV_INSECURE_HOST": HOST,
            "UV_HTTP_TIMEOUT": _TIMEOUT_SECONDS,
        }
    if upstreams.npm is not None:
        # An audit posts the list of packages, which a cache cannot answer.
        found |= {
            "npm_config_registry": f"{URL}/npm/",
            "npm_config_audit": "false",
            "npm_config_fetch_timeout": f"{_TIMEOUT_SECONDS}000",
            # pnpm and yarn 1 read npm's variables; later ones of yarn have their own, and refuse plain HTTP without the second.
            "YARN_NPM_REGISTRY_SERVER": f"{URL}/npm/",
            "YARN_UNSAFE_HTTP_WHITELIST": HOST,
        }
    return found


def describe(upstreams: Upstreams) -> str:
    """Return one sentence for the model."""
    if upstreams.npm is None:
        tools = "Pip and uv install"
    elif upstreams.pypi is None:
        tools = "Npm installs"
    else:
        tools = "Pip, uv and npm install"
    return f" {tools} from a package cache of the host ({URL}/) without a rule for it; apt, cargo, go and others do not."


def _check(name: str, url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        shown = url if "@" not in url else f"{name}=..."
        raise configuration_error(
            f"{shown!r} is not the URL of a package index.", f"Give {name}='https://index.example.com/...'."
        )
