"""The checkpoints of one sandbox in the folder of the service: they survive its death.

Each is a file of its own, as ``save_checkpoint`` writes it; the store lists those that are whole. An environment that was attached
loads them before the first request that may need one.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import secrets
import shutil
import sqlite3
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from sandbox.aio import AsyncEnvironment
from sandbox.envelope import Envelope, Failure, Success
from sandbox.environment.sandboxed import SandboxedEnvironment
from sandbox.errors import ErrorCode, SandboxError
from sandbox.operations import DeletedCheckpointResult
from sandbox.service.store.database import Database
from sandbox.text.wording import size

log = logging.getLogger(__name__)

FOLDER = "checkpoints"


class CheckpointRoom(Protocol):
    """What checkpoints of one sandbox may take of its tenant's quota."""

    def take(self, size_bytes: int) -> bool:
        """Reserve room; return whether there was enough."""
        ...

    def give_back(self, size_bytes: int | None = None) -> None:
        """Release room; all that the sandbox has without ``size_bytes``."""
        ...


class Checkpoints:
    """The checkpoints of a sandbox. ``folder`` is that of the service's data."""

    def __init__(self, database: Database, folder: Path, sandbox: str, room: CheckpointRoom) -> None:
        self._database, self._sandbox, self._room = database, sandbox, room
        self._folder = folder / FOLDER / sandbox
        self._turn = asyncio.Lock()
        self._loaded: AsyncEnvironment | None = None

    async def carry_out(
        self, environment: AsyncEnvironment, method: str, args: Mapping[str, Any], request: str, *, resent: bool = False
    ) -> Envelope[Any]:
        """Return what the method on the state of the files answers, once for a ``request`` that is ``resent``.

        Raises TypeError for arguments that do not fit.
        """
        async with self._turn:
            await self._load(environment)
            if resent and method == "checkpoint" and (made := await self._made_for(environment, request)) is not None:
                return made
            answer: Envelope[Any] = await getattr(environment, method)(**args)
            if method == "checkpoint" and answer.ok:
                return await self._save(environment, answer, request)
            if method == "delete_checkpoint" and answer.ok:
                await self._forget(str(answer.result.id))
            elif method == "delete_checkpoint" and resent and _is_missing(answer):
                listed = (await environment.checkpoints()).unwrap()  # the first one has deleted it
                return Success(DeletedCheckpointResult(id=str(args.get("id")), store_bytes=listed.store_bytes))
            return answer

    async def load(self, environment: AsyncEnvironment) -> None:
        """Have the environment know all checkpoints, also those from before it was attached."""
        async with self._turn:
            await self._load(environment)

    async def remove(self) -> None:
        """Remove the files: the sandbox is gone."""
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
        self._room.give_back()

    async def _load(self, environment: AsyncEnvironment) -> None:
        if self._loaded is environment:
            return
        known = await environment.checkpoints()
        names = {each.id for each in known.result.checkpoints} if known.ok else set()
        for name, file in await self._database.call(self._rows):
            if name in names:
                continue
            answer = await environment.load_checkpoint(self._folder / file, name)
            if not answer.ok:
                log.warning("the checkpoint %s of %s could not be loaded: %s", name, self._sandbox, answer.error)
        self._loaded = environment

    async def _made_for(self, environment: AsyncEnvironment, request: str) -> Envelope[Any] | None:
        """Return the answer to the request if its checkpoint is kept: a service before this one was killed after that."""

        def find(connection: sqlite3.Connection) -> str | None:
            where = "sandbox = ? AND request = ?"
            row = connection.execute(f"SELECT name FROM checkpoints WHERE {where}", (self._sandbox, request)).fetchone()  # noqa: S608
            return None if row is None else str(row["name"])

        name, listed = await self._database.call(find), await environment.checkpoints()
        known = listed.result.checkpoints if listed.ok else ()
        return next((Success(each) for each in known if each.id == name), None)

    async def find(self, name: str) -> Path:
        """Return the file of a checkpoint. Raises SandboxError."""
        for known, file in await self._database.call(self._rows):
            if known == name:
                return self._folder / file
        raise SandboxError(
            ErrorCode.checkpoint_not_found, f"There is no checkpoint {name!r:.80}.", "See checkpoints for those that are kept."
        )

    async def take(
        self, environment: AsyncEnvironment, source: AsyncIterator[bytes], name: str | None, request: str
    ) -> Envelope[Any]:
        """Make a checkpoint of a file that comes in pieces. Raises what ``source`` raises; nothing is left then."""
        file = secrets.token_hex(8)
        path = self._folder / file
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        arrived = 0

        async def counted() -> AsyncIterator[bytes]:
            nonlocal arrived
            async for data in source:
                if not self._room.take(len(data)):  # while it comes: many may come at once, and slowly
                    raise _over_quota("This file")
                arrived += len(data)
                yield data

        try:
            await _write(path, counted(), _most_bytes(environment))
            async with self._turn:
                await self._load(environment)
                self._room.give_back(arrived)  # it is reserved for good once it is known to be a checkpoint
                arrived = 0
                if (made := await self._made_for(environment, request)) is not None:  # sent again
                    return made
                answer = await environment.load_checkpoint(path, name)
                if isinstance(answer, Failure):
                    return replace(answer, error=answer.error.replace(str(path), "The file"))
                return await self._keep(environment, answer, file, request)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            code = ErrorCode.host_disk_full if full else ErrorCode.io_error
            return Failure(code, f"The checkpoint could not be written: {error.strerror}.", "Try again later.")
        finally:
            self._room.give_back(arrived)
            if file not in {kept for _, kept in await self._database.call(self._rows)}:
                path.unlink(missing_ok=True)

    async def _save(self, environment: AsyncEnvironment, answer: Envelope[Any], request: str) -> Envelope[Any]:
        name, file = str(answer.unwrap().id), secrets.token_hex(8)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            await environment.delete_checkpoint(name)
            why = error.strerror or str(error)
            return Failure(ErrorCode.host_disk_full, f"The service cannot keep the checkpoint: {why}.", "Ask the operator.")
        saved = await environment.save_checkpoint(name, self._folder / file)
        if not saved.ok:
            await environment.delete_checkpoint(name)
            return saved
        return await self._keep(environment, answer, file, request)

    async def _keep(
        self, environment: AsyncEnvironment, answer: Envelope[Any], file: str, request: str
    ) -> Envelope[Any]:
        """Write down the file of a checkpoint, or forget both if all of them are too large."""
        name, most = str(answer.unwrap().id), _most_bytes(environment)
        used = await asyncio.to_thread(_bytes_in, self._folder)
        if used > most:
            await environment.delete_checkpoint(name)
            (self._folder / file).unlink(missing_ok=True)
            return Failure(
                ErrorCode.store_full,
                f"The checkpoints of this sandbox would take {size(used)}, more than {size(most)}.",
                "Delete one that is not needed any more, or create the sandbox with more checkpoint_bytes.",
            )

        length = (self._folder / file).stat().st_size
        if not self._room.take(length):
            await environment.delete_checkpoint(name)
            (self._folder / file).unlink(missing_ok=True)
            return Failure.of(_over_quota(f"This checkpoint of {size(length)}"))

        def write(connection: sqlite3.Connection) -> None:
            columns, row = "sandbox, name, file, bytes, request", (self._sandbox, name, file, length, request)
            connection.execute(f"INSERT INTO checkpoints ({columns}) VALUES (?, ?, ?, ?, ?)", row)  # noqa: S608

        try:
            await self._database.call(write)
        except SandboxError:  # it is not acknowledged, so there is none
            await environment.delete_checkpoint(name)
            (self._folder / file).unlink(missing_ok=True)
            self._room.give_back(length)
            raise
        return answer

    async def _forget(self, name: str) -> None:
        def forget(connection: sqlite3.Connection) -> list[tuple[str, int]]:
            where = "sandbox = ? AND name = ?"
            found = connection.execute(f"SELECT file, bytes FROM checkpoints WHERE {where}", (self._sandbox, name))  # noqa: S608
            files = [(str(row["file"]), int(row["bytes"])) for row in found]
            connection.execute(f"DELETE FROM checkpoints WHERE {where}", (self._sandbox, name))  # noqa: S608
            return files

        for file, length in await self._database.call(forget):
            (self._folder / file).unlink(missing_ok=True)
            self._room.give_back(length)

    def _rows(self, connection: sqlite3.Connection) -> list[tuple[str, str]]:
        found = connection.execute("SELECT name, file FROM checkpoints WHERE sandbox = ? ORDER BY rowid", (self._sandbox,))
        return [(str(row["name"]), str(row["file"])) for row in found]


