"""The content of volumes, through a sandbox that has the volume and nothing else."""

from __future__ import annotations

import hmac
import posixpath
import re
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import Field
from starlette.responses import StreamingResponse

from sandbox.aio import AsyncEnvironment
from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass
from sandbox.operations import StatResult
from sandbox.service.house import House, house_of
from sandbox.service.http.payloads.reading import body_of
from sandbox.service.http.problems import Problem, ProblemCode
from sandbox.service.keys import Caller, Scope, check_scope
from sandbox.service.operators.facts import note
from sandbox.service.routes import files as moving
from sandbox.service.store.tables.volumes import VolumeRecord
from sandbox.service.tenants.metering import visit_of
from sandbox.service.volumes.content import PLACE
from sandbox.service.wire.e2b import bodies
from sandbox.service.wire.e2b.errors import VolumeRoute
from sandbox.service.wire.e2b.sandboxes import BODY_BYTES

from .volumes import token_of

router = APIRouter(tags=["e2b"], route_class=VolumeRoute)
# Files of the content API belong to the user of E2B's sandboxes, unless another owner is asked for.
OWNER, FILE_MODE, FOLDER_MODE = 1000, 0o644, 0o755
MOST_PATH_CHARS, MOST_ENTRIES = 4096, 10_000
_TOKEN = re.compile(r"gbv_([a-z][a-z0-9]{0,40})_([0-9a-z]{1,40})_[A-Za-z0-9_-]{43}")
Id = Annotated[int | None, Query(ge=0, le=2**32 - 2)]
Mode = Annotated[int | None, Query(ge=0, le=0o7777)]


class Metadata(bodies.Asked):
    """What a path is to have from now on."""

    uid: int | None = Field(None, ge=0, le=2**32 - 2)
    gid: int | None = Field(None, ge=0, le=2**32 - 2)
    mode: int | None = Field(None, ge=0, le=0o7777)


@dataclass(frozen=True, slots=True)
class Visit:
    """A request that was let in to a volume."""

    house: House
    caller: Caller
    record: VolumeRecord

    async def environment(self) -> AsyncEnvironment:
        """Return the sandbox for the content. Raises Problem, SandboxError."""
        live = await self.house.fleet.contents.of(self.record)
        return await live.ready()

    async def do(self, operation: str, **args: Any) -> Any:
        """Carry out an operation in it. Raises SandboxError."""
        environment = await self.environment()
        return (await environment.execute(operation, args)).unwrap()


async def visit(request: Request, volume_id: str) -> Visit:
    """Return the volume that a request is for, if its token is for that. Raises Problem."""
    house = house_of(request)
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    token = token.strip()
    found = _TOKEN.fullmatch(token) if scheme.lower() == "bearer" else None
    caller = None
    if found is not None and found[1] == volume_id and hmac.compare_digest(token, token_of(house, volume_id, found[2])):
        caller = house.keys.caller_by_id(found[2])
    if caller is None:
        house.keys.caller(None, request.client.host if request.client is not None else "")  # counts it, and refuses
        raise Problem(401, ProblemCode.unauthorized, "The token is not valid.", "Ask for another one: GET /volumes/{id}.")
    note(request.scope, caller=caller, target=volume_id)
    of_tenant = visit_of(request.scope)
    of_tenant.enter(house.tenants.find(caller.tenant), house.tenants.ledger, house.callers, caller.key)
    await of_tenant.wait(house.tenants.pace)
    check_scope(caller, Scope.use)
    return Visit(house, caller, house.fleet.volumes.find(caller.tenant, volume_id))


Visitor = Annotated[Visit, Depends(visit)]


@router.get("/volumecontent/{volume_id}/path")
async def stat(visitor: Visitor, path: str) -> dict[str, Any]:
    """Describe a path."""
    return await _entry(visitor, _place(path))


@router.patch("/volumecontent/{volume_id}/path")
async def set_metadata(request: Request, visitor: Visitor, path: str) -> dict[str, Any]:
    """Set owner, group and mode of a path."""
    body: Metadata = bodies.read(Metadata, await body_of(request, BODY_BYTES))
    place = _place(path)
    await _entry(visitor, place)
    await _own(visitor, place, body.uid, body.gid, body.mode)
    return await _entry(visitor, place)


@router.delete("/volumecontent/{volume_id}/path", status_code=204)
async def delete(request: Request, visitor: Visitor, path: str) -> Response:
    """Delete a file, or a folder with all that is in it."""
    place = _place(path)
    if place == PLACE:
        raise _missing(path)
    note(request.scope, operation="delete", changes=True)
    await visitor.do("delete", path=place, recursive=True)
    return Response(status_code=204)


@router.get("/volumecontent/{volume_id}/dir")
async def list_dir(visitor: Visitor, path: str, depth: Annotated[int, Query(ge=1, le=20)] = 1) -> list[dict[str, Any]]:
    """List a folder."""
    place = _place(path)
    found = await visitor.do("list_details", path=place, depth=depth, max_entries=MOST_ENTRIES)
    if found.truncated:
        raise Problem(400, ProblemCode.invalid_query, f"{path[:200]} has more than {MOST_ENTRIES} entries.", "List its folders.")
    return [_stat(posixpath.join("/workspace", each.path), each) for each in found.entries]


