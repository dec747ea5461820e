"""The ports of a sandbox: where they are, whether everybody may reach them, and tokens for those that are private."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import Field

from sandbox.service.clock import iso, now
from sandbox.service.fleet.live_sandbox import LiveSandbox
from sandbox.service.house import Manager, Reader, User, house_of, sandbox_of
from sandbox.service.http.bodies import Body, read_body
from sandbox.service.http.hosts import parse_host
from sandbox.service.http.payloads.reading import body_of
from sandbox.service.http.problems import Problem, ProblemCode
from sandbox.service.ports.headers import TOKEN_PARAMETER
from sandbox.service.ports.public import close_port, open_port

router = APIRouter(tags=["ports"])
BODY_BYTES = 1 << 12
TOKEN_SECONDS, MOST_TOKEN_SECONDS = 3600.0, 86400.0


class ChangePort(Body):
    """Who may reach a port."""

    public: bool = Field(description="Whether everybody may, or only those with a key or a token.")


class CreateToken(Body):
    """A token that is asked for."""

    expires_seconds: float = Field(TOKEN_SECONDS, ge=1, le=MOST_TOKEN_SECONDS, description="Time for which it is valid.")


@router.get("/v1/sandboxes/{sandbox_id}/ports")
async def list_ports(request: Request, caller: Reader, sandbox_id: str) -> dict[str, Any]:
    """List the ports that everybody may reach. All others are private."""
    live = sandbox_of(request, caller, sandbox_id)
    return {"items": [_port_data(request, live, each) for each in sorted(live.public_ports)], "next_cursor": None}


@router.get("/v1/sandboxes/{sandbox_id}/ports/{port}")
async def get_port(request: Request, caller: Reader, sandbox_id: str, port: str) -> dict[str, Any]:
    """Return where a port is, whether or not anything listens there."""
    return _port_data(request, sandbox_of(request, caller, sandbox_id), port_of(port))


@router.put("/v1/sandboxes/{sandbox_id}/ports/{port}")
async def change_port(request: Request, caller: Manager, sandbox_id: str, port: str) -> dict[str, Any]:
    """Let everybody reach a port, or only those with a key or a token."""
    live, number = sandbox_of(request, caller, sandbox_id), port_of(port)
    body = read_body(ChangePort, await body_of(request, BODY_BYTES))
    await (open_port if body.public else close_port)(house_of(request), live, number)
    return _port_data(request, live, number)


@router.delete("/v1/sandboxes/{sandbox_id}/ports/{port}", status_code=204)
async def make_private(request: Request, caller: Manager, sandbox_id: str, port: str) -> Response:
    """Have a port be private, and cut the connections of those who came because it was not."""
    await close_port(house_of(request), sandbox_of(request, caller, sandbox_id), port_of(port))
    return Response(status_code=204)


@router.post("/v1/sandboxes/{sandbox_id}/ports/{port}/tokens", status_code=201)
async def create_token(request: Request, caller: User, sandbox_id: str, port: str) -> dict[str, Any]:
    """Make a token for a private port. Only this answer has it; it ends with the key that asks for it, too."""
    live, number = sandbox_of(request, caller, sandbox_id), port_of(port)
    body = read_body(CreateToken, await body_of(request, BODY_BYTES))
    expires_at = now() + body.expires_seconds
    token = house_of(request).tokens.make(live.record.id, number, caller.key, expires_at)
    found = _port_data(request, live, number)
    return {**found, "token": token, "expires_at": iso(expires_at), "browser_url": f"{found['url']}?{TOKEN_PARAMETER}={token}"}


def port_of(text: str) -> int:
    """Return the number of a port. Raises Problem."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and 0 < int(text) < 65536):
        raise Problem(422, ProblemCode.invalid_query, f"{text[:20]!r} is not a port.", "Give a number from 1 to 65535.")
    return int(text)


def _port_data(request: Request, live: LiveSandbox, port: int) -> dict[str, Any]:
    """Return what is answered of a port. Its address has the port of this request: both come the same way."""
    host = parse_host(request.headers.get("host", ""))
    own = "" if host is None or host.port is None else f":{host.port}"
    name = f"{port}-{live.record.id}.{house_of(request).settings.domain}{own}"
    return {"port": port, "public": port in live.public_ports, "url": f"{request.scope['scheme']}://{name}/"}
