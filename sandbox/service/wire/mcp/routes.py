"""The address of MCP, whose requests the SDK answers once their callers are known."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sandbox.service.house import house_of, user
from sandbox.service.http.hosts import parse_host
from sandbox.service.http.problems import Problem, ProblemCode, not_allowed
from sandbox.service.operators.facts import note

PATH = "/mcp"
METHODS = ("DELETE", "GET", "POST")
# Nothing else is at this address: other methods are answered, too.
_ALL = [*METHODS, "HEAD", "OPTIONS", "PATCH", "PUT"]


async def answer(request: Request) -> Response:
    """Answer a request of an MCP client. Raises Problem."""
    note(request.scope, tag="mcp", route=PATH, changes=request.method == "DELETE")  # of a call, the tool says it
    if request.method not in METHODS:
        raise not_allowed(request.method, PATH, METHODS)
    caller = await user(request)
    house = house_of(request)
    origin, host = request.headers.get("origin"), parse_host(request.headers.get("host", ""))
    if origin is not None and (host is None or not house.hosts.is_allowed_origin(origin, host, request.scope["scheme"])):
        raise Problem(
            403,
            ProblemCode.origin_refused,
            f"Pages of {origin!r:.200} may not use this service.",
            "The operator can add the origin to allowed_origins.",
        )
    sessions = await house.mcp.get()
    if sessions is None:
        raise Problem(
            501, ProblemCode.route_not_found, "This service has no MCP.", "The operator can install it: pip install 'gamebox[mcp]'."
        )
    response: Response = sessions.response(request, caller)
    return response


route = Route(PATH, answer, methods=_ALL, name="message")
