"""A server that tests start in a sandbox, as a program of its own: says what it got, breaks off, streams, talks.

``python3 in_sandbox.py PORT`` listens on the loopback there and prints "ready".
"""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import socketserver
import sys

MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers by the path."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        """Log nothing."""

    def answer(self) -> None:
        """Answer a request of any method."""
        self.close_connection = True
        ways = {"/cut": self.cut, "/none": lambda: None, "/stream": self.stream, "/ws": self.talk, "/413": self.refuse}
        ways.get(self.path, self.describe)()

    do_GET = do_POST = do_HEAD = do_OPTIONS = answer  # noqa: N815

    def body(self) -> bytes:
        """Read the body."""
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        data = b""
        while size := int(self.rfile.readline(), 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def describe(self) -> None:
        """Say what came."""
        body = self.body()
        headers = [(name.lower(), value) for name, value in self.headers.items()]
        found = {"method": self.command, "path": self.path, "headers": headers, "size": len(body)}
        found["digest"] = hashlib.sha256(body).hexdigest()
        data = json.dumps(found).encode()
        self.send_response(200)
        for name, value in (
            ("Set-Cookie", "a=b; Domain=localhost"),
            ("X-Own", "yes"),
            ("Connection", "keep-alive, X-Hop"),
            ("X-Hop", "1"),
            ("Content-Length", str(len(data))),
        ):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def refuse(self) -> None:
        """Answer before the body came."""
        self.send_response(413)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def handle_expect_100(self) -> bool:
        """Refuse a body at /413, and ask for it elsewhere."""
        if self.path != "/413":
            return super().handle_expect_100()
        self.refuse()
        return False

    def cut(self) -> None:
        """Promise more than comes."""
        self.send_response(200)
        self.send_header("Content-Length", "100")
        self.end_headers()
        self.wfile.write(b"half")

    def stream(self) -> None:
        """Send each line back as a chunk before the next one is read."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while size := int(self.rfile.readline(), 16):
            data = self.rfile.read(size)
            self.rfile.readline()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.write(b"0\r\nX-Trailer: 1\r\n\r\n")

    def talk(self) -> None:
        """Agree to a WebSocket, and send back whatever comes, marked."""
        accept = base64.b64encode(hashlib.sha1(self.headers["Sec-WebSocket-Key"].encode() + MAGIC).digest())
        head = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nX-Client: %s\r\n"
        self.wfile.write(head % self.headers.get("X-Forwarded-For", "").encode())
        self.wfile.write(b"Sec-WebSocket-Accept: %s\r\n\r\nfirst" % accept)
        while data := self.request.recv(65536):
            self.wfile.write(b"raw " + data)


class Server(socketserver.ThreadingTCPServer):
    """Many at a time."""

    daemon_threads = allow_reuse_address = True
    request_queue_size = 128


if __name__ == "__main__":
    server = Server(("127.0.0.1", int(sys.argv[1])), Handler)
    print("ready", flush=True)
    server.serve_forever()
