"""The URLs of web pages: in which form they are requested, and which hosts are the sandbox itself."""

from __future__ import annotations

import ipaddress
from urllib.parse import SplitResult, quote, urlsplit, urlunsplit


def normalize_url(url: str) -> str:
    """Return the URL in the form that is requested: http or https, without user name and fragment, in ASCII.

    Raises ValueError, which says what is wrong with it.
    """
    parts = urlsplit(url.strip())
    port = parts.port
    host = (parts.hostname or "").encode("idna" if not (parts.hostname or "").isascii() else "ascii").decode()
    if parts.scheme not in ("http", "https"):
        raise ValueError("only http:// and https:// addresses can be opened")
    if not host or any(c.isspace() or c < " " for c in host):
        raise ValueError("it names no host")
    place = f"[{host}]" if ":" in host else host
    safe = "%/:=&?~+!$,;'@()*[]|"
    return urlunsplit(
        SplitResult(
            parts.scheme,
            place if port is None else f"{place}:{port}",
            quote(parts.path or "/", safe),
            quote(parts.query, safe),
            "",
        )
    )


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is the sandbox itself."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
