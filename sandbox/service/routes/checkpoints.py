"""Checkpoints as files: fetched, and made from a file that was fetched before, of this sandbox or another one."""

from __future__ import annotations

import json

from fastapi import APIRouter, Request, Response
from starlette.responses import FileResponse

from sandbox.envelope import Failure
from sandbox.errors import SandboxError
from sandbox.operations.wire import envelope_data
from sandbox.service.house import User, sandbox_of
from sandbox.service.http.payloads.reading import request_id

from .files import HOSTILE

router = APIRouter(tags=["files"])


@router.get("/v1/sandboxes/{sandbox_id}/checkpoints")
async def get_checkpoint(request: Request, caller: User, sandbox_id: str, id: str) -> Response:  # noqa: A002
    """Return the checkpoint ``id`` as a tar, which PUT takes."""
    path = await sandbox_of(request, caller, sandbox_id).checkpoints.find(id)
    return FileResponse(path, headers=HOSTILE, media_type="application/x-tar")


@router.put("/v1/sandboxes/{sandbox_id}/checkpoints")
async def put_checkpoint(request: Request, caller: User, sandbox_id: str, id: str | None = None) -> Response:  # noqa: A002
    """Make a checkpoint of the body, a tar that GET has returned; 200 with the envelope of ``load_checkpoint``."""
    live = sandbox_of(request, caller, sandbox_id)
    try:
        environment = await live.ready()
        answer = await live.checkpoints.take(environment, request.stream(), id, request_id(request))
    except SandboxError as error:
        answer = Failure.of(error)
    return Response(json.dumps(envelope_data(answer)).encode(), media_type="application/json")
