"""One cache for sandboxes that do not trust each other: what one of them does changes nothing for the next."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

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
