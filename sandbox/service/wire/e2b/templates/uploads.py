"""Archives of files for builds: a client asks where to send one, and sends it there without its key."""

from __future__ import annotations

import hmac
import re
from typing import Any

from fastapi import APIRouter, Request, Response

from sandbox.service.clock import now
from sandbox.service.house import House, Manager, house_of
from sandbox.service.http.problems import Problem, ProblemCode
from sandbox.service.keys import Caller
from sandbox.service.operators.facts import note
from sandbox.service.templates.archives import checked_hash
from sandbox.service.tenants.metering import visit_of
from sandbox.service.wire.e2b.errors import ApiRoute

router = APIRouter(tags=["e2b"], route_class=ApiRoute)
# As long as E2B's clients go on sending.
SECONDS = 3600
_TOKEN = re.compile(r"gbu_([0-9a-z]{1,40})_([0-9]{1,12})_([0-9a-f]{64})_([A-Za-z0-9_-]{43})")


@router.get("/templates/{template_id}/files/{digest}", status_code=201)
async def upload_place(request: Request, caller: Manager, template_id: str, digest: str) -> dict[str, Any]:
    """Return whether files with this hash are there, and where to send them. The address is for one hour."""
    house = house_of(request)
    await house.templates.find(caller.tenant, template_id)
    present = house.templates.archives.has(caller.tenant, digest)
    url = f"{request.scope['scheme']}://{request.headers.get('host', '')}/templates/uploads/{_token(house, caller, digest)}"
    return {"present": present, "url": url}


@router.put("/templates/uploads/{upload}")
async def upload(request: Request, upload: str) -> Response:
    """Keep an archive; the address says whose it is. Another one with the same hash is replaced."""
    house = house_of(request)
    caller, digest = _opened(house, request, upload)
    note(request.scope, caller=caller, target=digest)
    visit = visit_of(request.scope)
    visit.enter(house.tenants.find(caller.tenant), house.tenants.ledger, house.callers, caller.key)
    await visit.wait(house.tenants.pace)
    async with house.fleet.workers.moving.turn(caller.tenant):
        await house.templates.archives.receive(caller.tenant, digest, request.stream(), _length(request))
    return Response(status_code=200)


def _token(house: House, caller: Caller, digest: str) -> str:
    until = int(now()) + SECONDS
    return f"gbu_{caller.key}_{until}_{checked_hash(digest)}_{_signature(house, caller.key, until, digest)}"


def _signature(house: House, key: str, until: int, digest: str) -> str:
    return house.tokens.sign(f"gamebox upload token 1|{key}|{until}|{digest}")


def _opened(house: House, request: Request, token: str) -> tuple[Caller, str]:
    """Return who may send an archive here, and its hash. Raises Problem."""
    found = _TOKEN.fullmatch(token)
    caller = None
    if found is not None and hmac.compare_digest(found[4], _signature(house, found[1], int(found[2]), found[3])):
        caller = house.keys.caller_by_id(found[1])
    if found is None or caller is None or now() >= int(found[2]):
        address = request.client.host if request.client is not None else ""
        try:
            house.keys.caller(None, address)  # it counts for the address, as a key that is wrong does
        except Problem as problem:
            if problem.status == 429:
                raise
        detail = "This upload address is invalid or has expired."
        raise Problem(401, ProblemCode.unauthorized, detail, "Ask for another one: GET /templates/{templateID}/files/{hash}.")
    return caller, found[3]


def _length(request: Request) -> int | None:
    text = request.headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None
