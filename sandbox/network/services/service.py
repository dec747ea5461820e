"""Upstream services that a sandbox may use without knowing their credentials, and which requests they allow. Values only."""

from __future__ import annotations

import fnmatch
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import field
from typing import Literal, NamedTuple
from urllib.parse import unquote, urlsplit

from sandbox.argument_types import check_types
from sandbox.errors import configuration_error
from sandbox.frozen import dataclass
from sandbox.network.rules import ascii_name
from sandbox.text.masking import LEAST_CHARS, credentials_of

DOMAIN = "internal"
PORT = 80
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class Problem(NamedTuple):
    """Why a request is not allowed, and in ``about`` what is allowed instead; for the command that sent it.

    Texts of the request stand in it uncut: mask them before you cut or show them.
    """

    why: str
    kind: Literal["method", "path", "form"] = "form"
    about: str = ""


@dataclass(frozen=True, slots=True)
class Service:
    """An upstream that the sandbox reaches at ``http://NAME.internal/``; the host adds ``headers`` to each request.

    The values of ``headers`` never enter the sandbox: if an answer echoes one, it is masked. ``plain_headers`` are added as well,
    and are not secret. ``methods`` and ``paths`` (patterns such as "/v1/*", relative to the upstream's own path; ``*`` matches
    slashes) restrict the requests; empty means any. ``upstream`` may be any address that the host reaches, since the caller chooses
    it and not the sandbox. ``ca_bundle`` is a file of certificates to trust in place of the usual ones. Raises SandboxError
    ``invalid_configuration``.
    """

    name: str
    upstream: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    methods: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    ca_bundle: str | None = None
    plain_headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_types(
            "Service", name=(self.name, str), upstream=(self.upstream, str), ca_bundle=(self.ca_bundle, str | None)
        )
        for option, headers in (("headers", self.headers), ("plain_headers", self.plain_headers)):
            check_types("Service", **{option: (headers, Mapping)})
            for name, value in headers.items():  # a value is a secret: the message shows only its type
                check_types(
                    "Service",
                    **{f"the name of a header in {option}": (name, str), f"a value of {option}": (value, str)},
                )
        _check_restrictions(self.methods, self.paths)
        parts = urlsplit(self.upstream)
        if ascii_name(self.name) != self.name or "." in self.name:
            raise configuration_error(
                f"{self.name!r} is not a valid name for a service.", "Use lower-case letters, digits and hyphens."
            )
        if parts.username or parts.password:
            raise configuration_error("An upstream may hold no user name or password.", "Give them as a header.")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            # A query may hold a key.
            place = f"{parts.scheme}://{parts.hostname}" if parts.hostname else "What was given"
            raise configuration_error(
                f"{place!r} is not an upstream as it was given.", "Give it as https://api.example.com, or with a path."
            )
        for name, value in (*self.headers.items(), *self.plain_headers.items()):
            if not _TOKEN.fullmatch(name) or not value or any(c in value for c in "\r\n\0") or not value.isascii():
                raise configuration_error(f"The header {name!r} cannot be sent.", "Give a name and one line of ASCII.")
        for name, value in self.headers.items():
            if len(value) < LEAST_CHARS:
                raise configuration_error(
                    f"The value of the header {name!r} has fewer than {LEAST_CHARS} characters: masking it would garble answers.",
                    "Give values that are not secret in plain_headers.",
                )

    @property
    def host(self) -> str:
        """The host name in the sandbox."""
        return f"{self.name}.{DOMAIN}"

    @property
    def url(self) -> str:
        """The address in the sandbox."""
        return f"http://{self.host}/"

    def problem(self, method: str, target: str) -> Problem | None:
        """Return why a request is not allowed, or None. ``target`` is path and query as the sandbox sent them."""
        try:
            path = unquote(target.partition("?")[0], errors="strict")
        except UnicodeDecodeError:  # overlong forms of "." and "/" among them, which some servers read
            return Problem(f"{target!r} has escapes that are not UTF-8")
        if not target.startswith("/") or "#" in target or not _is_plain(path):
            return Problem(f"{target!r} is not a plain path")
        if method.upper() in ("TRACE", "CONNECT"):
            return Problem(f"{method} is never open", "method", ", ".join(self.methods))
        if self.methods and method.upper() not in {allowed.upper() for allowed in self.methods}:
            listed = ", ".join(self.methods)
            return Problem(f"{method} is not one of the methods that are open: {listed}", "method", listed)
        if (
            self.paths and "%2f" in target.partition("?")[0].lower()
        ):  # a pattern would match it as a slash, but it is sent encoded
            return Problem(f"{target!r} has an encoded slash, and only some paths are open")
        if self.paths and not any(fnmatch.fnmatchcase(path, pattern) for pattern in self.paths):
            listed = ", ".join(self.paths)
            return Problem(f"{path} is not one of the paths that are open: {listed}", "path", listed)
        return None

    def secrets(self) -> tuple[str, ...]:
        """Return what the sandbox must not see: the values of ``headers``, and the credentials within them."""
        return tuple(part for value in self.headers.values() for part in credentials_of(value))

    def describe(self) -> str:
        """Return a clause for the model: the address, and which requests are allowed."""
        restrictions = [
            *([f"methods {', '.join(self.methods)}"] if self.methods else []),
            *([f"paths {', '.join(self.paths)}"] if self.paths else []),
        ]
        return f"{self.url} ({'; '.join(restrictions)})" if restrictions else self.url


def _check_restrictions(methods: object, paths: object) -> None:
    """Refuse a restriction that does not do what it says: a string, say, would be taken for the tuple of its letters."""
    for field_name, given, example in (("methods", methods, "GET"), ("paths", paths, "/v1/*")):
        hint = f'Give a tuple: {field_name}=("{example}",).'
        if not isinstance(given, tuple | list):
            raise configuration_error(f"{given!r:.200} is not a tuple of {field_name}.", hint)
        for value in given:
            if not isinstance(value, str):
                raise configuration_error(f"{value!r:.200} among the {field_name} is not a text.", hint)
            if field_name == "methods" and not _TOKEN.fullmatch(value):
                raise configuration_error(f"{value!r:.200} is not a method.", hint)
            if field_name == "paths" and not value.startswith(("/", "*")):
                raise configuration_error(
                    f"The path {value!r:.200} begins with neither '/' nor '*': no request has it.", hint
                )


def _is_plain(path: str) -> bool:
    """Return whether every server reads ``path`` in the same way.

    It has no dot segments (";" hides them from some servers), no "//", no backslash, and no character that a server may take for
    one of these (``．``, ``／``).
    """
    normal = unicodedata.normalize("NFKC", path)
    if normal != path:
        return normal.count("/") == path.count("/") and _is_plain(normal)
    segments = [segment.partition(";")[0] for segment in path.split("/")]
    return (
        "//" not in path
        and "\\" not in path
        and "%" not in path  # encoded twice
        and not any(segment in (".", "..") for segment in segments)
        and not _CONTROL.search(path)
    )