def remove_unknown(folder: Path, files: set[str]) -> None:
    """Remove the files that no row of the store names: a service was killed while it wrote or removed them."""
    for path in (folder / FOLDER).glob("*/*"):
        if f"{path.parent.name}/{path.name}" not in files:
            path.unlink(missing_ok=True)
    for place in (folder / FOLDER).glob("*"):
        if not os.listdir(place):  # noqa: PTH208
            place.rmdir()


def all_files(connection: sqlite3.Connection) -> set[str]:
    """Return the files of all checkpoints, below the folder for them."""
    return {f"{row['sandbox']}/{row['file']}" for row in connection.execute("SELECT sandbox, file FROM checkpoints")}


def sizes(connection: sqlite3.Connection) -> dict[str, int]:
    """Return the bytes of all checkpoints by the ids of their sandboxes."""
    found = connection.execute("SELECT sandbox, sum(bytes) AS bytes FROM checkpoints GROUP BY sandbox")
    return {str(row["sandbox"]): int(row["bytes"]) for row in found}


def _over_quota(what: str) -> SandboxError:
    return SandboxError(
        ErrorCode.store_full,
        f"{what} does not fit into what is left of the tenant's quota for checkpoints.",
        "Delete checkpoints that are not needed any more, of this sandbox or of others.",
    )


def _bytes_in(folder: Path) -> int:
    return sum(entry.stat().st_size for entry in os.scandir(folder))


def _is_missing(answer: Envelope[Any]) -> bool:
    return isinstance(answer, Failure) and answer.code is ErrorCode.checkpoint_not_found


def _most_bytes(environment: AsyncEnvironment) -> int:
    inner = environment.environment
    return inner.limits.checkpoint_bytes if isinstance(inner, SandboxedEnvironment) else 0


async def _write(path: Path, source: AsyncIterator[bytes], most: int) -> None:
    """Write what comes to a new file. Raises SandboxError if it is more than ``most`` bytes, OSError."""
    written = 0
    with path.open("xb") as file:
        async for data in source:
            written += len(data)
            if written > most:
                raise SandboxError(
                    ErrorCode.store_full,
                    f"The file has more than {size(most)}, which the checkpoints of this sandbox may take.",
                    "Create the sandbox with more checkpoint_bytes.",
                )
            await asyncio.to_thread(file.write, data)
