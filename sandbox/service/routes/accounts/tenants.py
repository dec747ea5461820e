"""The tenants, for the operator alone: admin keys of the tenant ``default``."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from sandbox.service.clock import now
from sandbox.service.connections import KEY_GONE
from sandbox.service.house import House, house_of, operator
from sandbox.service.http.bodies import CreateKey, CreateTenant, UpdateTenant, read_body
from sandbox.service.http.payloads.reading import body_of
from sandbox.service.keys import Scope, key_data
from sandbox.service.tenants.account import Account
from sandbox.service.tenants.deleting import delete

router = APIRouter(tags=["tenants"], dependencies=[Depends(operator)])
BODY_BYTES = 1 << 18


@router.post("/v1/tenants", status_code=201)
async def create_tenant(request: Request, response: Response) -> dict[str, Any]:
    """Create a tenant. It has no key yet."""
    body = read_body(CreateTenant, await body_of(request, BODY_BYTES))
    house = house_of(request)
    made = await house.tenants.create(body.id, body.name, _set(body.ceiling), _set(body.quota))
    response.headers["Location"] = f"/v1/tenants/{made.id}"
    return _data(house, made)


@router.get("/v1/tenants")
async def list_tenants(request: Request) -> dict[str, Any]:
    """List all tenants, the oldest first, with what they have in use."""
    house = house_of(request)
    return {"items": [_data(house, each) for each in house.tenants.every()], "next_cursor": None}


@router.get("/v1/tenants/{tenant_id}")
async def get_tenant(request: Request, tenant_id: str) -> dict[str, Any]:
    """Return a tenant: what was set for it, what holds, and what it has in use."""
    house = house_of(request)
    return _data(house, house.tenants.get(tenant_id))


@router.patch("/v1/tenants/{tenant_id}")
async def update_tenant(request: Request, tenant_id: str) -> dict[str, Any]:
    """Change a tenant. A ceiling holds for its sandboxes at once, a quota for what it asks for from now on."""
    body = read_body(UpdateTenant, await body_of(request, BODY_BYTES))
    house = house_of(request)
    ceiling = None if body.ceiling is None else _set(body.ceiling)
    account = await house.tenants.update(tenant_id, body.name, ceiling, None if body.quota is None else _set(body.quota))
    if ceiling is not None:
        await house.fleet.changes.narrow(tenant_id)
    return _data(house, account)


@router.delete("/v1/tenants/{tenant_id}", status_code=204)
async def delete_tenant(request: Request, tenant_id: str) -> Response:
    """End all sandboxes of a tenant, revoke its keys and forget it; answer when nothing is left."""
    await delete(house_of(request), tenant_id)
    return Response(status_code=204)


@router.post("/v1/tenants/{tenant_id}/keys", status_code=201)
async def create_key_of_tenant(request: Request, tenant_id: str) -> dict[str, Any]:
    """Make a key for a tenant. Only this answer has it."""
    body = read_body(CreateKey, await body_of(request, BODY_BYTES))
    house = house_of(request)
    tenant = house.tenants.active(tenant_id).id
    expires_at = None if body.expires_seconds is None else now() + body.expires_seconds
    key, record = await house.keys.make(tenant, body.name, Scope[body.scope], expires_at)
    return {**key_data(record), "key": key}


@router.get("/v1/tenants/{tenant_id}/keys")
async def list_keys_of_tenant(request: Request, tenant_id: str) -> dict[str, Any]:
    """List the keys of a tenant that were not revoked."""
    house = house_of(request)
    found = house.keys.of(house.tenants.get(tenant_id).id)
    return {"items": [key_data(each) for each in found], "next_cursor": None}


@router.delete("/v1/tenants/{tenant_id}/keys/{key_id}", status_code=204)
async def revoke_key_of_tenant(request: Request, tenant_id: str, key_id: str) -> Response:
    """Revoke a key of a tenant: it is refused from now on, and its open streams end."""
    house = house_of(request)
    await house.keys.revoke(house.tenants.get(tenant_id).id, key_id)
    house.broadcast.close(key_id)
    house.connections.end(KEY_GONE, key=key_id)
    return Response(status_code=204)


def _set(rules: Any) -> dict[str, Any]:
    found: dict[str, Any] = rules.model_dump(mode="json", exclude_unset=True)
    return found


def _data(house: House, account: Account) -> dict[str, Any]:
    return {**account.data(), "used": account.used(house.tenants.ledger)}
