"""Snapshots and forks. They are of files only: no process, and nothing in memory, is in them."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import Field

from sandbox.errors import SandboxError
from sandbox.service.fleet.live_sandbox import LiveSandbox
from sandbox.service.fleet.waking import OPTION as WAKE
from sandbox.service.house import House, Manager, Reader, house_of
from sandbox.service.http.payloads.reading import body_of
from sandbox.service.http.problems import Problem, ProblemCode
from sandbox.service.keys import Caller
from sandbox.service.store.tables.snapshots import SnapshotRecord
from sandbox.service.wire.e2b import answers, bodies
from sandbox.service.wire.e2b.envd.access import OPTIONS, options_of
from sandbox.service.wire.e2b.errors import ApiRoute, api_error
from sandbox.service.wire.e2b.paging import MOST_ITEMS, page
from sandbox.service.wire.e2b.sandboxes import BODY_BYTES, domain_of, sandbox_of

router = APIRouter(tags=["e2b"], route_class=ApiRoute)
MOST_FORKS = 20
ONLY_FILES = "Snapshots of this service hold files and no memory: leave it out, or send false."


class NewSnapshot(bodies.Asked):
    """The body of a snapshot."""

    name: str | None = Field(None, min_length=1, max_length=300)
    memory: bool | None = None


class Fork(bodies.Asked):
    """The body of a fork."""

    timeout: int = Field(15, gt=0, le=bodies.MOST_SECONDS)
    count: int = Field(1, ge=1, le=MOST_FORKS)


def snapshot_data(record: SnapshotRecord) -> dict[str, Any]:
    """Return what is answered of a snapshot. The tenant is not part of the names: they are sent back in paths, without slashes."""
    return {"snapshotID": record.label, "names": [record.name] if record.name else []}


@router.post("/sandboxes/{sandbox_id}/snapshots", status_code=201)
async def take(request: Request, caller: Manager, sandbox_id: str) -> dict[str, Any]:
    """Keep the files of a sandbox, which runs on: home, workspace, and what it has changed of the system."""
    house = house_of(request)
    body: NewSnapshot = bodies.read(NewSnapshot, await body_of(request, BODY_BYTES))
    if body.memory:
        raise bodies.refused("memory = true", ONLY_FILES)
    name = "" if body.name is None else body.name.removeprefix(f"{caller.tenant}/")
    if name.partition(":")[0] in house.settings.e2b_templates:
        raise Problem(400, ProblemCode.invalid_body, f"{name!r} is the name of a template of this service.", "Use another name.")
    live = sandbox_of(house, caller, sandbox_id)
    return snapshot_data(await house.fleet.snapshots.take(live, "snapshot", name))


@router.get("/snapshots")
async def list_snapshots(
    request: Request,
    response: Response,
    caller: Reader,
    name: str | None = None,
    limit: int = MOST_ITEMS,
) -> list[dict[str, Any]]:
    """List the snapshots of the tenant, the latest first; ``sandboxID`` and ``name`` select some of them."""
    query = request.query_params
    found = house_of(request).fleet.snapshots.of(caller.tenant)
    if (sandbox := query.get("sandboxID")) is not None:
        found = [each for each in found if each.sandbox == sandbox]
    if name is not None:
        wanted = name.removeprefix(f"{caller.tenant}/")
        found = [each for each in found if wanted in _names(each)]
    return [snapshot_data(each) for each in page(response, found, limit, query.get("nextToken"))]


def _names(record: SnapshotRecord) -> tuple[str, ...]:
    ident = record.label.partition(":")[0]
    return (record.label, ident, record.id, f"{record.id}:default")


async def delete_snapshot(house: House, caller: Caller, name: str) -> bool:
    """Delete the snapshot with an id or a name; return whether there was one. Sandboxes that were made from it stay."""
    found = house.fleet.snapshots.find(caller.tenant, name)
    return found is not None and await house.fleet.snapshots.delete(found)


@router.post("/sandboxes/{sandbox_id}/fork", status_code=201)
async def fork(request: Request, caller: Manager, sandbox_id: str) -> list[dict[str, Any]]:
    """Create sandboxes like one that runs, with its files; each of them, or why there is none."""
    house = house_of(request)
    body: Fork = bodies.read(Fork, await body_of(request, BODY_BYTES))
    live = sandbox_of(house, caller, sandbox_id)
    snapshots = house.fleet.snapshots
    snapshot = await snapshots.take(live, "fork")
    try:
        made = await asyncio.gather(*(_forked(house, live, snapshot, float(body.timeout)) for _ in range(body.count)))
    finally:
        await snapshots.delete(snapshot)

    def result(each: dict[str, Any] | Problem | SandboxError) -> dict[str, Any]:
        if isinstance(each, Problem | SandboxError):
            return {"error": api_error(each)[1]}
        record = house.fleet.find(caller.tenant, str(each["id"])).record
        return {"sandbox": answers.created(house, caller, record, domain_of(request))}

    return [result(each) for each in made]


async def _forked(
    house: House, live: LiveSandbox, snapshot: SnapshotRecord, seconds: float
) -> dict[str, Any] | Problem | SandboxError:
    options: dict[str, Any] = {OPTIONS: {**(options_of(live.record) or {}), "timeout": seconds}}
    if WAKE in live.record.options:
        options[WAKE] = seconds
    try:
        return await house.fleet.create_like(live.record, snapshot, seconds, options)
    except (Problem, SandboxError) as error:
        return error
