"""What a tenant may ask for, how much of it it may have, and how much it has."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from sandbox.service.house import Reader, house_of

router = APIRouter(tags=["tenants"])


@router.get("/v1/quota")
async def get_quota(request: Request, caller: Reader) -> dict[str, Any]:
    """Return the ceiling and the quota of the tenant, and what is in use of it."""
    tenants = house_of(request).tenants
    account = tenants.find(caller.tenant)
    return {"tenant": account.id, **account.rules(), "used": account.used(tenants.ledger)}
