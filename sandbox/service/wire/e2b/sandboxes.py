"""The REST API: create, list, connect, pause and end sandboxes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import unquote_plus

from fastapi import APIRouter, Request, Response

from sandbox.docker.images.images import has_image
from sandbox.errors import ErrorCode
from sandbox.service.clock import now
from sandbox.service.fleet.live_sandbox import LiveSandbox
from sandbox.service.house import House, Manager, Reader, house_of
from sandbox.service.http.bodies import UpdateSandbox
from sandbox.service.http.hosts import parse_host
from sandbox.service.http.payloads.reading import body_of
from sandbox.service.http.problems import Problem, ProblemCode
from sandbox.service.keys import Caller
from sandbox.service.ports import interpreter
from sandbox.service.routes.sandboxes import creation_digest, idempotency_key
from sandbox.service.store.tables.sandboxes import SandboxRecord, stopped_at
from sandbox.service.store.tables.snapshots import SnapshotRecord
from sandbox.service.templates.templates import Found

from . import answers, bodies
from .envd.access import options_of
from .errors import ApiRoute
from .paging import MOST_ITEMS, page, wrong

router = APIRouter(tags=["e2b"], route_class=ApiRoute)
BODY_BYTES = 1 << 20
# The time to live cannot be nothing: it is over with the next look.
LEAST_SECONDS = 0.001
# What is counted now belongs to these seconds.
METRICS_SECONDS = 5.0
STATES = ("running", "paused")


def sandbox_of(house: House, caller: Caller, ident: str) -> LiveSandbox:
    """Return a sandbox of the caller's that was made in this dialect and is there. Raises Problem."""
    try:
        live = house.fleet.find(caller.tenant, ident)
    except Problem as problem:
        raise _unknown(ident) from problem
    if options_of(live.record) is None or live.record.state not in STATES:
        raise _unknown(ident)
    return live


def _unknown(ident: str) -> Problem:
    return Problem(404, ErrorCode.sandbox_not_found, f"sandbox {ident!r:.80} was not found.", "")


@router.post("/sandboxes", status_code=201)
async def create_first(request: Request, caller: Manager) -> dict[str, Any]:
    """Create a sandbox, as clients before 2.51 ask for it."""
    return await _create(request, caller, 1)


@router.post("/v2/sandboxes", status_code=201)
async def create(request: Request, caller: Manager) -> dict[str, Any]:
    """Create a sandbox; with an Idempotency-Key, asking again does not create another one."""
    return await _create(request, caller, 2)


async def _create(request: Request, caller: Caller, version: int) -> dict[str, Any]:
    house = house_of(request)
    asked: bodies.NewSandbox = bodies.read(bodies.NewSandbox, await body_of(request, BODY_BYTES))
    found = await _origin(house, caller, asked.template)
    volumes = house.fleet.volumes.mounts(caller.tenant, [(each.name, each.path) for each in asked.volume_mounts])
    body = asked.body(version, house.tenants.active(caller.tenant).ceiling, found, volumes)
    digest = creation_digest(request, f"e2b {version}", body)
    await _check_image(house, caller, body.image)
    files = None if isinstance(found, Found) else found
    async with house.fleet.volumes.used(caller.tenant, volumes):
        made = await house.fleet.create(caller.tenant, body, idempotency_key(request), digest, files)
    if isinstance(found, Found) and found.template is not None:
        house.templates.note_use(found.template)
    live = house.fleet.find(caller.tenant, str(made["id"]))
    if body.image == interpreter.IMAGE:  # its first kernel starts meanwhile
        house.fleet.workers.spawn(interpreter.warm(house, live))
    return answers.created(house, caller, live.record, domain_of(request))


async def _check_image(house: House, caller: Caller, image: str) -> None:
    """Raise Problem for the image of the code interpreter if it was not made yet: it takes longer than clients wait."""
    if image == interpreter.IMAGE and not await house.fleet.workers.in_engine(lambda: has_image(image), caller.tenant):
        raise Problem(
            404,
            ErrorCode.image_not_found,
            f"The image {image} of this template has not been made on this host yet.",
            "The operator of the service makes it with: gamebox setup --code-interpreter",
        )


async def _origin(house: House, caller: Caller, name: str) -> Found | SnapshotRecord:
    """Return the template or the snapshot with a name. Raises Problem."""
    try:
        return await house.templates.resolve(caller.tenant, name)
    except Problem:
        if (files := house.fleet.snapshots.find(caller.tenant, name)) is not None:
            return files
        raise


