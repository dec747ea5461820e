"""Delete a tenant: its keys, its sandboxes, and what is known of it; also if the service dies meanwhile."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from sandbox.errors import SandboxError
from sandbox.service.connections import KEY_GONE
from sandbox.service.http.problems import Problem

if TYPE_CHECKING:
    from sandbox.service.house import House

log = logging.getLogger(__name__)

AGAIN_SECONDS = 5.0


async def delete(house: House, tenant: str) -> None:
    """Delete a tenant; return when nothing is left of it. Raises Problem; what was begun is finished all the same."""
    await house.tenants.begin_delete(tenant)
    try:
        await _finish(house, tenant)
    except BaseException:
        house.fleet.workers.spawn(_until_deleted(house, tenant))
        raise


def resume_deletes(house: House) -> None:
    """Go on with deleting the tenants that a service before this one was deleting."""
    for each in house.tenants.every():
        if each.is_deleting:
            house.fleet.workers.spawn(_until_deleted(house, each.id))


async def _until_deleted(house: House, tenant: str) -> None:
    while True:
        try:
            await _finish(house, tenant)
            return
        except (Problem, SandboxError) as error:
            log.warning("the tenant %s could not be deleted yet: %s", tenant, error)
        await asyncio.sleep(AGAIN_SECONDS)


async def _finish(house: House, tenant: str) -> None:
    for key in await house.keys.revoke_all(tenant):
        house.broadcast.close(key)
        house.connections.end(KEY_GONE, key=key)
    await house.fleet.delete_all(tenant)
    await house.fleet.snapshots.delete_all(tenant)
    await house.fleet.volumes.delete_all(tenant)
    await house.templates.delete_all(tenant)
    await house.tenants.forget(tenant)
