"""``filesystem.Filesystem``: describe, list, make, move, remove and watch."""

from __future__ import annotations

import posixpath
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from sandbox.docker.container.profiles import WORKSPACE
from sandbox.envelope import Failure
from sandbox.errors import ErrorCode, SandboxError
from sandbox.service.http.problems import Problem
from sandbox.service.operators.facts import note
from sandbox.service.wire.e2b.errors import EnvdRoute, WireError, unwrapped, wire_error

from . import connect
from .access import EnvdUser, Session
from .entries import entry_at, entry_of
from .parents import make_folders
from .process_service import absolute
from .watching import Watcher, Watchers

router = APIRouter(tags=["e2b"], route_class=EnvdRoute)
SERVICE = "/filesystem.Filesystem"
MOST_DEPTH, MOST_ENTRIES = 20, 10_000
MOST_PATH_CHARS = 4096


def path_in(message: Mapping[str, Any], name: str = "path") -> str:
    """Return a path of a message, absolute. Raises WireError."""
    text = message.get(name, "")
    if not isinstance(text, str) or len(text) > MOST_PATH_CHARS or "\0" in text:
        raise WireError("invalid_argument", f"{name} is not a path of at most {MOST_PATH_CHARS} characters.")
    return absolute(text)


def own_user_only(session: Session) -> None:
    """Raise WireError for a user as whom files are not handled."""
    if session.user is not None:
        raise WireError("unauthenticated", f"invalid username: {session.user!r}: files belong to the user 'user' here")


async def _do(session: Session, operation: str, **args: Any) -> Any:
    environment = await session.live.ready()
    return unwrapped(await environment.execute(operation, args), session.sandbox)


@router.post(f"{SERVICE}/Stat")
async def stat(request: Request, session: EnvdUser) -> Response:
    """Describe a path."""
    own_user_only(session)
    return connect.reply({"entry": await entry_at(session, path_in(await connect.read_call(request)))})


@router.post(f"{SERVICE}/MakeDir")
async def make_dir(request: Request, session: EnvdUser) -> Response:
    """Make a folder, and its parents."""
    own_user_only(session)
    path = path_in(await connect.read_call(request))
    note(request.scope, operation="make_dir", changes=True)
    if await make_folders(session, path):
        return connect.reply({"entry": await entry_at(session, path)})
    try:
        made = await _do(session, "make_dir", path=path)
    except WireError as error:
        if error.code in ("already_exists", "invalid_argument", "failed_precondition"):
            raise WireError("invalid_argument", f"path already exists but it is not a directory: {path}") from error
        raise
    if not made.created:
        raise WireError("already_exists", f"directory already exists: {path}")
    return connect.reply({"entry": await entry_at(session, path)})


@router.post(f"{SERVICE}/Move")
async def move(request: Request, session: EnvdUser) -> Response:
    """Move a file or folder; the parents of its new place are made."""
    own_user_only(session)
    message = await connect.read_call(request)
    source, target = path_in(message, "source"), path_in(message, "destination")
    note(request.scope, operation="move", changes=True)
    await _do(session, "stat", path=source)
    await make_folders(session, posixpath.dirname(target))
    await _do(session, "make_dir", path=posixpath.dirname(target))
    await _do(session, "move", source=source, target=target, overwrite=True)
    return connect.reply({"entry": await entry_at(session, target)})


@router.post(f"{SERVICE}/ListDir")
async def list_dir(request: Request, session: EnvdUser) -> Response:
    """List a folder."""
    own_user_only(session)
    message = await connect.read_call(request)
    path, depth = path_in(message), message.get("depth") or 1
    if not isinstance(depth, int) or not 1 <= depth <= MOST_DEPTH:
        raise WireError("invalid_argument", f"depth is {str(depth)[:20]}: use 1 to {MOST_DEPTH}.")
    environment = await session.live.ready()
    answer = await environment.execute("list_details", {"path": path, "depth": depth, "max_entries": MOST_ENTRIES})
    if isinstance(answer, Failure) and answer.code is ErrorCode.not_a_directory:
        raise WireError("invalid_argument", f"path is not a directory: {path}")
    found = unwrapped(answer, session.sandbox)
    if found.truncated:
        raise WireError("resource_exhausted", f"{path} has more than {MOST_ENTRIES} entries, or some that cannot be read.")
    entries = [entry_of(posixpath.join(WORKSPACE, each.path), each) for each in found.entries]
    return connect.reply({"entries": entries})


@router.post(f"{SERVICE}/Remove")
async def remove(request: Request, session: EnvdUser) -> Response:
    """Remove a file, or a folder with all that is in it; what is missing is removed already."""
    own_user_only(session)
    path = path_in(await connect.read_call(request))
    note(request.scope, operation="delete", changes=True)
    try:
        await _do(session, "delete", path=path, recursive=True)
    except WireError as error:
        if error.code != "not_found":
            raise
    return connect.reply({})


@router.post(f"{SERVICE}/WatchDir")
async def watch_dir(request: Request, session: EnvdUser) -> Response:
    """Stream what changes in a folder."""
    own_user_only(session)
    message = await connect.read_stream_call(request)
    try:
        watcher = await _watcher(session, message, connect.timeout_of(request))
    except WireError as error:
        return connect.failed_stream(error)
    except (SandboxError, Problem) as error:
        return connect.failed_stream(wire_error(error, session.sandbox))
    keepalive: dict[str, Any] = {"keepalive": {}}
    messages = connect.kept_alive(_watched(session, watcher), connect.keepalive_of(request), keepalive)
    answer = connect.stream(messages, session.sandbox)
    answer.headers.update(watcher.headers)
    return answer


async def _watched(session: Session, watcher: Watcher) -> AsyncGenerator[Mapping[str, Any], None]:
    try:
        yield {"start": {}}
        async for event in watcher.events():
            if not session.house.keys.is_valid(session.caller):
                raise WireError("unauthenticated", "The key is not valid any more.")
            yield {"filesystem": event}
        await watcher.check()
    finally:
        watcher.stop()


async def _watcher(session: Session, message: Mapping[str, Any], seconds: float | None) -> Watcher:
    path = path_in(message)
    entry = await entry_at(session, path)
    if entry.get("type") != "FILE_TYPE_DIRECTORY":
        raise WireError("invalid_argument", f"path is not a directory: {path}")
    watcher = Watcher(session, path, recursive=message.get("recursive") is True, with_entry=message.get("includeEntry") is True)
    await watcher.begin(seconds)
    return watcher


@router.post(f"{SERVICE}/CreateWatcher")
async def create_watcher(request: Request, session: EnvdUser) -> Response:
    """Begin to watch a folder, for a client that asks again and again what has changed."""
    own_user_only(session)
    message = await connect.read_call(request)
    watchers = Watchers.of(session.live)
    watchers.check_room()
    watcher = await _watcher(session, message, None)
    return connect.reply({"watcherId": watchers.add(watcher)}, watcher.headers)


@router.post(f"{SERVICE}/GetWatcherEvents")
async def get_watcher_events(request: Request, session: EnvdUser) -> Response:
    """Return what has changed since the last call."""
    message = await connect.read_call(request)
    return connect.reply({"events": await Watchers.of(session.live).find(message.get("watcherId")).take()})


@router.post(f"{SERVICE}/RemoveWatcher")
async def remove_watcher(request: Request, session: EnvdUser) -> Response:
    """Watch no more."""
    message = await connect.read_call(request)
    Watchers.of(session.live).remove(message.get("watcherId"))
    return connect.reply({})
