"""The routes of SWE-ReX's server, each for one sandbox: ``RemoteDeploymentConfig(host=".../wire/swerex/ID", auth_token=KEY)``.

With a token of the sandbox in the place of the key, they are at the root of the service, too.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from sandbox.errors import SandboxError
from sandbox.service.fleet.live_sandbox import LiveSandbox
from sandbox.service.house import User, house_of, sandbox_of
from sandbox.service.http.bodies import read_body
from sandbox.service.operators.facts import EXCEPTION_STATUS, note

from . import files
from .access import ROOT, Visitor, token_of
from .files import Upload
from .models import Action, BashInterruptAction, CloseSession, CreateSession, Execute, ReadFile, SwerexError, WriteFile
from .runtime import Runtime

router = APIRouter(tags=["swerex"])
PREFIX = f"{ROOT}/{{sandbox_id}}"
B = TypeVar("B", bound=BaseModel)
_runtimes: WeakKeyDictionary[LiveSandbox, Runtime] = WeakKeyDictionary()


@router.post(f"{PREFIX}/token")
async def token(request: Request, caller: User, sandbox_id: str) -> dict[str, str]:
    """Return a token for this wire of the sandbox, which also names it: with it, SWE-ReX needs only the address of the service.

    It ends with the sandbox, and with the key that asked for it.
    """
    live = sandbox_of(request, caller, sandbox_id)
    note(request.scope, operation="token", changes=False)
    return {"auth_token": token_of(house_of(request), live.record.id, caller.key)}


@router.get(f"{PREFIX}/is_alive")
async def is_alive(request: Request, caller: Visitor, sandbox_id: str) -> dict[str, Any]:
    """Return whether the sandbox answers."""
    live = sandbox_of(request, caller, sandbox_id)
    try:
        await live.ready()
    except SandboxError as error:
        return {"is_alive": False, "message": error.message}
    return {"is_alive": True, "message": ""}


@router.post(f"{PREFIX}/create_session")
async def create_session(request: Request, caller: Visitor, sandbox_id: str) -> Response:
    """Start a shell that is kept until it is closed."""
    return await _answer(request, caller, sandbox_id, CreateSession, Runtime.create_session)


@router.post(f"{PREFIX}/run_in_session")
async def run_in_session(request: Request, caller: Visitor, sandbox_id: str) -> Response:
    """Carry out a command in a session, or interrupt what runs there."""

    async def work(runtime: Runtime, asked: Action) -> dict[str, Any]:
        shell, action = runtime.shell(asked.root.session), asked.root
        return await (shell.interrupt(action) if isinstance(action, BashInterruptAction) else shell.run(action))

    return await _answer(request, caller, sandbox_id, Action, work)


@router.post(f"{PREFIX}/close_session")
async def close_session(request: Request, caller: Visitor, sandbox_id: str) -> Response:
    """End a session with all that runs in it."""
    return await _answer(request, caller, sandbox_id, CloseSession, Runtime.close_session)


@router.post(f"{PREFIX}/execute")
async def execute(request: Request, caller: Visitor, sandbox_id: str) -> Response:
    """Carry out a command beside all sessions."""
    return await _answer(request, caller, sandbox_id, Execute, Runtime.execute)


@router.post(f"{PREFIX}/read_file")
async def read_file(request: Request, caller: Visitor, sandbox_id: str) -> Response:
    """Return a file as text."""
    return await _answer(request, caller, sandbox_id, ReadFile, lambda runtime, asked: files.read(runtime.live, asked))


@router.post(f"{PREFIX}/write_file")
async def write_file(request: Request, caller: Visitor, sandbox_id: str) -> Response:
    """Write a file, with the folders above it."""
    return await _answer(request, caller, sandbox_id, WriteFile, lambda runtime, asked: files.write(runtime.live, asked))


@router.post(f"{PREFIX}/upload")
async def upload(request: Request, caller: Visitor, sandbox_id: str) -> Response:
    """Write a file, or unpack a zip into a folder: ``file``, ``target_path`` and ``unzip`` of a form."""
    live, house = sandbox_of(request, caller, sandbox_id), house_of(request)
    note(request.scope, operation="upload", changes=True)
    async with house.bodies.body(request, house.settings.body_bytes, caller.tenant) as body:
        asked = Upload.of_form(request.headers.get("content-type", ""), body.data)
        async with house.fleet.workers.moving.turn(caller.tenant):
            return await _response(asked.carry_out(live))


@router.post(f"{PREFIX}/close")
async def close(request: Request, caller: Visitor, sandbox_id: str) -> Response:
    """End all sessions. The sandbox goes on: it is ended as any other, or by its time to live."""
    live = sandbox_of(request, caller, sandbox_id)
    return await _response(_nothing() if live.is_over else (await _runtime(live)).close())


async def _answer(
    request: Request, caller: Visitor, sandbox_id: str, kind: type[B], work: Callable[[Runtime, B], Awaitable[dict[str, Any]]]
) -> Response:
    """Carry out a request; one that was sent before with the same id is carried out once, also if its client has left."""
    live, house = sandbox_of(request, caller, sandbox_id), house_of(request)
    async with house.bodies.body(request, house.settings.body_bytes, caller.tenant) as body:
        asked = read_body(kind, body.data)
        note(request.scope, operation=str(request.scope["route"].name), changes=kind is not ReadFile)
        runtime = await _runtime(live)
        task = runtime.once(request.headers.get("x-request-id"), lambda: _response(work(runtime, asked)), house.fleet.workers)
        body.keep_for(task)
        return await asyncio.shield(task)


async def _runtime(live: LiveSandbox) -> Runtime:
    await live.ready()
    runtime = _runtimes.setdefault(live, Runtime(live))
    await runtime.look()
    return runtime


async def _response(work: Awaitable[dict[str, Any]]) -> Response:
    try:
        status, data = 200, await work
    except SwerexError as error:
        status, data = EXCEPTION_STATUS, error.data()
    return Response(json.dumps(data).encode(), status, media_type="application/json")


async def _nothing() -> dict[str, Any]:
    return {}