@router.get("/v2/sandboxes")
async def list_sandboxes(
    request: Request,
    response: Response,
    caller: Reader,
    metadata: str | None = None,
    state: str | None = None,
    order: str = "desc",
    template: str | None = None,
    limit: int = MOST_ITEMS,
) -> list[dict[str, Any]]:
    """List the sandboxes of the tenant that were made in this dialect, the latest first."""
    query = request.query_params
    states = STATES if not state else tuple(state.split(","))
    if unknown := [each for each in states if each not in STATES]:
        raise wrong("state", unknown[0], "Use running or paused.")
    wanted = {unquote_plus(k): unquote_plus(v) for k, v in bodies.parse_query(metadata or "").items()}
    after = _started_after(query.get("startedAfter"))
    known = [each for each in house_of(request).fleet.of(caller.tenant) if options_of(each) is not None]
    running = sum(each.state == "running" for each in known)
    found = [each for each in known if each.state in states and _has(each, wanted, template) and each.created_at > after]
    response.headers["X-Total-Running"] = str(running)
    return [answers.listed(each) for each in page(response, found, limit, query.get("nextToken"), order)]


@router.get("/sandboxes")
async def list_first(request: Request, caller: Reader, metadata: str | None = None) -> list[dict[str, Any]]:
    """List the sandboxes that run."""
    wanted = {unquote_plus(k): unquote_plus(v) for k, v in bodies.parse_query(metadata or "").items()}
    found = house_of(request).fleet.of(caller.tenant)
    found = [each for each in found if options_of(each) is not None and each.state == "running"]
    return [answers.listed(each) for each in found if _has(each, wanted, None)]


@router.get("/sandboxes/{sandbox_id}")
async def get(request: Request, caller: Reader, sandbox_id: str) -> dict[str, Any]:
    """Return a sandbox."""
    house = house_of(request)
    return answers.detail(house, caller, sandbox_of(house, caller, sandbox_id).record, domain_of(request))


@router.delete("/sandboxes/{sandbox_id}", status_code=204)
async def delete(request: Request, caller: Manager, sandbox_id: str) -> Response:
    """End a sandbox; answer when nothing is left of it."""
    house = house_of(request)
    await house.fleet.delete(sandbox_of(house, caller, sandbox_id))
    return Response(status_code=204)


@router.post("/sandboxes/{sandbox_id}/timeout", status_code=204)
async def set_timeout(request: Request, caller: Manager, sandbox_id: str) -> Response:
    """Set when a sandbox ends, from now on."""
    house = house_of(request)
    body: bodies.Timeout = bodies.read(bodies.Timeout, await body_of(request, BODY_BYTES))
    await _live_for(house, sandbox_of(house, caller, sandbox_id), float(body.timeout))
    return Response(status_code=204)


@router.post("/sandboxes/{sandbox_id}/refreshes", status_code=204)
async def refresh(request: Request, caller: Manager, sandbox_id: str) -> Response:
    """Let a sandbox live for some time more, if it would end before."""
    house = house_of(request)
    body: bodies.Refresh = bodies.read(bodies.Refresh, await body_of(request, BODY_BYTES))
    await _live_at_least(house, sandbox_of(house, caller, sandbox_id), float(body.duration))
    return Response(status_code=204)


@router.post("/sandboxes/{sandbox_id}/connect")
async def connect_first(request: Request, response: Response, caller: Manager, sandbox_id: str) -> dict[str, Any]:
    """Return a sandbox, woken if it was paused, as older clients ask for it."""
    return await _connect(request, response, caller, sandbox_id, 1)


@router.post("/v2/sandboxes/{sandbox_id}/connect")
async def connect(request: Request, response: Response, caller: Manager, sandbox_id: str) -> dict[str, Any]:
    """Return a sandbox, woken if it was paused; its time to live is never shortened."""
    return await _connect(request, response, caller, sandbox_id, 2)


@router.post("/sandboxes/{sandbox_id}/resume", status_code=201)
async def resume(request: Request, response: Response, caller: Manager, sandbox_id: str) -> dict[str, Any]:
    """Wake a sandbox that is paused."""
    house = house_of(request)
    if sandbox_of(house, caller, sandbox_id).record.state == "running":
        raise Problem(409, ProblemCode.wrong_state, f"sandbox {sandbox_id!r:.80} is running.", "")
    return await _connect(request, response, caller, sandbox_id, 1)


async def _connect(
    request: Request, response: Response, caller: Caller, sandbox_id: str, version: int
) -> dict[str, Any]:
    house = house_of(request)
    body: bodies.Connect = bodies.read(bodies.Connect, await body_of(request, BODY_BYTES))
    live = sandbox_of(house, caller, sandbox_id)
    seconds = bodies.SECONDS[version] if body.timeout is None else float(body.timeout)
    if live.record.state == "paused":
        if body.memory is False and stopped_at(live.record.options) is None:
            raise bodies.refused("memory = false", "The sandbox was paused with its memory, and goes on with it: leave it out.")
        await house.fleet.changes.resume(live)
        await _live_for(house, live, seconds)
        response.status_code = 201
    else:
        await _live_at_least(house, live, seconds)
        response.status_code = 200
    return answers.created(house, caller, live.record, domain_of(request))


