"""The first look at a request: what its head says, to whom it goes by its Host, and whether a page may open a WebSocket here."""

from __future__ import annotations

from contextlib import ExitStack

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandbox.service.house import House
from sandbox.service.operators.facts import note
from sandbox.service.ports.proxy import pass_on

from .heads import framing_problem, make_relative
from .hosts import Host, PortName, parse_host, parse_port_name
from .payloads.reading import new_request_id
from .problems import Problem, ProblemCode, draining

# The port at which clients of E2B expect the server that runs in its sandboxes; see ``wire.e2b``.
ENVD_PORT = 49983
ENVD_ROUTES = frozenset({"/files", "/health", "/envs", "/init", "/envd/metrics"})
ENVD_PREFIXES = ("/process.Process/", "/filesystem.Filesystem/", "/files/")
# E2B's clients find its API at api.DOMAIN unless they are told where it is. Nothing else of the service is there: it is a
# neighbour of ports, which pages of strangers come from.
API_LABEL = "api"
API_ROOTS = frozenset(
    ("sandboxes", "snapshots", "templates", "volumes", "volumecontent", "secrets", "teams", "nodes", "v2", "v3")
)
# What an answer says of the name that it comes from, to browsers and to caches: a sandbox has no say in that of the service.
_OF_THE_NAME = frozenset(
    (
        *(b"set-cookie", b"cache-control", b"expires", b"clear-site-data", b"strict-transport-security"),
        *(b"content-security-policy", b"alt-svc", b"service-worker-allowed", b"access-control-allow-origin"),
    )
)
_AS_A_STRANGER = [
    *((b"cache-control", b"no-store"), (b"content-security-policy", b"sandbox")),
    (b"x-content-type-options", b"nosniff"),
]
# On the service's own name this path has its own metrics.
ENVD_PATHS = {"/metrics": "/envd/metrics"}


class Gate:
    """Passes on what is for the service, serves what is for a port of a sandbox, and refuses all else.

    It stands before everything: what goes to a port is no request of ours.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        house: House = scope["app"].state.house
        with ExitStack() as held:
            try:
                held.enter_context(house.client_place((scope.get("client") or ("", 0))[0]))
            except Problem as problem:
                await _refuse(problem, scope, receive, send)
                return
            await self._pass(house, scope, receive, send)

    async def _pass(self, house: House, scope: Scope, receive: Receive, send: Send) -> None:
        make_relative(scope)
        unframed = framing_problem(scope.get("raw_path") or b"", scope["headers"], scope.get("http_version", "1.1"))
        if unframed is not None:
            await unframed.response(new_request_id())(scope, receive, send)
            return
        text = _header(scope, b"host")
        host = None if text is None else parse_host(text)
        name = None if host is None else parse_port_name(host.name, house.settings.domain)
        if name is not None and scope["type"] == "http" and name.port == ENVD_PORT:
            # Not a port of the sandbox: the service answers it. Its other routes are not for this name.
            scope.setdefault("state", {})["envd_sandbox"] = name.sandbox
            scope["path"] = ENVD_PATHS.get(scope["path"], scope["path"])
            if scope["path"] not in ENVD_ROUTES and not scope["path"].startswith(ENVD_PREFIXES):
                await _no_route(scope, f"at port {ENVD_PORT} of a sandbox").response(new_request_id())(scope, receive, send)
                return
            await self._app(scope, receive, send)
            return
        if host is not None and host.name == f"{API_LABEL}.{house.settings.domain}" and scope["type"] == "http":
            if scope["path"].removeprefix("/").partition("/")[0] not in API_ROOTS:
                await _no_route(scope, f"at {host.name}").response(new_request_id())(scope, receive, send)
                return
            await self._app(scope, receive, send)
            return
        if host is not None and name is not None and scope["type"] == "http":
            note(scope, route="port", target=name.sandbox, changes=False)
            await pass_on(house, scope, receive, send, name, host)
            return
        try:
            _check(house, scope, text, host)
        except Problem as problem:
            await _refuse(problem, scope, receive, send)
            return
        if scope["type"] == "http" and (named := _named_port(scope)) is not None and host is not None:
            if isinstance(named, Problem):
                await _refuse(named, scope, receive, send)
                return
            note(scope, route="port", target=named.sandbox, changes=False)
            await pass_on(house, scope, receive, _on_own_name(send), named, host)
            return
        await self._app(scope, receive, send)


def _named_port(scope: Scope) -> PortName | Problem | None:
    """Return the port that the headers of E2B's clients name, None if that is the service itself.

    It spares them a wildcard name. Pages cannot send these headers to another origin.
    """
    port, sandbox = _header(scope, b"e2b-sandbox-port"), _header(scope, b"e2b-sandbox-id")
    if port is None or port == str(ENVD_PORT):
        return None
    found = parse_port_name(f"{port}-{sandbox}.x", "x")
    if found is not None:
        return found
    return Problem(
        400,
        ProblemCode.invalid_query,
        f"The headers E2b-Sandbox-Id and E2b-Sandbox-Port are {str(sandbox)[:60]!r} and {port[:20]!r}.",
        "Send both, with the id of a sandbox and the number of one of its ports, or neither.",
    )


def _on_own_name(send: Send) -> Send:
    """Return a ``send`` for what a server in a sandbox answers on the service's own name: it says nothing of the name itself."""

    async def send_on(message: Message) -> None:
        if message["type"] == "http.response.start":
            kept = [each for each in message["headers"] if each[0].lower() not in _OF_THE_NAME]
            message = {**message, "headers": [*kept, *_AS_A_STRANGER]}
        await send(message)

    return send_on


def _no_route(scope: Scope, where: str) -> Problem:
    """Return the problem of a path that only clients of E2B ask for: by its status, and by words in ``message``."""
    detail = f"Gamebox does not support {scope['method'][:10]} {scope['path'][:200]} {where}."
    found = Problem(501, ProblemCode.route_not_found, detail, "docs/e2b.md says what Gamebox supports of E2B.")
    found.fields = {"code": 501, "message": detail}
    return found


async def _refuse(problem: Problem, scope: Scope, receive: Receive, send: Send) -> None:
    ident = new_request_id()
    note(scope, code=problem.code.value, request_id=ident)
    await problem.response(ident)(scope, receive, send)


def _check(house: House, scope: Scope, text: str | None, host: Host | None) -> None:
    """Raise Problem for a request to another host, and for a WebSocket that a page of another host opens."""
    listener = (scope.get("server") or ("", None))[0]
    if host is None or not house.hosts.is_own(host, listener):
        raise Problem(
            421,
            ProblemCode.wrong_host,
            "The request has no Host." if text is None else f"The host {text[:200]!r} is not a name of this service.",
            "Use an address of the service; its operator can add other names to allowed_hosts.",
            headers={"Connection": "close"},
        )
    if scope["type"] != "websocket":
        return
    scope.setdefault("state", {})["request_id"] = new_request_id()
    origin = _header(scope, b"origin")
    if origin is not None and not house.hosts.is_allowed_origin(origin, host, scope["scheme"]):
        raise Problem(
            403,
            ProblemCode.origin_refused,
            f"A page of {origin[:200]!r} may not open a WebSocket here.",
            "Open it from a page of this host; the operator can add other origins to allowed_origins.",
        )
    if house.draining:
        raise draining()


def _header(scope: Scope, name: bytes) -> str | None:
    found = next((value for each, value in scope["headers"] if each == name), None)
    return None if found is None else found.decode("latin-1")
