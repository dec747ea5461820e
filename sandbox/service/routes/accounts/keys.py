"""Who I am, and the keys of my tenant."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from sandbox.service.clock import now
from sandbox.service.connections import KEY_GONE
from sandbox.service.house import Admin, Reader, house_of
from sandbox.service.http.bodies import CreateKey, read_body
from sandbox.service.http.payloads.reading import body_of
from sandbox.service.keys import Scope, key_data
from sandbox.service.operators.facts import note

router = APIRouter(tags=["keys"])
BODY_BYTES = 1 << 16


@router.get("/v1/whoami")
async def whoami(caller: Reader) -> dict[str, str]:
    """Return the tenant and the scope of the key."""
    return {"tenant": caller.tenant, "scope": caller.scope.name, "key_id": caller.key}


@router.post("/v1/keys", status_code=201)
async def create_key(request: Request, caller: Admin) -> dict[str, Any]:
    """Make a key for the own tenant. Only this answer has it."""
    body = read_body(CreateKey, await body_of(request, BODY_BYTES))
    expires_at = None if body.expires_seconds is None else now() + body.expires_seconds
    key, record = await house_of(request).keys.make(caller.tenant, body.name, Scope[body.scope], expires_at)
    note(request.scope, target=record.id)
    return {**key_data(record), "key": key}


@router.get("/v1/keys")
async def list_keys(request: Request, caller: Admin) -> dict[str, Any]:
    """List the keys of the tenant that were not revoked."""
    return {"items": [key_data(each) for each in house_of(request).keys.of(caller.tenant)], "next_cursor": None}


@router.delete("/v1/keys/{key_id}", status_code=204)
async def revoke_key(request: Request, caller: Admin, key_id: str) -> Response:
    """Revoke a key: it is refused from now on, and its open streams end."""
    house = house_of(request)
    await house.keys.revoke(caller.tenant, key_id)
    house.broadcast.close(key_id)
    house.connections.end(KEY_GONE, key=key_id)
    return Response(status_code=204)
