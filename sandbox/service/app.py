"""The ASGI application: routes, problems, request ids, and what starts and ends with it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandbox.errors import SandboxError

from .fleet.broadcast import Broadcast
from .fleet.fleet import Fleet
from .house import House
from .http.gate import Gate
from .http.heads import answer_head, header_problem, path_problem
from .http.payloads.reading import is_request_id, new_request_id
from .http.payloads.slow_bodies import TimedBody
from .http.problems import Problem, ProblemCode, draining, not_allowed, problem_of
from .http.route_table import methods_of
from .keys import Keys
from .operators.facts import note
from .operators.observation import Observation
from .operators.observer import Observer
from .operators.tracing import Tracing
from .ports.public import load_public_ports
from .routes import (
    checkpoints,
    connections,
    events,
    files,
    health,
    metrics,
    openapi,
    operations,
    ports,
    sandboxes,
    terminals,
    tunnels,
)
from .routes.accounts import audit, keys, quota, secrets, tenants
from .settings import Settings
from .store.database import Database
from .templates.templates import Templates
from .tenants.deleting import resume_deletes
from .tenants.metering import Metering
from .tenants.tenants import Tenants
from .wire.e2b import routes as e2b
from .wire.mcp import routes as mcp
from .wire.mcp.first_use import McpSessions
from .wire.swerex import routes as swerex
from .wire.swerex.access import RootPaths

log = logging.getLogger(__name__)

# Threads for what blocks and is not the engine's start of a sandbox: pauses, transfers, the last words of one.
THREADS = 64
# What monitors ask while the service drains.
ANSWERED_TO_THE_END = frozenset({"/healthz", "/readyz", "/metrics", "/openapi.json"})
# How often it is seen whether the keys of open connections are valid still.
LOOK_SECONDS = 15.0


def make_house(settings: Settings, database: Database, tracing: Tracing | None = None) -> House:
    """Put the parts of a service together; with ``tracing``, requests and operations have spans."""
    broadcast, known = Broadcast(), Tenants(settings, database)
    fleet = Fleet(settings, database, broadcast, known)
    observation = Observation(settings, database, fleet.count_states, tracing)
    fleet.watching = observation.watching
    templates = Templates(settings, database, known, fleet)
    return House(settings, database, Keys(database), broadcast, fleet, observation, known, templates)


def make_app(house: House) -> FastAPI:
    """Return the application of a service; its keys and sandboxes are loaded when it starts."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:  # noqa: ARG001
        pool = ThreadPoolExecutor(THREADS, thread_name_prefix="gamebox-service")
        asyncio.get_running_loop().set_default_executor(pool)
        await house.keys.load()
        await house.tenants.load()
        await house.fleet.load()
        await load_public_ports(house)
        await house.templates.load()
        house.observation.audit.begin()
        resume_deletes(house)
        house.fleet.workers.spawn(_end_expired(house))
        house.mcp = McpSessions(house)
        house.ready = True
        yield
        await house.mcp.close()
        await house.templates.close()
        await house.fleet.close()
        await house.observation.audit.close()
        house.database.close()

    app = FastAPI(
        title="Gamebox",
        version=version("gamebox"),
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.house = house
    app.router.routes.append(operations.OperationRoute())
    # The operations are last: their route takes any name.
    for each in (
        *(health, metrics, openapi, audit, keys, tenants, quota, secrets, sandboxes, events, files),
        *(checkpoints, connections, ports, tunnels, terminals, swerex),
        operations,
    ):
        app.router.routes.extend(each.router.routes)  # included, each would be searched through a second layer
    for router in e2b.ROUTERS:
        app.router.routes.extend(router.routes)
    app.router.routes.append(mcp.route)
    app.add_exception_handler(Problem, _problem)
    app.add_exception_handler(SandboxError, _sandbox_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientDisconnect, _client_left)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Exception, _internal_error)
    app.add_middleware(RootPaths)
    app.add_middleware(Metering)
    app.add_middleware(Entrance)
    app.add_middleware(Gate)
    # The last one is the first that a request meets.
    app.add_middleware(Observer, watchers=house.observation.watchers, span=house.observation.span)
    return app


async def _end_expired(house: House) -> None:
    """Cut what was opened with a key that has expired since, again and again."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        house.connections.end_expired(house.keys.is_valid_id)


class Entrance:
    """Gives every request an id, and every answer that id: the client's own, where it sent a valid one.

    It refuses paths that can be read in two ways, and bodies that do not come. While the service drains, it refuses new
    requests: those under way are to end.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        text = given.decode("latin-1")
        ident = text if is_request_id(text) else new_request_id()
        scope.setdefault("state", {})["request_id"] = ident

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("X-Request-Id", ident)
                headers.setdefault("X-Content-Type-Options", "nosniff")
                if scope["path"].startswith("/v1/"):  # a cache before us does not know X-API-Key
                    headers.setdefault("Cache-Control", "no-store")
            await send(message)

        problem = path_problem(scope.get("raw_path") or b"") or header_problem(scope["headers"])
        if problem is None and scope["app"].state.house.draining and scope["path"] not in ANSWERED_TO_THE_END:
            problem = draining()
        if problem is not None:
            note(scope, code=problem.code.value)
            await problem.response(ident)(scope, receive, send_with_id)
        elif scope["path"].endswith(("/stdin", "/StreamInput")):  # a command may wait for its input as long as it runs
            await self._app(scope, receive, send_with_id)
        else:
            timed = TimedBody(receive, send_with_id)
            if scope["method"] == "HEAD":
                await answer_head(self._app, scope, timed.receive, timed.send)
            else:
                await self._app(scope, timed.receive, timed.send)


def _answer(request: Request, problem: Problem) -> Response:
    """Return a problem as the answer to a request, and note its code for the log."""
    note(request.scope, code=problem.code.value)
    return problem.response(str(request.scope["state"].get("request_id", "")))


async def _problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)  # noqa: S101  # it is registered for nothing else
    return _answer(request, error)


async def _sandbox_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, SandboxError)  # noqa: S101
    return _answer(request, problem_of(error))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    path = str(request.scope["path"])
    methods = methods_of(request.app, path, operations.NAMES) if error.status_code == 405 else []
    if methods:
        problem = not_allowed(request.method, path, methods)
    else:
        detail = f"There is no {request.method[:20]} {path[:200]}."
        hint = "GET /openapi.json lists every route."
        problem = Problem(404, ProblemCode.route_not_found, detail, hint)
    return _answer(request, problem)


async def _client_left(request: Request, error: Exception) -> Response:  # noqa: ARG001
    """Nobody reads this but the log: a request whose client has left is no failure of ours."""
    detail = "The client disconnected before the end of its request."
    return _answer(request, Problem(400, ProblemCode.invalid_request, detail, "Send it again."))


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101
    problems = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:10]]
    problem = Problem(422, ProblemCode.invalid_query, f"The request is invalid: {'; '.join(problems)}.", "Correct that.")
    return _answer(request, problem)


async def _internal_error(request: Request, error: Exception) -> Response:
    log.error("a request failed: %s %s", request.method, request.url.path, exc_info=error)
    detail = "The service failed to answer this request."
    hint = "This is a bug in Gamebox: give the operator the request_id, which identifies it in the log."
    return _answer(request, Problem(500, ProblemCode.internal_error, detail, hint))
