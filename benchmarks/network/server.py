"""The web server that ``comparison`` downloads from and uploads to, in a process of its own so that it shares no interpreter lock.

    server.py ADDRESS... [--certificate FILE]

``GET /N`` are N bytes, ``POST`` takes any number and says how many. Prints one line: the port of http and that of https, the
same on every address; ends with its standard input.
"""

from __future__ import annotations

import argparse
import os
import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BLOCK = bytes(1 << 20)


class Handler(BaseHTTPRequestHandler):
    """Without a copy where there is no TLS."""

    protocol_version = "HTTP/1.1"
    source = os.memfd_create("block")
    os.ftruncate(source, 64 << 20)

    def do_GET(self) -> None:
        """N bytes."""
        left = size = int(self.path.strip("/").partition("?")[0] or 0)
        self.send_response(200)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        try:
            while left > 0:
                left -= self._send(left)
        except OSError:  # the client has gone
            self.close_connection = True

    def _send(self, left: int) -> int:
        if isinstance(self.connection, ssl.SSLSocket):
            self.connection.sendall(BLOCK[:left])
            return min(left, len(BLOCK))
        return os.sendfile(self.connection.fileno(), self.source, 0, min(left, 64 << 20))

    def do_POST(self) -> None:
        """How many bytes came."""
        left = size = int(self.headers["Content-Length"])
        while left > 0:
            left -= len(self.rfile.read1(min(left, 1 << 20)))
        body = str(size).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Not to stderr."""


class Server(ThreadingHTTPServer):
    """Takes crowds, and forgets who leaves in the middle."""

    daemon_threads = True
    request_queue_size = 1024

    def handle_error(self, request: object, client_address: object) -> None:
        """Not to stderr."""


def serve(addresses: list[str], context: ssl.SSLContext | None) -> int:
    """Serve on one free port of all ``addresses``; which."""
    port = 0
    for address in addresses:
        server = Server((address, port), Handler)
        port = server.server_address[1]
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    return port


def main() -> None:
    """Serve until the standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("addresses", nargs="+")
    parser.add_argument("--certificate", required=True, help="a file of key and certificate")
    options = parser.parse_args()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(options.certificate)
    print(serve(options.addresses, None), serve(options.addresses, context), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