@router.post("/sandboxes/{sandbox_id}/pause", status_code=204)
async def pause(request: Request, caller: Manager, sandbox_id: str) -> Response:
    """Stop every process of a sandbox, which keeps its memory unless that is not wanted, until somebody connects."""
    house = house_of(request)
    body: bodies.Pause = bodies.read(bodies.Pause, await body_of(request, BODY_BYTES))
    live = sandbox_of(house, caller, sandbox_id)
    if live.record.state == "paused":
        raise Problem(409, ProblemCode.wrong_state, f"sandbox {sandbox_id!r:.80} is paused already.", "")
    await house.fleet.changes.pause_for_long(live, memory=body.memory is not False)
    return Response(status_code=204)


@router.put("/sandboxes/{sandbox_id}/network", status_code=204)
async def set_network(request: Request, caller: Manager, sandbox_id: str) -> Response:
    """Replace the rules of the network of a sandbox."""
    house = house_of(request)
    body: bodies.NetworkConfig = bodies.read(bodies.NetworkConfig, await body_of(request, BODY_BYTES))
    live = sandbox_of(house, caller, sandbox_id)
    if body.mask_request_host is not None:
        raise bodies.refused("maskRequestHost of an existing sandbox", "Give it when you create one.")
    network = body.body(house.tenants.active(caller.tenant).ceiling)
    await house.fleet.changes.update(live, UpdateSandbox.model_validate({"network": network}))
    options = options_of(live.record) or {}
    # These are of the ports, and hold as long as the sandbox.
    kept = {name: value for name, value in options.get("network", {}).items() if name in ("allowPublicTraffic", "maskRequestHost")}
    asked = {**kept, **body.data()}
    await house.fleet.changes.note_options(live, {"e2b": {**options, "network": asked}})
    return Response(status_code=204)


@router.get("/sandboxes/{sandbox_id}/metrics")
async def metrics(
    request: Request, caller: Reader, sandbox_id: str, start: int | None = None, end: int | None = None
) -> list[dict[str, Any]]:
    """Return what the kernel counts for a sandbox now; nothing is kept of earlier."""
    house = house_of(request)
    live = sandbox_of(house, caller, sandbox_id)
    is_asked = (start or 0) <= now() and (end is None or now() < end + METRICS_SECONDS)
    return [await usage_of(house, live)] if is_asked and live.record.state == "running" else []


@dataclass(slots=True)
class _Sample:
    at: float
    cpu_seconds: float


async def usage_of(house: House, live: LiveSandbox) -> dict[str, Any]:
    """Return the metrics of a sandbox that runs. Raises SandboxError."""
    environment = await live.ready()
    async with house.fleet.workers.asking.turn(live.record.tenant):
        usage = (await environment.execute("usage", {})).unwrap()
    at, spent = time.monotonic(), usage.cpu_seconds or 0.0
    before: _Sample = live.beside.get(_Sample) or _Sample(at - max(usage.uptime_seconds, 0.1), 0.0)
    live.beside[_Sample] = _Sample(at, spent)
    percent = 100 * max(0.0, spent - before.cpu_seconds) / max(0.01, at - before.at)
    return answers.metrics(live.record, usage, percent)


def domain_of(request: Request) -> str:
    """Return the domain of ports, with the port at which the client reaches the service."""
    domain, host = house_of(request).settings.domain, parse_host(request.headers.get("host", ""))
    return domain if host is None or host.port is None else f"{domain}:{host.port}"


async def _live_for(house: House, live: LiveSandbox, seconds: float) -> None:
    await house.fleet.changes.update(live, UpdateSandbox.model_validate({"time_to_live_seconds": max(LEAST_SECONDS, seconds)}))


async def _live_at_least(house: House, live: LiveSandbox, seconds: float) -> None:
    if live.record.ends_at < now() + seconds:
        await _live_for(house, live, seconds)


def _has(record: SandboxRecord, metadata: Mapping[str, str], template: str | None) -> bool:
    options = options_of(record) or {}
    return metadata.items() <= dict(record.metadata).items() and template in (None, options.get("template"), options.get("alias"))


def _started_after(text: str | None) -> float:
    try:
        return 0.0 if not text else datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError) as error:
        raise wrong("startedAfter", text, "Give a time as in 2026-01-01T12:00:00Z.") from error
