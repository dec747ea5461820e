"""Respond to requests for packages: with a page of an index, or with a file that such a page names."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from dataclasses import field
from typing import BinaryIO
from urllib.parse import unquote

from sandbox.frozen import dataclass

from . import npm, simple
from .cache import URL, Upstreams
from .fetching import Fetcher, UpstreamError

log = logging.getLogger(__name__)

_STALE = "The index could not be asked; this is what it said last."


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP response. Its body is ``text``, or the whole of ``file``, which the sender closes."""

    status: int
    kind: str
    text: bytes = b""
    file: BinaryIO | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def error_response(status: int, words: str) -> Response:
    """Return a response that says in words what is wrong."""
    return Response(status, "text/plain; charset=utf-8", words.encode("utf-8", "replace") + b"\n")


class Responder:
    """Responds to the requests of one sandbox. It sends nothing of a request upstream but a valid package name."""

    def __init__(self, upstreams: Upstreams, fetcher: Fetcher) -> None:
        self._upstreams = upstreams
        self._fetcher = fetcher

    async def respond(self, path: str, accept: str) -> Response:
        """Return the response to a GET of ``path``, which is percent-encoded and has no query."""
        plain = unquote(path)
        try:
            if match := re.fullmatch(r"/pypi/simple/([^/]+)/?", plain):
                return await self._simple_page(match.group(1), accept)
            if match := re.fullmatch(r"/pypi/files/([^/]+)/([^/]+)", plain):
                return await self._python_file(match.group(1), match.group(2))
            if match := re.fullmatch(r"/npm/((?:@[^/]+/)?[^/]+)/-/([^/]+)", plain):
                return await self._npm_tarball(match.group(1), match.group(2))
            if match := re.fullmatch(r"/npm/((?:@[^/]+/)?[^/]+)", plain):
                return await self._npm_document(match.group(1), accept)
        except UpstreamError as error:
            return error_response(error.status, error.words)
        except OSError as error:
            log.warning("the package cache fails", exc_info=True)
            return error_response(
                507, f"the package cache cannot use its folder on the host: {error.strerror or error}"
            )
        return error_response(
            404, f"{path[:200]!r} is nothing the package cache has: it serves /pypi/simple/NAME/ and /npm/NAME"
        )

    async def _fetch_files(self, name: str) -> tuple[str, simple.Files, str]:
        project = simple.normalize(name)
        if self._upstreams.pypi is None or project is None:
            raise UpstreamError(404, _not_served("Python index", self._upstreams.pypi, "project", name))
        url = f"{self._upstreams.pypi}{project}/"
        page, stale = await self._fetcher.page(url, simple.ACCEPT)
        try:
            return project, await asyncio.to_thread(simple.parse_page, page.body, page.kind, url), stale
        except (ValueError, RecursionError) as error:
            raise UpstreamError(502, f"the upstream's page of {project} cannot be read: {error}") from error

    async def _simple_page(self, name: str, accept: str) -> Response:
        project, files, stale = await self._fetch_files(name)
        folder = f"/pypi/files/{project}"
        if simple.JSON_TYPE in accept:
            return Response(200, simple.JSON_TYPE, simple.as_json(project, files, folder), headers=_staleness(stale))
        kind = simple.HTML_TYPE if simple.HTML_TYPE in accept else "text/html; charset=utf-8"
        return Response(200, kind, simple.as_html(project, files, folder), headers=_staleness(stale))

    async def _python_file(self, name: str, file_name: str) -> Response:
        project, files, _ = await self._fetch_files(name)
        link = simple.find_link(files, file_name)
        if link is None:
            raise UpstreamError(404, f"the index names no file {file_name[:200]!r} of {project}")
        return Response(200, "application/octet-stream", file=await self._fetcher.file(link))

    async def _npm_document(self, name: str, accept: str) -> Response:
        kind = npm.SHORT_TYPE if npm.SHORT_TYPE in accept else npm.FULL_TYPE
        document, stale = await self._fetch_document(name, kind)
        body = await asyncio.to_thread(npm.write_document, document, f"{URL}/npm/{name}/-")
        notice = {"npm-notice": _STALE} if stale else {}
        return Response(200, kind, body, headers=_staleness(stale) | notice)

    async def _fetch_document(self, name: str, kind: str) -> tuple[dict[str, object], str]:
        if self._upstreams.npm is None or npm.package_name(name) is None:
            raise UpstreamError(404, _not_served("npm registry", self._upstreams.npm, "package", name))
        url = f"{self._upstreams.npm}{npm.registry_path(name)}"
        accept = kind if kind == npm.FULL_TYPE else f"{npm.SHORT_TYPE}, {npm.FULL_TYPE};q=0.8"
        page, stale = await self._fetcher.page(url, accept)
        try:
            return await asyncio.to_thread(npm.parse_document, page.body, url), stale
        except (ValueError, RecursionError) as error:
            raise UpstreamError(502, f"the upstream's document of {name} cannot be read: {error}") from error

    async def _npm_tarball(self, name: str, file_name: str) -> Response:
        document, _ = await self._fetch_document(name, npm.SHORT_TYPE)
        link = npm.find_link(document, file_name)
        if link is None:
            raise UpstreamError(404, f"the registry names no file {file_name[:200]!r} of {name}")
        return Response(200, "application/octet-stream", file=await self._fetcher.file(link))


def _not_served(what: str, base: str | None, kind: str, name: str) -> str:
    if base is None:
        return f"the package cache has no {what}: the owner of this sandbox can name one"
    return f"{name[:200]!r} is not the name of a {kind}"


def _staleness(why: str) -> dict[str, str]:
    """Return headers that mark a stale page. RFC 9111 has dropped Warning without a successor; clients may ignore both."""
    return {"Warning": '110 - "Response is Stale"', "X-Gamebox-Cache": f"stale: {_STALE}"} if why else {}
