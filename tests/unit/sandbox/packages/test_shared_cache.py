"""One cache for sandboxes that do not trust each other: what one of them does changes nothing for the next."""

from __future__ import annotations

import hashlib
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpcore
import pytest

from tests.servers.upstream import Upstream

from .test_package_cache import FILE, NAME, cache_of, get


def index(upstream: Upstream, content: bytes, *, hashed: bool) -> None:
    """Have an index with one file, whose hash it names or not."""
    fragment = f"#sha256={hashlib.sha256(content).hexdigest()}" if hashed else ""
    upstream.files = {"/simple/small/": f'<a href="/f/{NAME}{fragment}">{NAME}</a>'.encode(), f"/f/{NAME}": content}


def test_the_same_name_at_two_indexes_is_two_packages(tmp_path: Path) -> None:
    """Also where the indexes name no hash, and the operator changes the index of a cache that is in use."""
    for hashed in (True, False):
        with Upstream() as first, Upstream() as second:
            index(first, b"one" * 100, hashed=hashed)
            index(second, b"two" * 100, hashed=hashed)
            for upstream, content in ((first, b"one" * 100), (second, b"two" * 100), (first, b"one" * 100)):
                assert get(cache_of(tmp_path, upstream), "/pypi/simple/small/", FILE)[1].content == content


def test_the_address_that_was_judged_is_the_one_that_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index leads to a host whose name server says something else the second time."""
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    real, answers, dialled = socket.getaddrinfo, ["93.184.216.34", "127.0.0.1"], list[str]()

    def look_up(host: str, port: int, *options: Any, **more: Any) -> Any:
        if host != "flip.example":
            return real(host, port, *options, **more)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (answers.pop(0), port))]

    with Upstream() as upstream, Upstream() as secret:
        secret.files = {f"/{NAME}": b"of the host"}
        index(upstream, b"", hashed=False)
        upstream.files["/simple/small/"] = f'<a href="{secret.url.replace("127.0.0.1", "flip.example")}/{NAME}">{NAME}</a>'.encode()
        cache = cache_of(tmp_path, upstream)
        assert get(cache, "/pypi/simple/small/")[0].status_code == 200
        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        plain = httpcore.AnyIOBackend.connect_tcp

        async def either(self: Any, host: str, *options: Any, **more: Any) -> Any:
            if host.startswith("93."):
                dialled.append(host)
                raise httpcore.ConnectError("nobody is there")
            return await plain(self, host, *options, **more)

        monkeypatch.setattr(httpcore.AnyIOBackend, "connect_tcp", either)
        assert get(cache, FILE)[0].status_code == 502
        assert (dialled, secret.asked) == (["93.184.216.34"], [])


def test_no_request_puts_anything_into_the_cache_but_what_the_index_has(tmp_path: Path) -> None:
    with Upstream() as upstream:
        index(upstream, b"good" * 100, hashed=True)
        cache = cache_of(tmp_path, upstream)
        for method, path in (("PUT", FILE), ("POST", FILE), ("GET", f"{FILE}#sha256=00")):
            get(cache, path, method=method)
        assert get(cache, FILE)[0].content == b"good" * 100
        # Another hash for the same file is another file: one that does not fit it is refused, and the good one stays.
        upstream.files["/simple/small/"] = f'<a href="/f/{NAME}#sha256={"0" * 64}">{NAME}</a>'.encode()
        assert get(replace(cache, fresh_seconds=0), "/pypi/simple/small/", FILE)[1].status_code == 502
        index(upstream, b"good" * 100, hashed=True)
        assert get(replace(cache, fresh_seconds=0), "/pypi/simple/small/", FILE)[1].content == b"good" * 100
