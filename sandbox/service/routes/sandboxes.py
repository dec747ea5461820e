"""Create, list, look at, change and delete sandboxes."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from sandbox.service.fleet.creating import answer_of_first
from sandbox.service.fleet.sandbox_data import sandbox_data
from sandbox.service.house import Manager, Reader, house_of, sandbox_of
from sandbox.service.http.bodies import Body, CreateSandbox, ForkSandbox, UpdateSandbox, read_body
from sandbox.service.http.payloads.reading import body_of
from sandbox.service.http.problems import Problem, ProblemCode
from sandbox.service.store.tables.requests import creation
from sandbox.service.store.tables.sandboxes import SandboxRecord

router = APIRouter(tags=["sandboxes"])
BODY_BYTES = 1 << 20
MOST_ITEMS, ITEMS = 200, 50
STATES = ("creating", "running", "paused", "deleting", "ended", "lost")
MOST_CURSOR_CHARS = 200
_IDEMPOTENCY_KEY = re.compile(r"[!-~]{1,200}")


@router.post("/v1/sandboxes", status_code=201)
async def create(request: Request, caller: Manager) -> Response:
    """Create a sandbox and answer when it runs. With an Idempotency-Key, asking again does not create another one."""
    body = read_body(CreateSandbox, await body_of(request, BODY_BYTES))
    key = idempotency_key(request)
    answer = await house_of(request).fleet.create(caller.tenant, body, key, creation_digest(request, "create", body))
    headers = {"Location": f"/v1/sandboxes/{answer['id']}"}
    return Response(json.dumps(answer).encode(), 201, headers, "application/json")


@router.get("/v1/sandboxes")
async def list_sandboxes(
    request: Request, caller: Reader, cursor: str | None = None, limit: int = ITEMS, state: str | None = None
) -> dict[str, Any]:
    """List the sandboxes of the tenant, the latest first; ``state`` and ``metadata.NAME`` select some of them."""
    states = () if state is None else tuple(state.split(","))
    if unknown := [each for each in states if each not in STATES]:
        raise _wrong("state", unknown[0], f"Use some of {', '.join(STATES)}, separated by commas.")
    if not 1 <= limit <= MOST_ITEMS:
        raise _wrong("limit", limit, f"Give 1 to {MOST_ITEMS}.")
    metadata = {
        name.removeprefix("metadata."): value
        for name, value in request.query_params.items()
        if name.startswith("metadata.")
    }
    found = _matching(house_of(request).fleet.of(caller.tenant), states, metadata)
    if cursor is not None:
        after = _read_cursor(cursor)
        found = [record for record in found if _place(record) > after]
    page = found[:limit]
    more = len(found) > limit
    return {"items": [sandbox_data(each) for each in page], "next_cursor": _cursor(page[-1]) if more else None}


@router.get("/v1/sandboxes/{sandbox_id}")
async def get(request: Request, caller: Reader, sandbox_id: str) -> dict[str, Any]:
    """Return a sandbox, described as it is now: what is left to it as well."""
    live = sandbox_of(request, caller, sandbox_id)
    async with house_of(request).fleet.workers.asking.turn(caller.tenant):
        return {**sandbox_data(live.record), "description": await live.describe()}


@router.patch("/v1/sandboxes/{sandbox_id}")
async def update(request: Request, caller: Manager, sandbox_id: str) -> dict[str, Any]:
    """Change the time to live, the metadata or the rules of the network."""
    live = sandbox_of(request, caller, sandbox_id)
    body = read_body(UpdateSandbox, await body_of(request, BODY_BYTES))
    return sandbox_data(await house_of(request).fleet.changes.update(live, body))


@router.delete("/v1/sandboxes/{sandbox_id}", status_code=204)
async def delete(request: Request, caller: Manager, sandbox_id: str) -> Response:
    """End a sandbox; answer when nothing is left of it."""
    await house_of(request).fleet.delete(sandbox_of(request, caller, sandbox_id))
    return Response(status_code=204)


@router.post("/v1/sandboxes/{sandbox_id}/pause")
async def pause(request: Request, caller: Manager, sandbox_id: str) -> dict[str, Any]:
    """Stop every process in it until it is resumed. Its time to live goes on."""
    return sandbox_data(await house_of(request).fleet.changes.pause(sandbox_of(request, caller, sandbox_id)))


@router.post("/v1/sandboxes/{sandbox_id}/resume")
async def resume(request: Request, caller: Manager, sandbox_id: str) -> dict[str, Any]:
    """Let it go on."""
    return sandbox_data(await house_of(request).fleet.changes.resume(sandbox_of(request, caller, sandbox_id)))


@router.post("/v1/sandboxes/{sandbox_id}/fork", status_code=201)
async def fork(request: Request, caller: Manager, sandbox_id: str) -> dict[str, Any]:
    """Create more sandboxes like it, with its files; with an Idempotency-Key, asking again does not create others."""
    body = read_body(ForkSandbox, await body_of(request, BODY_BYTES))
    key, digest = idempotency_key(request), creation_digest(request, sandbox_id, body)
    if key is not None:  # its answer is known though the first sandbox may be paused or gone by now
        known = await house_of(request).database.call(lambda connection: creation(connection, caller.tenant, key))
        if known is not None:
            return answer_of_first(known, digest, key)
    return await house_of(request).fleet.fork(sandbox_of(request, caller, sandbox_id), body, key, digest)


def idempotency_key(request: Request) -> str | None:
    """Return the Idempotency-Key of a request, None if it has none. Raises Problem."""
    key = request.headers.get("idempotency-key")
    if key is not None and not _IDEMPOTENCY_KEY.fullmatch(key):
        raise Problem(
            400, ProblemCode.invalid_query, "The Idempotency-Key is not valid.", "Send 1 to 200 visible ASCII characters."
        )
    return key


def creation_digest(request: Request, what: str, body: Body) -> bytes:
    """Return a digest that is the same for equal creations. It tells nothing of the variables in them."""
    return house_of(request).database.seal.digest(f"{what} {body.model_dump_json()}".encode())


def _matching(
    records: Iterable[SandboxRecord], states: Iterable[str], metadata: Mapping[str, str]
) -> list[SandboxRecord]:
    """Return the sandboxes in one of these states, if there are any, with all of this metadata."""
    wanted = frozenset(states)
    return [
        record
        for record in records
        if (not wanted or record.state in wanted) and metadata.items() <= dict(record.metadata).items()
    ]


def _place(record: SandboxRecord) -> tuple[float, str]:
    return -record.created_at, record.id


def _cursor(record: SandboxRecord) -> str:
    return base64.urlsafe_b64encode(json.dumps(_place(record)).encode()).decode()


def _read_cursor(cursor: str) -> tuple[float, str]:
    try:
        if len(cursor) > MOST_CURSOR_CHARS:
            raise ValueError("none of ours is that long")
        at, ident = json.loads(base64.b64decode(cursor.encode(), b"-_", validate=True))
        if not (isinstance(at, float) and math.isfinite(at) and isinstance(ident, str)):
            raise ValueError("none of ours says that")
        return at, ident
    except (ValueError, TypeError, OverflowError) as error:
        raise _wrong("cursor", cursor, "Send next_cursor unchanged.") from error


def _wrong(name: str, value: object, hint: str) -> Problem:
    return Problem(422, ProblemCode.invalid_query, f"{name} is {str(value)[:80]!r}.", hint)
