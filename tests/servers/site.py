"""An HTTP(S) server of a few files and redirects on the host's loopback, which notes what it is asked."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, ClassVar, Self


@dataclass(frozen=True)
class Asked:
    """One request as it arrived; ``host`` is its Host header."""

    method: str
    host: str
    path: str
    headers: Mapping[str, str]


class Site:
    """Serves ``files`` by path, and ``redirects`` to URLs; over TLS with ``context``. Use it as a context manager."""

    def __init__(
        self,
        files: Mapping[str, bytes] | None = None,
        redirects: Mapping[str, str] | None = None,
        context: ssl.SSLContext | None = None,
        handler: type[SiteHandler] | None = None,
        address: str = "127.0.0.1",
    ) -> None:
        self.files = dict(files or {})
        self.redirects = dict(redirects or {})
        self.asked: list[Asked] = []
        self._server = _Server((address, 0), handler or SiteHandler, self, context)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="site", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join(5)
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a client that holds its connection holds up nobody
    request_queue_size = 128

    def __init__(
        self, address: tuple[str, int], handler: type[SiteHandler], site: Site, context: ssl.SSLContext | None
    ) -> None:
        self.site = site
        self.context = context
        super().__init__(address, handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients of these tests hang up, distrust certificates and talk nonsense: that is theirs to see."""


class SiteHandler(BaseHTTPRequestHandler):
    """Answers from the site's files."""

    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = 30
    types: ClassVar[Mapping[str, str]] = {".json": "application/json", ".html": "text/html"}

    def setup(self) -> None:
        """See ``BaseRequestHandler``: the handshake is done here, in the connection's own thread."""
        if self.server.context is not None:
            self.request.settimeout(self.timeout)
            self.request = self.server.context.wrap_socket(self.request, server_side=True)
        super().setup()

    def finish(self) -> None:
        """See ``BaseRequestHandler``."""
        super().finish()
        if self.server.context is not None:
            self.request.close()

    def note(self) -> str:
        """Notes the request; answers its path, plain and without the query."""
        site = self.server.site
        site.asked.append(Asked(self.command, self.headers.get("Host", ""), self.path, dict(self.headers)))
        return self.path.partition("?")[0].replace("/./", "/")

    def do_GET(self) -> None:
        """A file, a redirect or 404."""
        path = self.note()
        site = self.server.site
        if path in site.redirects:
            self.send_response(302)
            self.send_header("Location", site.redirects[path])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        content = site.files.get(path)
        body = b"not here\n" if content is None else content
        self.send_response(404 if content is None else 200)
        ending = path[path.rfind(".") :]
        kind = "text/html" if path.endswith("/") else self.types.get(ending, "application/octet-stream")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815  as http.server calls it

    def log_message(self, *args: Any) -> None:
        """Requests are in ``Site.asked``."""