@router.post("/volumecontent/{volume_id}/dir", status_code=201)
async def make_dir(
    request: Request, visitor: Visitor, path: str, uid: Id = None, gid: Id = None, mode: Mode = None, *, force: bool = False
) -> dict[str, Any]:
    """Make a folder; with ``force`` also its parents, and it may be there."""
    place = _place(path)
    note(request.scope, operation="make_dir", changes=True)
    if await _exists(visitor, place):
        entry = await _entry(visitor, place)
        if not force or entry["type"] != "directory":
            raise _conflict(path, "exists already")
        return entry
    new = await _parents(visitor, place, force=force)
    await visitor.do("make_dir", path=place)
    for each in new:
        await _own(visitor, each, uid, gid, FOLDER_MODE, new=True)
    await _own(visitor, place, uid, gid, FOLDER_MODE if mode is None else mode, new=True)
    return await _entry(visitor, place)


@router.get("/volumecontent/{volume_id}/file")
async def download(request: Request, visitor: Visitor, path: str) -> Response:
    """Return the bytes of a file."""
    place = _place(path)
    note(request.scope, operation="download")
    entry = await _entry(visitor, place)
    if entry["type"] != "file":
        raise _missing(path)
    environment = await visitor.environment()
    pieces = moving.pieces_of(visitor.house, visitor.caller.tenant, environment, place)
    headers = {**moving.HOSTILE, "Content-Length": str(entry["size"])}
    return StreamingResponse(moving.cut(pieces, 0, entry["size"]), 200, headers, "application/octet-stream")


@router.put("/volumecontent/{volume_id}/file", status_code=201)
async def upload(
    request: Request, visitor: Visitor, path: str, uid: Id = None, gid: Id = None, mode: Mode = None, *, force: bool = False
) -> dict[str, Any]:
    """Write a file; with ``force`` in the place of the one that is there."""
    place = _place(path)
    note(request.scope, operation="upload", changes=True)
    if await _exists(visitor, place):
        if (await _entry(visitor, place))["type"] == "directory":
            raise _conflict(path, "is a directory")
        if not force:
            raise _conflict(path, "exists already")
    new = await _parents(visitor, place, force=force)
    visitor.house.fleet.volumes.check_room(visitor.caller.tenant)
    inner = moving.inner_of(await visitor.environment())
    async with visitor.house.fleet.workers.moving.turn(visitor.caller.tenant):
        (await inner.upload_awaited("file", request.stream(), place)).unwrap()
    visitor.house.fleet.volumes.note_write()
    for each in new:
        await _own(visitor, each, uid, gid, FOLDER_MODE, new=True)
    await _own(visitor, place, uid, gid, FILE_MODE if mode is None else mode, new=True)
    return await _entry(visitor, place)


# Parts


def _place(path: str) -> str:
    """Return where a path of a volume is in the sandbox for its content. Raises Problem."""
    if not path or len(path) > MOST_PATH_CHARS or "\0" in path:
        raise Problem(400, ProblemCode.invalid_query, f"path is {path[:80]!r}.", "Give a path in the volume, such as /a/b.txt.")
    inside = posixpath.normpath("/" + path).lstrip("/")
    return posixpath.join(PLACE, inside) if inside else PLACE


async def _exists(visitor: Visit, place: str) -> bool:
    try:
        await visitor.do("stat", path=place)
    except SandboxError as error:
        if error.code is not ErrorCode.path_not_found:
            raise
        return False
    return True


async def _parents(visitor: Visit, place: str, *, force: bool) -> list[str]:
    """Return the parents of a path that are missing. Raises Problem, unless they may be made."""
    missing: list[str] = []
    parent = posixpath.dirname(place)
    while parent != PLACE and not await _exists(visitor, parent):
        if not force:
            raise _missing(parent.removeprefix(PLACE))
        missing.append(parent)
        parent = posixpath.dirname(parent)
    if parent != PLACE and (await _entry(visitor, parent))["type"] != "directory":
        raise _conflict(parent.removeprefix(PLACE), "is not a directory")
    return missing


async def _own(visitor: Visit, place: str, uid: int | None, gid: int | None, mode: int | None, *, new: bool = False) -> None:
    """Set owner and mode. Raises SandboxError, Problem."""
    default = OWNER if new else None
    owner, group = (default if each is None else each for each in (uid, gid))
    wanted = ("" if owner is None else str(owner)) + ("" if group is None else f":{group}")
    commands = [["chown", "-h", wanted, place]] if wanted else []
    if mode is not None:
        commands.append(["chmod", f"{mode:04o}", place])
    for argv in commands:
        done = await visitor.do("run", argv=argv, session=None, timeout_seconds=30)
        if done.exit_code != 0:
            problem = done.stderr.strip()[-200:] or "it is gone"
            raise _conflict(place.removeprefix(PLACE), f"could not be given its owner and mode: {problem}")


async def _entry(visitor: Visit, place: str) -> dict[str, Any]:
    return _stat(place, await visitor.do("stat", path=place))


def _stat(place: str, found: StatResult) -> dict[str, Any]:
    """Return the description of a path; the only time that is known of it is that of its last change."""
    path = place.removeprefix(PLACE) or "/"
    at = datetime.fromtimestamp(found.mtime_seconds, UTC).isoformat().replace("+00:00", "Z")
    link = found.link_target is not None
    return {
        "name": posixpath.basename(path) or "/",
        "type": "symlink" if link else found.type if found.type in ("file", "directory", "symlink") else "unknown",
        "path": path,
        "size": found.size_bytes,
        "mode": found.mode,
        "uid": found.uid,
        "gid": found.gid,
        "atime": at,
        "mtime": at,
        "ctime": at,
        **({"target": found.link_target} if link else {}),
    }


def _missing(path: str) -> Problem:
    return Problem(404, ErrorCode.path_not_found, f"Path {path[:200]!r} was not found.", "List its folder.")


def _conflict(path: str, problem: str) -> Problem:
    return Problem(409, ErrorCode.path_exists, f"Path {path[:200]!r} {problem}.", "Use force, or another path.")
