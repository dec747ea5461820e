"""``process.Process``: start commands, follow them, write to them, and end them."""

from __future__ import annotations

import base64
import binascii
import posixpath
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.requests import ClientDisconnect

from sandbox.errors import SandboxError
from sandbox.service.http.payloads.reading import new_request_id
from sandbox.service.http.problems import Problem
from sandbox.service.operators.facts import note
from sandbox.service.wire.e2b.errors import EnvdRoute, WireError, unwrapped, wire_error

from . import connect
from .access import HOME, USER, EnvdUser, Session, options_of
from .processes.marks import Asked
from .processes.process import InTerminal, Process
from .processes.table import Processes

router = APIRouter(tags=["e2b"], route_class=EnvdRoute)
SERVICE = "/process.Process"
MOST_ARGUMENTS = 4096
_KEEPALIVE: dict[str, Any] = {"event": {"keepalive": {}}}


def absolute(path: str) -> str:
    """Return a path as envd reads it: from the home on, unless it is absolute."""
    if path == "~" or path.startswith("~/"):
        path = f"./{path[1:]}"
    return posixpath.normpath(posixpath.join(HOME, path)).replace("//", "/", 1)


@router.post(f"{SERVICE}/Start")
async def start(request: Request, session: EnvdUser) -> Response:
    """Start a command and stream its output. A client that leaves does not end it; its timeout does."""
    message = await connect.read_stream_call(request)
    note(request.scope, operation="run", changes=True)
    try:
        asked, config = _asked(message, session, connect.timeout_of(request))
        tag = message.get("tag")
        process = await Processes.of(session.live).start(
            session.house.database, asked, config, tag if isinstance(tag, str) else None
        )
    except WireError as error:
        if error.code == "unauthenticated":  # it is answered before there is a stream
            raise
        return connect.failed_stream(error)
    except (SandboxError, Problem) as error:
        return connect.failed_stream(wire_error(error, session.sandbox))
    return _followed(request, session, process, process.start)


@router.post(f"{SERVICE}/Connect")
async def follow(request: Request, session: EnvdUser) -> Response:
    """Stream the output of a command from now on."""
    message = await connect.read_stream_call(request)
    try:
        process = await Processes.of(session.live).find(message.get("process"), ended=True)
        return _followed(request, session, process, await process.position())
    except WireError as error:
        return connect.failed_stream(error)


def _followed(request: Request, session: Session, process: Process, offset: int) -> Response:
    messages = connect.kept_alive(_events(session, process, offset), connect.keepalive_of(request), _KEEPALIVE)
    return connect.stream(messages, session.sandbox)


async def _events(session: Session, process: Process, offset: int) -> AsyncGenerator[Mapping[str, Any], None]:
    yield {"event": {"start": {"pid": process.pid}}}
    async for kind, data in process.output(offset):
        if not session.house.keys.is_valid(session.caller):
            raise WireError("unauthenticated", "The key is not valid any more.")
        yield {"event": {"data": {kind: base64.b64encode(data).decode()}}}
    ended = await process.end()
    Processes.of(session.live).note_end(process)
    yield {"event": {"end": ended}}


@router.post(f"{SERVICE}/List")
async def list_processes(request: Request, session: EnvdUser) -> Response:
    """List the commands that run."""
    await connect.read_call(request)
    found = await Processes.of(session.live).running()
    return connect.reply(
        {
            "processes": [
                {"config": each.config, "pid": each.pid, **({} if each.tag is None else {"tag": each.tag})} for each in found
            ]
        }
    )


@router.post(f"{SERVICE}/SendInput")
async def send_input(request: Request, session: EnvdUser) -> Response:
    """Write to the standard input of a command, or type into its terminal."""
    message = await connect.read_call(request)
    process = await Processes.of(session.live).find(message.get("process"))
    await _write(process, message.get("input"))
    return connect.reply({})


@router.post(f"{SERVICE}/StreamInput")
async def stream_input(request: Request, session: EnvdUser) -> Response:
    """Write a stream of messages to the standard input of a command."""
    process: Process | None = None
    try:
        async for message in connect.read_messages(request):
            if isinstance(begun := message.get("start"), dict):
                process = await Processes.of(session.live).find(begun.get("process"))
            elif isinstance(data := message.get("data"), dict):
                if process is None:
                    raise WireError("invalid_argument", "The first message must be start.")
                await _write(process, data.get("input"))
    except WireError as error:
        return connect.failed_stream(error)
    except ClientDisconnect:
        return Response(status_code=400)
    frames = connect.frame({}) + connect.frame({}, connect.END)
    return Response(frames, media_type=connect.STREAM)


