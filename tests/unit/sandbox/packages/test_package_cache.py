"""The package cache over real HTTP, between a client and an index on loopback: what it asks, keeps, checks and refuses."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import os
import socket
import threading
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from sandbox.errors import ErrorCode, SandboxError
from sandbox.packages.cache import PackageCache, describe, variables
from sandbox.packages.cache_server import CacheServer
from sandbox.packages.host_indexes import configured_index, default_index
from sandbox.packages.simple import HTML_TYPE, JSON_TYPE
from tests.servers.packages import npm_package
from tests.servers.upstream import Upstream

WHEEL = b"the bytes of a wheel" * 100
NAME = "small-1.0-py3-none-any.whl"
SHA256 = hashlib.sha256(WHEEL).hexdigest()
FILE = f"/pypi/files/small/{NAME}"
Ask = Callable[[httpx.AsyncClient], Awaitable[object]]


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with Upstream() as made:
        link = f'<a href="/f/{NAME}#sha256={SHA256}" data-requires-python="&gt;=3.8">{NAME}</a>'
        made.files = {"/simple/small/": f"<html>{link}</html>".encode(), f"/f/{NAME}": WHEEL}
        made.files |= npm_package("small-note", "1.2.3", {"index.js": "1"}, made.url)
        yield made


def cache_of(folder: Path, upstream: Upstream, **options: object) -> PackageCache:
    return PackageCache(folder / "cache", f"{upstream.url}/simple", upstream.url, **options)  # type: ignore[arg-type]


async def served(cache: PackageCache, ask: Ask) -> object:
    """What ``ask`` finds with a client of the cache, as one sandbox has it."""
    end = CacheServer(cache, cache.upstreams())
    serving: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.ensure_future(end.serve(reader, writer)))
        await serving[-1]

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as client:
            return await ask(client)
    finally:
        server.close()
        await asyncio.gather(*serving)
        await end.close()


def get(cache: PackageCache, *paths: str, accept: str = "*/*", method: str = "GET") -> list[httpx.Response]:
    """The answers to one sandbox that asks for all of them one after the other."""

    async def ask(client: httpx.AsyncClient) -> list[httpx.Response]:
        return [await client.request(method, path, headers={"accept": accept}) for path in paths]

    found = asyncio.run(served(cache, ask))
    assert isinstance(found, list)
    return found


def kept(folder: Path, part: str = "files") -> list[str]:
    return sorted(path.name for path in (folder / "cache" / part).iterdir())


def test_a_second_sandbox_asks_nobody(upstream: Upstream, tmp_path: Path) -> None:
    cache = cache_of(tmp_path, upstream)
    page, file = get(cache, "/pypi/simple/Small/", FILE)
    assert f'href="/pypi/files/small/{NAME}#sha256={SHA256}"' in page.text
    assert 'data-requires-python="&gt;=3.8"' in page.text
    assert file.content == WHEEL
    assert upstream.asked == ["/simple/small/", f"/f/{NAME}"]
    upstream.stop()
    again = get(cache, "/pypi/simple/small/", FILE, f"{FILE}?x=1")
    assert [one.status_code for one in again] == [200, 200, 200]
    assert again[1].content == WHEEL
    assert "warning" not in again[0].headers
    assert len(upstream.asked) == 2
    assert kept(tmp_path) == [f"sha256-{SHA256}"]


def test_an_upstream_that_closes_the_connection_just_then_is_asked_again(tmp_path: Path) -> None:
    """A busy index that had not closed a used connection yet was sent the next request there: the sandbox got a 502."""
    page = f'<a href="/f/{NAME}#sha256={SHA256}">{NAME}</a>'.encode()
    asked: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        for answers in ([page, None], [WHEEL]):
            with listener.accept()[0] as sock:
                for body in answers:
                    asked.append(sock.recv(65536).partition(b" HTTP/")[0])
                    if body is not None:
                        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        _, file = get(PackageCache(tmp_path / "cache", f"{url}/simple", url), "/pypi/simple/small/", FILE)
        assert (file.status_code, file.content) == (200, WHEEL)
        thread.join()
    assert asked == [b"GET /simple/small/", f"GET /f/{NAME}".encode(), f"GET /f/{NAME}".encode()]


def test_pages_as_json_and_as_html(upstream: Upstream, tmp_path: Path) -> None:
    metadata = b"Metadata-Version: 2.1\n"
    entry = {
        "filename": NAME, "url": f"../../f/{NAME}", "hashes": {"sha256": SHA256}, "requires-python": ">=3.8", "size": len(WHEEL),
        "yanked": "broken", "core-metadata": {"sha256": hashlib.sha256(metadata).hexdigest()},
    }  # fmt: skip
    upstream.files["/simple/small/"] = json.dumps({"meta": {"api-version": "1.1"}, "files": [entry]}).encode()
    upstream.files[f"/f/{NAME}.metadata"] = metadata
    upstream.types["/simple/small/"] = JSON_TYPE
    cache = cache_of(tmp_path, upstream)
    page, beside, file = get(cache, "/pypi/simple/small/", f"{FILE}.metadata", FILE, accept=f"{JSON_TYPE}, text/html")
    assert page.headers["content-type"] == JSON_TYPE
    (told,) = page.json()["files"]
    assert told["url"] == FILE
    assert {key: told[key] for key in ("hashes", "requires-python", "size", "yanked", "core-metadata")} == {
        key: entry[key] for key in ("hashes", "requires-python", "size", "yanked", "core-metadata")
    }
    assert beside.content == metadata
    assert file.content == WHEEL
    (html,) = get(cache, "/pypi/simple/small/", accept=HTML_TYPE)
    assert html.headers["content-type"] == HTML_TYPE
    assert 'data-yanked="broken"' in html.text
    assert "data-core-metadata=" in html.text


def test_a_page_is_asked_for_again_when_it_is_not_fresh(upstream: Upstream, tmp_path: Path) -> None:
    cache = cache_of(tmp_path, upstream, fresh_seconds=0)
    get(cache, "/pypi/simple/small/", "/pypi/simple/small/")
    assert upstream.asked == ["/simple/small/"] * 2
    assert upstream.unchanged == ["/simple/small/"]
    upstream.files["/simple/small/"] += b'<a href="/f/other.whl">other.whl</a>'
    assert "other.whl" in get(cache, "/pypi/simple/small/")[0].text


def test_the_last_known_page_is_given_and_said_so(
    upstream: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = cache_of(tmp_path, upstream, fresh_seconds=0)
    get(cache, "/pypi/simple/small/", "/npm/small-note")
    upstream.stop()
    with caplog.at_level(logging.WARNING):
        page, document, unknown = get(cache, "/pypi/simple/small/", "/npm/small-note", "/pypi/simple/other/")
    assert NAME in page.text
    assert "stale" in page.headers["x-gamebox-cache"]
    assert "could not be asked" in document.headers["npm-notice"]
    assert "last known page" in caplog.text
    assert unknown.status_code == 502
    assert "could not be asked" in unknown.reason_phrase


@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_a_file_that_is_not_what_the_index_says_is_refused(kind: str, upstream: Upstream, tmp_path: Path) -> None:
    named = hashlib.new(kind, b"something else").hexdigest()
    upstream.files["/simple/small/"] = f'<a href="/f/{NAME}#{kind}={named}">{NAME}</a>'.encode()
    (answer,) = get(cache_of(tmp_path, upstream), FILE)
    assert answer.status_code == 502
    assert named in answer.text
    assert hashlib.new(kind, WHEEL).hexdigest() in answer.text
    assert kept(tmp_path) == kept(tmp_path, "incoming") == []


def test_half_a_file_is_never_given(upstream: Upstream, tmp_path: Path) -> None:
    cache = cache_of(tmp_path, upstream)
    get(cache, "/pypi/simple/small/")
    upstream.cut_after = 100
    (answer,) = get(cache, FILE)
    assert answer.status_code == 502
    assert kept(tmp_path) == kept(tmp_path, "incoming") == []
    upstream.cut_after = None
    assert get(cache, FILE)[0].content == WHEEL


@pytest.mark.parametrize("damaged", [b"changed", b"", WHEEL[:-1] + b"?"])
def test_a_damaged_file_is_fetched_again(damaged: bytes, upstream: Upstream, tmp_path: Path) -> None:
    cache = cache_of(tmp_path, upstream)
    get(cache, FILE)
    path = tmp_path / "cache/files" / f"sha256-{SHA256}"
    path.write_bytes(damaged)
    assert get(cache, FILE)[0].content == WHEEL
    assert path.read_bytes() == WHEEL
    assert upstream.count(NAME) == 2


def test_a_damaged_page_is_fetched_again(upstream: Upstream, tmp_path: Path) -> None:
    cache = cache_of(tmp_path, upstream)
    get(cache, "/pypi/simple/small/")
    (name,) = kept(tmp_path, "pages")
    path = tmp_path / "cache/pages" / name
    path.write_bytes(path.read_bytes().replace(b"small", b"evil!"))
    assert "evil" not in get(cache, "/pypi/simple/small/")[0].text
    assert upstream.count("/simple/small/") == 2


def test_parallel_requests_fetch_once(upstream: Upstream, tmp_path: Path) -> None:
    cache = cache_of(tmp_path, upstream)
    upstream.delay_seconds = 0.2
    sizes: list[int] = []

    async def ask(client: httpx.AsyncClient) -> None:
        answers = await asyncio.gather(*(client.get(FILE) for _ in range(5)))
        sizes.extend(len(one.content) for one in answers)

    # Locks are of open files: threads with a store of their own are to each other as processes are.
    threads = [threading.Thread(target=lambda: asyncio.run(served(cache, ask))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sizes == [len(WHEEL)] * 15
    assert upstream.count(NAME) == 1
    assert upstream.count("/simple/small/") == 1


def test_what_was_not_used_for_longest_goes_first(upstream: Upstream, tmp_path: Path) -> None:
    links = []
    for name in ("a-1.whl", "b-1.whl", "c-1.whl"):
        content = name.encode() * 20_000
        upstream.files[f"/f/{name}"] = content
        links.append(f'<a href="/f/{name}#sha256={hashlib.sha256(content).hexdigest()}">{name}</a>')
    upstream.files["/simple/small/"] = "".join(links).encode()
    cache = cache_of(tmp_path, upstream, max_bytes=350_000)
    get(cache, "/pypi/files/small/a-1.whl", "/pypi/files/small/b-1.whl", "/pypi/files/small/a-1.whl")
    get(cache, "/pypi/files/small/c-1.whl", "/pypi/files/small/a-1.whl")
    assert len(kept(tmp_path)) == 2
    assert upstream.count("a-1.whl") == 1
    get(cache, "/pypi/files/small/b-1.whl")
    assert upstream.count("b-1.whl") == 2


def test_a_file_larger_than_the_cache_is_refused_in_words(upstream: Upstream, tmp_path: Path) -> None:
    (answer,) = get(cache_of(tmp_path, upstream, max_bytes=1000), FILE)
    assert answer.status_code == 507
    assert "max_bytes is 1000" in answer.text
    assert kept(tmp_path) == kept(tmp_path, "incoming") == []


def test_what_a_dead_process_left_is_thrown_away(upstream: Upstream, tmp_path: Path) -> None:
    cache = cache_of(tmp_path, upstream)
    left = cache.prepare_directory() / "incoming" / "left"
    left.write_bytes(b"half")
    os.utime(left, (1, 1))
    get(cache, FILE)
    assert kept(tmp_path, "incoming") == []


@pytest.mark.exhaustive
def test_large_files_are_not_held_in_memory(upstream: Upstream, tmp_path: Path) -> None:
    content = bytes(48 << 20)
    upstream.files[f"/f/{NAME}"] = content
    digest = hashlib.sha256(content).hexdigest()
    upstream.files["/simple/small/"] = f'<a href="/f/{NAME}#sha256={digest}">{NAME}</a>'.encode()
    size = 0

    async def ask(client: httpx.AsyncClient) -> None:
        nonlocal size
        async with client.stream("GET", FILE) as answer:
            async for piece in answer.aiter_raw():
                size += len(piece)

    tracemalloc.start()
    try:
        asyncio.run(served(cache_of(tmp_path, upstream), ask))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size == len(content)
    assert peak < 24 << 20


def test_a_file_without_a_strong_hash_is_as_fresh_as_a_page(upstream: Upstream, tmp_path: Path) -> None:
    upstream.files["/simple/small/"] = f'<a href="/f/{NAME}">{NAME}</a>'.encode()
    get(cache_of(tmp_path, upstream), FILE, FILE)
    assert upstream.count(NAME) == 1
    looks_again = cache_of(tmp_path, upstream, fresh_seconds=0)
    assert get(looks_again, FILE)[0].content == WHEEL
    assert upstream.unchanged.count(f"/f/{NAME}") == 1
    upstream.files[f"/f/{NAME}"] = b"built again"
    assert get(looks_again, FILE)[0].content == b"built again"
    upstream.stop()
    assert get(looks_again, FILE)[0].content == b"built again"


def test_npm(upstream: Upstream, tmp_path: Path) -> None:
    upstream.files |= npm_package("@scope/left", "2.0.0", {"index.js": "2"}, upstream.url)
    upstream.files["/@scope%2Fleft"] = upstream.files["/@scope/left"]
    cache = cache_of(tmp_path, upstream)
    for name, path, file in (
        ("small-note", "small-note", "small-note-1.2.3.tgz"),
        ("@scope/left", "@scope%2fleft", "left-2.0.0.tgz"),
    ):
        if name.startswith("@"):  # as registries name the tarballs of scopes
            body = json.loads(upstream.files["/@scope%2Fleft"])
            body["versions"]["2.0.0"]["dist"]["tarball"] = f"{upstream.url}/@scope/left/-/left-2.0.0.tgz"
            upstream.files["/@scope/left/-/left-2.0.0.tgz"] = upstream.files["/@scope/left/-/@scope/left-2.0.0.tgz"]
            upstream.files["/@scope%2Fleft"] = json.dumps(body).encode()
        document, tarball = get(cache, f"/npm/{path}", f"/npm/{name}/-/{file}")
        (version,) = document.json()["versions"].values()
        assert version["dist"]["tarball"] == f"http://packages.internal/npm/{name}/-/{file}"
        digest = "sha512-" + base64.b64encode(hashlib.sha512(tarball.content).digest()).decode()
        assert version["dist"]["integrity"] == digest
    asked = len(upstream.asked)
    get(cache, "/npm/small-note", "/npm/small-note/-/small-note-1.2.3.tgz")
    # One document as all of it was asked for, one as installing needs it.
    assert len(upstream.asked) == asked
    upstream.files["/small-note/-/small-note-1.2.3.tgz"] = b"another"
    fresh = PackageCache(tmp_path / "other", "", upstream.url)
    assert "is refused" in get(fresh, "/npm/small-note/-/small-note-1.2.3.tgz")[0].text


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/etc/passwd"),
        ("GET", "/pypi/simple/"),
        ("GET", "/pypi/simple/../../x/"),
        ("GET", "/pypi/simple/%2e%2e/"),
        ("GET", "/pypi/simple/a%2fb/"),
        ("GET", "/pypi/simple/a%0d%0aHost:x/"),
        ("GET", "/pypi/simple/http:%2f%2fexample.com/"),
        ("GET", "/pypi/files/small/..%2f..%2fpages"),
        ("GET", f"/pypi/files/small/sha256-{SHA256}"),
        ("GET", "/npm/-/v1/search"),
        ("GET", "/npm/..%2f..%2fx"),
        ("GET", "/npm/@a%2f..%2fb"),
        ("GET", "/npm/small-note/-/other.tgz"),
        ("GET", "/npm/small-note/-/..%2f..%2fx"),
        ("POST", "/npm/-/npm/v1/security/audits"),
        ("PUT", "/npm/small-note"),
        ("DELETE", FILE),
    ],
)
def test_nothing_but_packages_can_be_asked(method: str, path: str, upstream: Upstream, tmp_path: Path) -> None:
    cache = cache_of(tmp_path, upstream)
    get(cache, FILE, "/npm/small-note/-/small-note-1.2.3.tgz")
    known = len(upstream.asked)
    (answer,) = get(cache, path, method=method)
    assert answer.status_code == (404 if method == "GET" else 405)
    assert upstream.asked[known:] == []


def test_head(upstream: Upstream, tmp_path: Path) -> None:
    page, file = get(cache_of(tmp_path, upstream), "/pypi/simple/small/", FILE, method="HEAD")
    assert page.status_code == file.status_code == 200
    assert file.headers["content-length"] == str(len(WHEEL))
    assert file.content == b""


def test_only_what_can_be_fetched_is_named(upstream: Upstream, tmp_path: Path) -> None:
    links = ["file:///etc/passwd", "ftp://example.com/x.whl", "javascript:x.whl", "/f/%2e%2e"]
    upstream.files["/simple/small/"] = "".join(f'<a href="{link}">x</a>' for link in links).encode()
    page, file = get(cache_of(tmp_path, upstream), "/pypi/simple/small/", "/pypi/files/small/passwd")
    assert "href" not in page.text
    assert file.status_code == 404


def test_what_a_page_says_is_escaped(upstream: Upstream, tmp_path: Path) -> None:
    name = '"><script>alert(1)</script>.whl'
    entry = {"filename": name.replace("/", ""), "url": "/f/x.whl", "hashes": {"sha256": '"><script>'}}
    upstream.files["/simple/small/"] = json.dumps({"files": [entry, 7, {"filename": 1}]}).encode()
    upstream.types["/simple/small/"] = JSON_TYPE
    (page,) = get(cache_of(tmp_path, upstream), "/pypi/simple/small/")
    assert "<script>" not in page.text


@pytest.mark.parametrize("body", [b"[]", b"{", b"[" * 100_000])
def test_a_page_that_is_none_is_told_as_that(body: bytes, upstream: Upstream, tmp_path: Path) -> None:
    upstream.files["/simple/small/"] = upstream.files["/small-note"] = body
    upstream.types["/simple/small/"] = JSON_TYPE
    for answer in get(cache_of(tmp_path, upstream), "/pypi/simple/small/", "/npm/small-note"):
        assert answer.status_code == 502
        assert "cannot be read" in answer.text


def test_credentials_go_to_their_own_host_only(upstream: Upstream, tmp_path: Path) -> None:
    with Upstream({f"/f/{NAME}": WHEEL}) as files:
        upstream.files["/simple/small/"] = f'<a href="{files.url}/f/{NAME}#sha256={SHA256}">{NAME}</a>'.encode()
        with_user = upstream.url.replace("http://", "http://me:s3cr3t@")
        cache = PackageCache(tmp_path / "cache", f"{with_user}/simple", "", private_hosts=(files.url.removeprefix("http://"),))
        answers = get(cache, "/pypi/simple/small/", FILE, "/pypi/simple/none/")
        assert files.asked == [f"/f/{NAME}"]
        assert "Authorization" not in files.headers[0]
        expected = "Basic " + base64.b64encode(b"me:s3cr3t").decode()
        assert [one["Authorization"] for one in upstream.headers] == [expected] * 2
        assert [one.status_code for one in answers] == [200, 200, 404]
    assert all("s3cr3t" not in one.text and "s3cr3t" not in str(one.headers) for one in answers)
    assert not any(b"s3cr3t" in path.read_bytes() for path in (tmp_path / "cache").rglob("*") if path.is_file())


def test_an_ecosystem_without_an_upstream_says_so(upstream: Upstream, tmp_path: Path) -> None:
    cache = PackageCache(tmp_path, pypi=f"{upstream.url}/simple", npm="")
    (answer,) = get(cache, "/npm/small-note")
    assert answer.status_code == 404
    assert "no npm registry" in answer.text
    told = variables(cache.upstreams())
    assert told["PIP_INDEX_URL"] == told["UV_DEFAULT_INDEX"] == "http://packages.internal/pypi/simple/"
    assert "npm_config_registry" not in told
    assert describe(cache.upstreams()).strip().startswith("Pip and uv install from a package cache")
    assert "Npm installs from" in describe(PackageCache(tmp_path, pypi="", npm=f"{upstream.url}/npm").upstreams())
    assert "Pip, uv and npm install from" in describe(replace(cache, npm=f"{upstream.url}/npm").upstreams())


def test_what_pip_says_of_its_index() -> None:
    configured = (
        "global.index-url='https://one.example.com/simple'\ninstall.index-url='https://two.example.com/'\nbroken\n"
    )
    assert configured_index(configured) == "https://two.example.com/"
    assert configured_index(f"{configured}:env:.index-url='https://three.example.com/'") == "https://three.example.com/"
    assert configured_index("global.cert='/x'") is None
    help_text = (
        "  -i, --index-url <url>  Base URL (default\n       https://four.example.com/simple). This should point to"
    )
    assert default_index(help_text) == "https://four.example.com/simple"


@pytest.mark.parametrize(
    "options",
    [
        {"pypi": "index.example.com"},
        {"npm": "file:///tmp"},
        {"max_bytes": 0},
        {"max_bytes": float("inf")},
        {"fresh_seconds": -1},
        {"fresh_seconds": float("inf")},
        {"ca_bundle": "/none"},
    ],
)
def test_options_that_are_no_good(options: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(SandboxError) as caught:
        PackageCache(tmp_path, **options)  # type: ignore[arg-type]
    assert caught.value.code is ErrorCode.invalid_configuration


def test_a_directory_that_others_write_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(SandboxError, match="Others may write"):
        PackageCache(tmp_path, "https://index.example.com", "").prepare_directory()


def test_no_index_at_all_is_told(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="No package index"):
        PackageCache(tmp_path, "", "").upstreams()


# --- where an index may lead: B14 ------------------------------------------------------------------
@pytest.fixture
def elsewhere() -> Iterator[Upstream]:
    """A server on loopback that is not the index, and has what nobody may read."""
    with Upstream() as made:
        made.files = {f"/{NAME}": WHEEL, "/secret": b"of the host"}
        yield made


def leading_to(upstream: Upstream, url: str) -> None:
    upstream.files["/simple/small/"] = f'<a href="{url}#sha256={SHA256}">{NAME}</a>'.encode()


@pytest.mark.exhaustive
def test_b14_a_page_cannot_lead_to_addresses_of_the_host(upstream: Upstream, elsewhere: Upstream, tmp_path: Path) -> None:
    port = elsewhere.url.rpartition(":")[2]
    hosts = [f"{host}:{port}" for host in ("127.0.0.1", "localhost", "2130706433", "[::1]", "[::ffff:127.0.0.1]")]
    hosts += ["169.254.169.254", "10.0.0.1", "192.168.0.1", "0.0.0.0", "[fe80::1]"]
    cache = cache_of(tmp_path, upstream, fresh_seconds=0)
    for host in hosts:
        leading_to(upstream, f"http://{host}/{NAME}")
        page, file = get(cache, "/pypi/simple/small/", FILE)
        assert page.status_code == 200
        assert file.status_code == 403, host
        assert "private_hosts=" in file.text
        assert "GAMEBOX_PACKAGE_HOSTS=" in file.text  # for who started it on the command line
    assert elsewhere.asked == []


def test_b14_a_redirect_cannot_lead_there_either(upstream: Upstream, elsewhere: Upstream, tmp_path: Path) -> None:
    upstream.redirects = {f"/f/{NAME}": f"{elsewhere.url}/{NAME}"}
    _, file = get(cache_of(tmp_path, upstream), "/pypi/simple/small/", FILE)
    assert (file.status_code, elsewhere.asked) == (403, [])


@pytest.mark.parametrize("port", [True, False])
def test_b14_the_owner_can_name_a_host_of_files(upstream: Upstream, elsewhere: Upstream, tmp_path: Path, port: bool) -> None:
    leading_to(upstream, f"{elsewhere.url}/{NAME}")
    named = elsewhere.url.removeprefix("http://") if port else "127.0.0.1"
    _, file = get(cache_of(tmp_path, upstream, private_hosts=(named,)), "/pypi/simple/small/", FILE)
    assert (file.status_code, file.content) == (200, WHEEL)


def test_b14_hosts_are_a_tuple(tmp_path: Path) -> None:
    for wrong in ("files.example.com", (1,), ("",)):
        with pytest.raises(SandboxError, match="private_hosts"):
            PackageCache(tmp_path, private_hosts=wrong)  # type: ignore[arg-type]
