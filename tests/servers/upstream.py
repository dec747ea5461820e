"""A package index on the host's loopback that knows ETags, counts what it is asked, and can be made to misbehave."""

from __future__ import annotations

import hashlib
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


class Upstream:
    """Serves ``files`` by path. Use it as a context manager; ``stop`` ends it before that."""

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self.files = dict(files or {})
        self.types: dict[str, str] = {}
        self.redirects: dict[str, str] = {}
        # Paths as they were asked, those answered with 304, and the headers of each request.
        self.asked: list[str] = []
        self.unchanged: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.cut_after: int | None = None
        self.delay_seconds = 0.0
        self.etags = True
        self._server = _Server(("127.0.0.1", 0), _Handler, self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Nothing answers any more."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join(5)
            self._server.server_close()

    def count(self, ending: str) -> int:
        """How often a path with that ending was asked."""
        return sum(path.endswith(ending) for path in list(self.asked))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], handler: type[_Handler], upstream: Upstream) -> None:
        self.upstream = upstream
        super().__init__(address, handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients hang up."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        upstream = self.server.upstream
        upstream.asked.append(self.path)
        upstream.headers.append(dict(self.headers))
        time.sleep(upstream.delay_seconds)
        if self.path in upstream.redirects:
            self.send_response(302)
            self.send_header("Connection", "close")
            self.send_header("Location", upstream.redirects[self.path])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        content = upstream.files.get(self.path)
        etag = f'"{hashlib.sha256(content or b"").hexdigest()[:16]}"'
        if content is not None and upstream.etags and self.headers.get("If-None-Match") == etag:
            upstream.unchanged.append(self.path)
            self.send_response(304)
            self.send_header("Connection", "close")
            self.end_headers()
            return
        body = b"not here\n" if content is None else content
        self.send_response(404 if content is None else 200)
        self.send_header("Connection", "close")  # said, for a client would use it again until it sees it closed
        kind = "text/html" if self.path.endswith("/") else "application/octet-stream"
        self.send_header("Content-Type", upstream.types.get(self.path, kind))
        self.send_header("Content-Length", str(len(body)))
        if content is not None and upstream.etags:
            self.send_header("ETag", etag)
        self.end_headers()
        self.wfile.write(body[: upstream.cut_after])

    def log_message(self, *args: Any) -> None:
        """Requests are in ``Upstream.asked``."""
