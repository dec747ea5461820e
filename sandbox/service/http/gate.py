"""The first look at a request: what its head says, to whom it goes by its Host, and whether a page may open a WebSocket here."""

from __future__ import annotations

from contextlib import ExitStack

from starlette.types import ASGIApp, Receive, Scope, Send

from sandbox.service.house import House
from sandbox.service.operators.facts import note
from sandbox.service.ports.proxy import pass_on

from .heads import framing_problem, make_relative
from .hosts import Host, parse_host, parse_port_name
from .problems import Problem, ProblemCode, draining
from .reading import new_request_id

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
        await self._app(scope, receive, send)


def _no_route(scope: Scope, where: str) -> Problem:
    detail = f"There is no {scope['path'][:200]} {where}."
    return Problem(404, ProblemCode.route_not_found, detail, "Use an address of the service.")


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
