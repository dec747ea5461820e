"""Servers on the host's loopback for sandboxes to reach: closed to them unless a rule names 127.0.0.1."""

from __future__ import annotations

import functools
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

# A loopback address of the host that programs in a sandbox do not take for their own.
ELSEWHERE = "127.0.0.2"
BLOCK = b"x" * (1 << 20)


class Pages(BaseHTTPRequestHandler):
    """``/N`` are N bytes; every request is noted in ``server.requests``."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        asked = getattr(self.server, "asked")  # noqa: B009  the type of the server has no such attribute
        asked.append((self.path, dict(self.headers)))
        size = int(self.path.strip("/") or 0)
        self.send_response(200)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        try:
            while size > 0:
                self.wfile.write(BLOCK[:size])
                size -= len(BLOCK)
        except OSError:  # it was cut, as some tests want it
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Not to stderr."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Pages)
        self.asked: list[tuple[str, dict[str, str]]] = []

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def rule(self) -> str:
        return f"127.0.0.1:{self.port}"

    def url(self, size: int = 0) -> str:
        return f"http://127.0.0.1:{self.port}/{size}"


@contextmanager
def serving() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()


def certificate(folder: Path) -> tuple[Path, Path]:
    """A test CA that is a server's certificate as well, for ``ELSEWHERE``: (key, certificate)."""
    key, made = folder / "key.pem", folder / "ca.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-keyout", key, "-out", made, "-subj", "/CN=gamebox test", "-addext", f"subjectAltName=IP:{ELSEWHERE}"],
        check=True, capture_output=True,
    )  # fmt: skip
    return key, made


class Files(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Not to stderr."""


@contextmanager
def serving_files(folder: Path, key: Path, made: Path) -> Iterator[int]:
    """The files of a folder over TLS at ``ELSEWHERE``; the port."""
    with ThreadingHTTPServer((ELSEWHERE, 0), functools.partial(Files, directory=str(folder))) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(made, key)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield int(server.server_address[1])
        server.shutdown()
