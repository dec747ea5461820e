"""Services of the host that a sandbox may use without knowing their secrets: values, and what of a request is allowed."""

from __future__ import annotations

import fnmatch
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from sandbox.errors import ErrorCode, SandboxError
from sandbox.masking import credentials_of

from .rules import ascii_name

DOMAIN = "internal"


@dataclass(frozen=True, slots=True)
class Service:
    """In the sandbox a plain ``http://NAME.internal/``; the host adds ``headers`` and asks ``upstream``.

    The values of the headers never enter the sandbox: where an answer echoes one, it is masked. ``methods`` and ``paths`` (patterns
    as in "/v1/*", of the path after the upstream's own) narrow what may be asked; empty means any. ``upstream`` may be any
    address the host reaches: it is the caller's choice, not the sandbox's. Raises SandboxError ``invalid_configuration``.
    """

    name: str
    upstream: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    methods: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    ca_bundle: str | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.upstream)
        if ascii_name(self.name) != self.name or "." in self.name:
            raise _refused(f"{self.name!r} is no name for a service", "Use lower-case letters, digits and hyphens.")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise _refused(f"{self.upstream!r} is no upstream", "Give it as https://api.example.com, or with a path.")
        if parts.username or parts.password:
            raise _refused("An upstream may hold no user name or password", "Give them as a header.")
        for name, value in self.headers.items():
            if not value or any(c in name + value for c in "\r\n\0") or not value.isascii():
                raise _refused(f"The value of the header {name!r} cannot be sent", "Give one line of ASCII.")

    @property
    def host(self) -> str:
        """Its host name in the sandbox."""
        return f"{self.name}.{DOMAIN}"

    def problem(self, method: str, target: str) -> str | None:
        """Why a request is not allowed; None where it is. ``target`` is path and query as the sandbox sent them."""
        path = unquote(target.partition("?")[0])
        plain = path == "/" or posixpath.normpath(path) == path.rstrip("/")
        if not target.startswith("/") or ".." in path.split("/") or "\\" in path or not plain:
            return f"{target[:200]!r} is no plain path"
        if self.methods and method.upper() not in {one.upper() for one in self.methods}:
            return f"{method} is not among the methods that are open: {', '.join(self.methods)}"
        if self.paths and not any(fnmatch.fnmatchcase(path, pattern) for pattern in self.paths):
            return f"{path[:200]} is not among the paths that are open: {', '.join(self.paths)}"
        return None

    def secrets(self) -> tuple[str, ...]:
        """What must not be seen in the sandbox: the values, and the credentials within them."""
        return tuple(part for value in self.headers.values() for part in credentials_of(value))


def _refused(why: str, hint: str) -> SandboxError:
    return SandboxError(ErrorCode.invalid_configuration, f"{why}.", hint)
