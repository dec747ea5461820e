"""Replace secret.key: everything that it has encrypted is encrypted with a new one. It can be killed at any point."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from sandbox.errors import ErrorCode, SandboxError
from sandbox.service.fleet.provision import sandbox_place, secret_place
from sandbox.service.folder import own_folder
from sandbox.service.store.database import STORE, opened
from sandbox.service.store.sealing import (
    FILE,
    NEXT_FILE,
    Seal,
    new_key,
    open_seal,
    read_key,
    replace_file,
    write_check,
    write_key,
)


def rotate_secret_key(folder: Path, old_key: Path | None = None, at: Callable[[str], object] = bool) -> list[str]:
    """Rotate the key of a service that does not run; return what is to be said. ``old_key`` is where the present key is kept.

    The new key is on the disk before the store needs it, and the store changes in one transaction: whichever of both keys the
    store then has is found by the next start. ``at`` is called with the name of each step when it is done. Raises SandboxError.
    """
    store = folder / STORE
    if not store.is_file():
        raise SandboxError(ErrorCode.setup_failed, f"There is no store {store}.", "Name the folder of a service: --data DIR.")
    lock = own_folder(folder)
    try:
        with closing(opened(store)) as connection:
            seal = open_seal(folder, connection, settle=True)
            if old_key is not None:
                _keep(folder / FILE, old_key)
            key = new_key()
            write_key(folder / NEXT_FILE, key)
            at("key")
            following = Seal(key, seal.digests)
            secrets, sandboxes = _seal_again(connection, seal, following, at)
            at("store")
            # What is left in free pages could still be read with the old key.
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            at("vacuum")
            replace_file(folder / NEXT_FILE, folder / FILE)
            at("rename")
    except (OSError, sqlite3.Error) as error:
        raise SandboxError(
            ErrorCode.setup_failed,
            f"The key was not rotated, or not to the end: {error}.",
            "Check the disk of the folder, then run it again; a service can start at any time.",
        ) from error
    finally:
        os.close(lock)
    return [*_lines(folder, secrets, sandboxes, old_key)]


def _seal_again(
    connection: sqlite3.Connection, seal: Seal, following: Seal, at: Callable[[str], object]
) -> tuple[int, int]:
    """Encrypt everything with another key, all of it or nothing; return how many secrets and sandboxes there were."""
    connection.execute("PRAGMA synchronous = FULL")  # the old key is about to be gone
    connection.execute("BEGIN IMMEDIATE")
    try:
        secrets = connection.execute("SELECT tenant, name, sealed FROM secrets").fetchall()
        for row in secrets:
            place = secret_place(row["tenant"], row["name"])
            again = following.close(seal.open(row["sealed"], place), place)
            connection.execute("UPDATE secrets SET sealed = ? WHERE tenant = ? AND name = ?", (again, row["tenant"], row["name"]))
        sandboxes = connection.execute("SELECT tenant, id, sealed FROM sandboxes WHERE sealed <> x''").fetchall()
        for row in sandboxes:
            place = sandbox_place(row["tenant"], row["id"])
            again = following.close(seal.open(row["sealed"], place), place)
            connection.execute("UPDATE sandboxes SET sealed = ? WHERE id = ?", (again, row["id"]))
        write_check(connection, following)
        at("sealed")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return len(secrets), len(sandboxes)


def _keep(path: Path, old_key: Path) -> None:
    if old_key.exists():
        raise SandboxError(ErrorCode.setup_failed, f"{old_key} is there already.", "Take another name for --old-key.")
    key = read_key(path)
    if key is not None:
        write_key(old_key, key)


def _lines(folder: Path, secrets: int, sandboxes: int, old_key: Path | None) -> Iterator[str]:
    yield f"{folder / FILE} is new: the values of {secrets} secrets and of {sandboxes} sandboxes are encrypted with it"
    where = "is gone" if old_key is None else f"is in {old_key}"
    yield f"the key before {where}; backups that were made before need it: gamebox serve restore FILE --secret-key KEYFILE"
    for copy in sorted(folder.glob(f"{Path(STORE).stem}.*{Path(STORE).suffix}")):
        yield f"{copy}, from before an upgrade, is encrypted with the key before: delete it if you do not need it"
    yield "keep a copy of the new key apart from backups of the store"
