"""Fetch pages and files from the upstreams through the store, and check files against their index's digests."""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import unquote, urlsplit, urlunsplit

from sandbox.network.addresses import Address, closed_kind, is_host_address, parse_address

from .cache import PackageCache
from .links import WEAK, Link
from .store import Page, Store

if TYPE_CHECKING:
    import httpx

    from .pinned_transport import PinnedBackend

log = logging.getLogger(__name__)

CONNECT_SECONDS = 10.0
# An upstream that is silent for this long is given up.
SILENCE_SECONDS = 60.0
# Decompressed. The documents of the largest packages have about a third of that.
MOST_PAGE_BYTES = 96 << 20
MOST_REDIRECTS = 5
# At once and per sandbox.
MOST_REQUESTS = 8


class UpstreamError(Exception):
    """The upstream gave nothing that could be served. ``status`` and ``words`` are for the sandbox."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status
        self.words = words


class Fetcher:
    """Reads through ``store``. Lives in one loop. ``bases`` are the upstreams; no other host gets their credentials."""

    def __init__(self, cache: PackageCache, store: Store, bases: tuple[str, ...]) -> None:
        self._cache = cache
        self._store = store
        self._open = {_origin(base)[1:] for base in bases}
        self._credentials = {_origin(base): user for base in bases if (user := _credentials_in(base)) is not None}
        self._room = asyncio.Semaphore(MOST_REQUESTS)
        self._client: httpx.AsyncClient | None = None
        self._pins: PinnedBackend | None = None

    async def close(self) -> None:
        """Close the connections to the upstreams."""
        if self._client is not None:
            await self._client.aclose()

    async def page(self, url: str, accept: str) -> tuple[Page, str]:
        """Return the page at ``url``, and why it may not be current, or "". Raises UpstreamError."""
        url, key = _without_user(url), f"{_without_user(url)} {accept}"
        known = await asyncio.to_thread(self._store.page, key)
        if known is not None and known.is_fresh(self._cache.fresh_seconds):
            return known, ""
        async with self._store.locked(key):
            known = await asyncio.to_thread(self._store.page, key)
            if known is not None and known.is_fresh(self._cache.fresh_seconds):
                return known, ""
            try:
                page = await self._request_page(url, accept, known)
            except UpstreamError as error:
                if known is None or error.status == 404:
                    raise
                log.warning("the package cache serves the last known page of %s: %s", url, error.words)
                return known, error.words
            await asyncio.to_thread(self._store.keep_page, key, page)
            return page, ""

    async def _request_page(self, url: str, accept: str, known: Page | None) -> Page:
        headers = {"accept": accept, **_conditions(known)}
        async with self._request(url, headers) as answer:
            if answer.status_code == 304 and known is not None:
                return Page(known.body, known.kind, known.etag, known.modified, time.time())
            body = bytearray()
            async for piece in answer.aiter_bytes():
                body += piece
                if len(body) > MOST_PAGE_BYTES:
                    raise UpstreamError(502, f"the page at {url} is larger than {MOST_PAGE_BYTES >> 20} MiB")
            return _page(bytes(body), answer)

    async def file(self, link: Link) -> BinaryIO:
        """Open the file, complete and checked, after fetching it if need be. Raises UpstreamError."""
        key = f"file {link.strong or _without_user(link.url)}"
        file = await self._stored(link, key)
        if file is not None:
            return file
        async with self._store.locked(key):
            return await self._stored(link, key) or await self._fetch(link, key)

    async def _stored(self, link: Link, key: str) -> BinaryIO | None:
        if link.strong is not None:
            return await asyncio.to_thread(self._store.open, link.strong)
        known = await asyncio.to_thread(self._store.page, key)
        if known is None or not known.is_fresh(self._cache.fresh_seconds):
            return None
        return await asyncio.to_thread(self._store.open, known.body.decode())

    async def _fetch(self, link: Link, key: str) -> BinaryIO:
        # Without a strong hash in the index, the upstream decides whether the stored file is current.
        known = None if link.strong else await asyncio.to_thread(self._store.page, key)
        file = None if known is None else await asyncio.to_thread(self._store.open, known.body.decode())
        served: BinaryIO | None = None
        try:
            served = await self._request_file(link, key, None if file is None else known, file)
        except UpstreamError as error:
            if file is None or error.status == 404:
                raise
            log.warning("the package cache serves the last known %s: %s", link.name, error.words)
            served = file
        finally:
            if file is not None and served is not file:
                file.close()
        return served

    async def _request_file(self, link: Link, key: str, known: Page | None, file: BinaryIO | None) -> BinaryIO:
        headers = {"accept-encoding": "identity", **_conditions(known)}
        async with self._request(_without_user(link.url), headers) as answer:
            if answer.status_code == 304 and known is not None and file is not None:
                page = Page(known.body, known.kind, known.etag, known.modified, time.time())
                await asyncio.to_thread(self._store.keep_page, key, page)
                return file
            with self._store.incoming() as part:
                digest = await self._write(link, answer, part)
                part.flush()
                await asyncio.to_thread(self._store.keep_file, Path(part.name), digest)
            if link.strong is None:
                await asyncio.to_thread(self._store.keep_page, key, _page(digest.encode(), answer))
        stored = await asyncio.to_thread(self._store.open, digest)
        if stored is None:
            raise UpstreamError(502, f"{link.name} did not stay in the package cache: its disk fails")
        return stored

    async def _write(self, link: Link, answer: httpx.Response, part: BinaryIO) -> str:
        """Write the file and return the digest to store it by. Raises UpstreamError if it is not what the index says."""
        kinds = [link.strong.partition("-")[0]] if link.strong else ["sha256", *(w for w in WEAK if w in link.digests)]
        digests = {kind: hashlib.new(kind, usedforsecurity=False) for kind in kinds}
        size, most = 0, self._store.max_bytes
        async for piece in answer.aiter_raw():
            size += len(piece)
            if size > most:
                raise UpstreamError(507, f"{link.name} does not fit the package cache: max_bytes is {most}")
            part.write(piece)
            for digest in digests.values():
                digest.update(piece)
        for kind, digest in digests.items():
            named, found = link.digests.get(kind), digest.hexdigest()
            if named is not None and named != found:
                log.warning("%s is not what its index says: %s %s, named %s", link.name, kind, found, named)
                raise UpstreamError(502, f"{link.name} is refused: its {kind} is {found}, and the index says {named}")
        return f"{kinds[0]}-{digests[kinds[0]].hexdigest()}"

    @asynccontextmanager
    async def _request(self, url: str, headers: dict[str, str]) -> AsyncIterator[httpx.Response]:
        """Send a request and yield its answer, a 200, or a 304 to a condition. Raises UpstreamError."""
        import httpx  # takes 100 ms to import

        if self._client is None:
            timeout = httpx.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS)
            from . import pinned_transport

            verify = _trust(self._cache.ca_bundle)
            self._client = httpx.AsyncClient(
                verify=verify,
                timeout=timeout,
                follow_redirects=True,
                max_redirects=MOST_REDIRECTS,
                event_hooks={"request": [self._refuse_closed]},
            )
            self._pins = pinned_transport.PinnedBackend()
            pinned_transport.use(self._pins, self._client, verify)
        try:
            async with self._room, aclosing(await self._send(self._client, url, headers)) as answer:
                conditional = "if-none-match" in headers or "if-modified-since" in headers
                if answer.status_code != 200 and not (answer.status_code == 304 and conditional):
                    status = answer.status_code if answer.status_code in (404, 410) else 502
                    raise UpstreamError(
                        404 if status == 410 else status, f"the upstream answered {answer.status_code} for {url}"
                    )
                yield answer
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UpstreamError(
                502, f"the upstream could not be asked for {url}: {str(error) or type(error).__name__}"
            ) from error
        except OSError as error:  # of the directory
            raise UpstreamError(507, f"the package cache cannot write: {error.strerror or error}") from error

    async def _send(self, client: httpx.AsyncClient, url: str, headers: dict[str, str]) -> httpx.Response:
        """Return the answer, its body unread. Retries once: an upstream may close a connection just as it is reused."""
        import httpx

        user = self._credentials.get(_origin(url))
        auth = httpx.BasicAuth(*user) if user is not None else None
        request = client.build_request("GET", url, headers=headers)
        try:
            return await client.send(request, auth=auth, stream=True)
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
            return await client.send(request, auth=auth, stream=True)

    async def _refuse_closed(self, request: httpx.Request) -> None:
        """Refuse a host without a public address, also in a redirect, unless the cache's owner named it. Raises UpstreamError.

        A page of an index may name any host.
        """
        _, host, port = _origin(str(request.url))
        if (host, port) in self._open or {host, f"{host}:{port}"} & set(self._cache.private_hosts):
            return
        found = await _resolve(host)
        kinds = [
            closed_kind(address) or ("an address of this host" if is_host_address(address) else None) for address in found
        ]
        kind = next((kind for kind in kinds if kind is not None), None)
        if kind is None and found and self._pins is not None and port is not None:
            self._pins.pin(host, port, [str(address) for address in found])  # a second look-up may answer otherwise
        if kind is not None:
            log.warning("the package cache did not ask %s: it is %s, and its owner has not named it", host, kind)
            raise UpstreamError(
                403,
                f"the index leads to {host}, which is {kind}: the user can allow that with GAMEBOX_PACKAGE_HOSTS={host} in the "
                f"environment of the command gamebox, or PackageCache(private_hosts=({host!r},))",
            )


async def _resolve(host: str) -> list[Address]:
    """Return the addresses of a host, or none for an unknown name, which the host's proxy may know."""
    spelled = parse_address(host)
    if spelled is not None:
        return [spelled]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [ipaddress.ip_address(str(each[4][0]).partition("%")[0]) for each in found]


def _page(body: bytes, answer: httpx.Response) -> Page:
    headers = answer.headers
    return Page(
        body, headers.get("content-type", ""), headers.get("etag", ""), headers.get("last-modified", ""), time.time()
    )


def _conditions(known: Page | None) -> dict[str, str]:
    if known is None:
        return {}
    conditions = {"if-none-match": known.etag, "if-modified-since": known.modified}
    return {name: value for name, value in conditions.items() if value}


def _trust(bundle: object) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if bundle is not None:
        context.load_verify_locations(cafile=str(bundle))
    return context


def _without_user(url: str) -> str:
    """Return ``url`` without its user name, password and fragment."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment=""))


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _credentials_in(url: str) -> tuple[str, str] | None:
    parts = urlsplit(url)
    return None if not parts.username else (unquote(parts.username), unquote(parts.password or ""))