@router.post(f"{SERVICE}/CloseStdin")
async def close_stdin(request: Request, session: EnvdUser) -> Response:
    """End the standard input of a command."""
    message = await connect.read_call(request)
    process = await Processes.of(session.live).find(message.get("process"))
    await process.close_stdin()
    return connect.reply({})


@router.post(f"{SERVICE}/SendSignal")
async def send_signal(request: Request, session: EnvdUser) -> Response:
    """Kill a command with everything it started, or send SIGTERM to its first process."""
    message = await connect.read_call(request)
    process = await Processes.of(session.live).find(message.get("process"))
    wanted = message.get("signal")
    if wanted in ("SIGNAL_SIGKILL", 9):
        await process.kill()
    elif wanted in ("SIGNAL_SIGTERM", 15):
        await _terminate(session, process)
    else:
        raise WireError("unimplemented", f"The signal {wanted!r:.40} is not supported: use SIGNAL_SIGTERM or SIGNAL_SIGKILL.")
    return connect.reply({})


async def _terminate(session: Session, process: Process) -> None:
    args: dict[str, Any] = {"argv": ["kill", "-TERM", str(process.pid)], "session": None, "timeout_seconds": 10}
    if process.asked.user is not None:
        args["user"] = process.asked.user
    sent = await session.live.send(session.house.database, "run", args, new_request_id())
    result = unwrapped(await sent.envelope(), session.sandbox)
    if result.exit_code != 0:
        raise WireError("not_found", f"process with pid {process.pid} not found")


@router.post(f"{SERVICE}/Update")
async def update(request: Request, session: EnvdUser) -> Response:
    """Change the size of a terminal."""
    message = await connect.read_call(request)
    process = await Processes.of(session.live).find(message.get("process"))
    if (size := _size(message.get("pty"))) is not None:
        if not isinstance(process, InTerminal):
            raise WireError("failed_precondition", "The process has no terminal.")
        await process.resize(*size)
    return connect.reply({})


async def _write(process: Process, given: object) -> None:
    fields = given if isinstance(given, dict) else {}
    text = fields.get("pty" if isinstance(process, InTerminal) else "stdin", "")
    if not text and fields:
        raise WireError("invalid_argument", "The process has no such input.")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise WireError("invalid_argument", "The input is not base64.") from None
    await process.write(data)


def _asked(message: Mapping[str, Any], session: Session, timeout: float | None) -> tuple[Asked, dict[str, Any]]:
    """Return what is to be started, and the words of the client. Raises WireError."""
    given = message.get("process")
    config = given if isinstance(given, dict) else {}
    cmd, args, envs, cwd = config.get("cmd"), config.get("args") or [], config.get("envs") or {}, config.get("cwd") or ""
    if not isinstance(cmd, str) or not cmd or not isinstance(cwd, str):
        raise WireError("invalid_argument", "process.cmd is missing.")
    if not isinstance(args, list) or len(args) > MOST_ARGUMENTS or not all(isinstance(each, str) for each in args):
        raise WireError("invalid_argument", f"process.args is not a list of at most {MOST_ARGUMENTS} texts.")
    if not isinstance(envs, dict) or not all(isinstance(each, str) for each in envs.values()):
        raise WireError("invalid_argument", "process.envs does not map names to texts.")
    size = _size(message.get("pty"))
    words = {"cmd": cmd, "args": args, "envs": envs, **({"cwd": cwd} if cwd else {})}
    options = options_of(session.live.record) or {}
    user = session.user if session.names_user or options.get("user") in (None, USER) else str(options["user"])
    folder = absolute(cwd or str(options.get("workdir") or ""))
    asked = Asked((cmd, *args), envs, folder, user, timeout, message.get("stdin") is not False, size)
    return asked, words


def _size(pty: object) -> tuple[int, int] | None:
    if not isinstance(pty, dict):
        return None
    size = pty.get("size")
    rows, cols = (size.get("rows"), size.get("cols")) if isinstance(size, dict) else (None, None)
    return (rows if isinstance(rows, int) else 24, cols if isinstance(cols, int) else 80)
