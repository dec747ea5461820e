"""Volumes: make, list, look at and delete. Their content is reached with a token of their own."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import Field

from sandbox.service.house import House, Manager, Reader, User, house_of
from sandbox.service.http.payloads.reading import body_of
from sandbox.service.keys import Caller
from sandbox.service.store.tables.volumes import VolumeRecord
from sandbox.service.wire.e2b import bodies
from sandbox.service.wire.e2b.errors import ApiRoute
from sandbox.service.wire.e2b.sandboxes import BODY_BYTES

router = APIRouter(tags=["e2b"], route_class=ApiRoute)


class NewVolume(bodies.Asked):
    """The body of a volume."""

    name: str = Field(max_length=300)


def token_of(house: House, volume: str, key: str) -> str:
    """Return the token for the content of a volume for those with the key of that id. It ends with the key."""
    return f"gbv_{volume}_{key}_{house.tokens.sign(f'gamebox volume token 1|{volume}|{key}')}"


def _data(house: House, caller: Caller, record: VolumeRecord) -> dict[str, Any]:
    return {"volumeID": record.id, "name": record.name, "token": token_of(house, record.id, caller.key)}


@router.post("/volumes", status_code=201)
async def create(request: Request, caller: Manager) -> dict[str, Any]:
    """Make a volume, which several sandboxes may share."""
    house = house_of(request)
    body: NewVolume = bodies.read(NewVolume, await body_of(request, BODY_BYTES))
    return _data(house, caller, await house.fleet.volumes.create(caller.tenant, body.name))


@router.get("/volumes")
async def list_volumes(request: Request, caller: Reader) -> list[dict[str, Any]]:
    """List the volumes of the tenant, the latest first."""
    return [{"volumeID": each.id, "name": each.name} for each in house_of(request).fleet.volumes.of(caller.tenant)]


@router.get("/volumes/{volume_id}")
async def get(request: Request, caller: User, volume_id: str) -> dict[str, Any]:
    """Return a volume, with a token for its content."""
    house = house_of(request)
    return _data(house, caller, house.fleet.volumes.find(caller.tenant, volume_id))


@router.delete("/volumes/{volume_id}", status_code=204)
async def delete(request: Request, caller: Manager, volume_id: str) -> Response:
    """Delete a volume with all its files; one that a sandbox has stays."""
    fleet = house_of(request).fleet
    record = fleet.volumes.find(caller.tenant, volume_id)
    await asyncio.shield(fleet.spawn(fleet.volumes.delete(record, fleet.delete)))
    return Response(status_code=204)
