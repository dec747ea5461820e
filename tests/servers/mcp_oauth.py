"""An MCP server that wants a token, and the authorization server that gives it: OAuth's authorization code with PKCE."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import secrets
import threading
import time
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlencode, urlsplit


class Handler(http.server.BaseHTTPRequestHandler):
    """Requests as methods of ``owner``: a function per method and path."""

    protocol_version = "HTTP/1.1"
    owner: Listener

    def do_GET(self) -> None:
        """See the base class."""
        self._answer("GET", b"")

    def do_POST(self) -> None:
        """See the base class."""
        self._answer("POST", self.rfile.read(int(self.headers.get("content-length", "0"))))

    def _answer(self, method: str, body: bytes) -> None:
        self.owner.requests.append(f"{method} {urlsplit(self.path).path}")
        status, headers, content = self.owner.answer(method, self.path, dict(self.headers.items()), body)
        data = json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


Answer = tuple[int, dict[str, str], Any]


class Listener:
    """A server on loopback, within its context."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"owner": self}))
        self._server.daemon_threads = True
        self.origin = f"http://127.0.0.1:{self._server.server_address[1]}"

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        """Answer a request."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


class Authority(Listener):
    """The authorization server. ``lifetime`` is that of an access token in seconds; ``denies`` makes the user refuse."""

    def __init__(self) -> None:
        super().__init__()
        self.lifetime = 3600.0
        self.denies = False
        self.clients: dict[str, list[str]] = {}
        self.codes: dict[str, dict[str, str]] = {}
        self.tokens: dict[str, float] = {}
        self.refresh_tokens: set[str] = set()
        self.granted: list[str] = []

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        """See the base class."""
        target = urlsplit(path)
        form = {name: values[0] for name, values in parse_qs(body.decode() or target.query).items()}
        if target.path == "/.well-known/oauth-authorization-server":
            endpoints = {
                "authorization_endpoint": "authorize",
                "token_endpoint": "token",
                "registration_endpoint": "register",
            }
            supported = {"response_types_supported": ["code"], "code_challenge_methods_supported": ["S256"]}
            named = {name: f"{self.origin}/{path}" for name, path in endpoints.items()}
            return 200, {}, {"issuer": self.origin, **named, **supported}
        if (method, target.path) == ("POST", "/register"):
            client = secrets.token_hex(4)
            asked = json.loads(body)
            self.clients[client] = asked["redirect_uris"]
            return 201, {}, {**asked, "client_id": client, "token_endpoint_auth_method": "none"}
        if target.path == "/authorize":
            return self._authorize(form)
        if (method, target.path) == ("POST", "/token"):
            return self._token(form)
        return 404, {}, {}

    def _authorize(self, form: dict[str, str]) -> Answer:
        if (
            form["redirect_uri"] not in self.clients.get(form["client_id"], ())
            or form["code_challenge_method"] != "S256"
        ):
            return 400, {}, {"error": "invalid_request"}
        code = secrets.token_hex(8)
        self.codes[code] = form
        result = {"error": "access_denied"} if self.denies else {"code": code}
        back = urlencode({**result, "state": form["state"], "iss": self.origin})
        return 302, {"location": f"{form['redirect_uri']}?{back}"}, {}

    def _token(self, form: dict[str, str]) -> Answer:
        self.granted.append(form["grant_type"])
        if form["grant_type"] == "refresh_token":
            if form["refresh_token"] not in self.refresh_tokens:
                return 400, {}, {"error": "invalid_grant"}
            self.refresh_tokens.remove(form["refresh_token"])
        else:
            asked = self.codes.pop(form["code"], None)
            digest = hashlib.sha256(form["code_verifier"].encode()).digest()
            challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
            if asked is None or asked["code_challenge"] != challenge or asked["redirect_uri"] != form["redirect_uri"]:
                return 400, {}, {"error": "invalid_grant"}
        access, refresh = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        self.tokens[access] = time.time() + self.lifetime
        self.refresh_tokens.add(refresh)
        given = {
            "access_token": access,
            "token_type": "Bearer",
            "expires_in": int(self.lifetime),
            "refresh_token": refresh,
        }
        return 200, {}, given


class Protected(Listener):
    """The MCP server, of version 2025-11-25. One tool tells what token it was called with, one answers two calls at once."""

    def __init__(self, authority: Authority) -> None:
        super().__init__()
        self.authority = authority
        self.url = f"{self.origin}/mcp"
        self._pair = threading.Barrier(2)
        self.floods = False

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        """See the base class."""
        metadata = "/.well-known/oauth-protected-resource/mcp"
        if path == metadata and self.floods:
            return 200, {}, {"resource": "x" * (2 << 20)}
        if path == metadata:
            return 200, {}, {"resource": self.url, "authorization_servers": [self.authority.origin]}
        given = {name.lower(): value for name, value in headers.items()}.get("authorization", "")
        if self.authority.tokens.get(given.removeprefix("Bearer "), 0) < time.time():
            return 401, {"www-authenticate": f'Bearer resource_metadata="{self.origin}{metadata}"'}, {}
        asked = json.loads(body)
        if "id" not in asked:
            return 202, {}, {}
        results: dict[str, Any] = {
            "initialize": {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "serverInfo": {"name": "p", "version": "1"},
            },
            "tools/list": {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("token", "pair")]},
            "tools/call": {"content": [{"type": "text", "text": f"called with {given}"}]},
        }
        if asked.get("params", {}).get("name") == "pair":
            self._pair.wait(20)
        answer = results.get(asked["method"])
        result = {"result": answer} if answer else {"error": {"code": -32601, "message": "Method not found"}}
        return 200, {}, {"jsonrpc": "2.0", "id": asked["id"], **result}
