"""The checkpoints of one sandbox in the folder of the service: they survive its death.

Each is a file of its own, as ``save_checkpoint`` writes it; the store lists those that are whole. An environment that was attached
loads them before the first request that may need one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sandbox.aio import AsyncEnvironment
from sandbox.envelope import Envelope, Failure, Success
from sandbox.errors import ErrorCode
from sandbox.operations import DeletedCheckpointResult
from sandbox.service.store.database import Database
from sandbox.text.wording import size

log = logging.getLogger(__name__)

FOLDER = "checkpoints"


class Checkpoints:
    """The checkpoints of a sandbox. ``folder`` is that of the service's data."""

    def __init__(self, database: Database, folder: Path, sandbox: str) -> None:
        self._database, self._sandbox = database, sandbox
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

    def remove(self) -> None:
        """Remove the files: the sandbox is gone."""
        shutil.rmtree(self._folder, ignore_errors=True)

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

    async def _save(self, environment: AsyncEnvironment, answer: Envelope[Any], request: str) -> Envelope[Any]:
        name, file = str(answer.unwrap().id), secrets.token_hex(8)
        limits = getattr(environment.environment, "limits", None)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        saved = await environment.save_checkpoint(name, self._folder / file)
        if not saved.ok:
            await environment.delete_checkpoint(name)
            return saved
        used = await asyncio.to_thread(_bytes_in, self._folder)
        if limits is not None and used > limits.checkpoint_bytes:
            await environment.delete_checkpoint(name)
            (self._folder / file).unlink(missing_ok=True)
            return Failure(
                ErrorCode.store_full,
                f"The checkpoints of this sandbox would take {size(used)}, more than {size(limits.checkpoint_bytes)}.",
                "Delete one that is not needed any more, or create the sandbox with more checkpoint_bytes.",
            )

        def write(connection: sqlite3.Connection) -> None:
            columns, row = "sandbox, name, file, request", (self._sandbox, name, file, request)
            connection.execute(f"INSERT INTO checkpoints ({columns}) VALUES (?, ?, ?, ?)", row)  # noqa: S608

        await self._database.call(write)
        return answer

    async def _forget(self, name: str) -> None:
        def forget(connection: sqlite3.Connection) -> list[str]:
            where = "sandbox = ? AND name = ?"
            found = connection.execute(f"SELECT file FROM checkpoints WHERE {where}", (self._sandbox, name))  # noqa: S608
            files = [str(row["file"]) for row in found]
            connection.execute(f"DELETE FROM checkpoints WHERE {where}", (self._sandbox, name))  # noqa: S608
            return files

        for file in await self._database.call(forget):
            (self._folder / file).unlink(missing_ok=True)

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


def _bytes_in(folder: Path) -> int:
    return sum(entry.stat().st_size for entry in os.scandir(folder))


def _is_missing(answer: Envelope[Any]) -> bool:
    return isinstance(answer, Failure) and answer.code is ErrorCode.checkpoint_not_found
