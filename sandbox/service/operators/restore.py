"""Put a backup in the place of a service's store, and compare what it says with what is on the engine."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import sqlite3
import tarfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from sandbox.errors import ErrorCode, SandboxError
from sandbox.service.clock import iso, now
from sandbox.service.fleet import engine
from sandbox.service.fleet.checkpoints import FOLDER as CHECKPOINTS
from sandbox.service.folder import own_folder
from sandbox.service.store.database import STORE, opened
from sandbox.service.store.identity import service_id
from sandbox.service.store.sealing import FILE as KEY_FILE
from sandbox.service.store.sealing import NEXT_FILE, open_seal, read_key, write_key
from sandbox.service.store.tables import sandboxes as rows

from .backup import FORMAT, KEY_FILES, MANIFEST, sync_folder

# The file is the operator's, and may have been anywhere since: only these names, as plain files, are taken from it.
_NAMES = re.compile(rf"{'|'.join(map(re.escape, (STORE, *KEY_FILES)))}|{CHECKPOINTS}/[a-z0-9]+/[a-z0-9]+")
MANIFEST_BYTES = 1 << 20
PLACE = "restoring"


def restore_backup(
    folder: Path, file: Path, *, remove_unknown: bool = False, secret_key: Path | None = None
) -> list[str]:
    """Restore the backup ``file`` to the folder of a service that does not run; return what is to be said.

    ``secret_key`` is the file of the key that the service had then, if the backup does not have it and it was rotated since.

    What was there is moved aside. Nothing changes if the backup cannot be used. Raises SandboxError.
    """
    if not file.is_file():
        raise SandboxError(ErrorCode.setup_failed, f"There is no backup {file}.", "Name a file that gamebox serve backup wrote.")
    lock = own_folder(folder)
    place = folder / PLACE
    try:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(mode=0o700)
        made_at = _unpack(file, place)
        lines = [f"restored the backup of {made_at}: keys that were revoked since then are valid again"]
        with closing(opened(place / STORE)) as connection:
            if secret_key is not None:
                _take_key(secret_key, place)
            if connection.execute("SELECT 1 FROM sealing").fetchone() is not None:  # else the first start makes a key
                _check_key(place if (place / KEY_FILE).exists() else folder, connection, made_at)
            _forget_missing_checkpoints(connection, folder, place)
            # What stood by then may be somebody's sandbox by now: it is unknown, and no member that a service removes.
            connection.execute("DELETE FROM members")
            lines += _reconcile(connection, made_at, remove_unknown=remove_unknown)
            connection.execute("PRAGMA journal_mode = DELETE")
        aside = _put_in_place(folder, place)
        return lines if aside is None else [*lines, f"what was there before is in {aside}"]
    except OSError as error:
        raise SandboxError(
            ErrorCode.setup_failed, f"The backup cannot be restored: {error}.", "Check that its disk has room."
        ) from error
    finally:
        shutil.rmtree(place, ignore_errors=True)
        os.close(lock)


def _take_key(file: Path, place: Path) -> None:
    key = read_key(file)
    if key is None:
        raise SandboxError(ErrorCode.setup_failed, f"There is no key {file}.", "Name the file of a key: --secret-key FILE.")
    write_key(place / KEY_FILE, key)


def _check_key(folder: Path, connection: sqlite3.Connection, made_at: str) -> None:
    """Raise SandboxError if the key in a folder does not open the store of the backup."""
    try:
        open_seal(folder, connection)
    except SandboxError as error:
        raise SandboxError(
            ErrorCode.setup_failed,
            f"The secret.key in {folder} is missing or does not open the backup of {made_at}: was it rotated since?",
            "Give the key that the service had then: gamebox serve restore FILE --secret-key KEYFILE. Nothing was changed.",
        ) from error


def _unpack(file: Path, place: Path) -> str:
    """Unpack the backup; return when it was made. Raises SandboxError, OSError."""
    try:
        with tarfile.open(file, "r:") as tar:
            first = tar.next()
            if first is None or first.name != MANIFEST or not first.isreg() or first.size > MANIFEST_BYTES:
                raise ValueError("it does not begin with a manifest")
            stream = tar.extractfile(first)
            manifest = json.loads(b"" if stream is None else stream.read())
            if manifest["format"] != FORMAT:
                raise ValueError(f"its format is {manifest['format']!r:.20}, and this version reads {FORMAT}")
            for member in tar:
                if member is first:
                    continue
                _unpack_member(tar, member, place)
            if not (place / STORE).is_file():
                raise ValueError("it has no store")
            return str(manifest["made_at"])[:40]
    except (tarfile.TarError, ValueError, KeyError, TypeError, RecursionError, EOFError) as error:
        raise SandboxError(
            ErrorCode.setup_failed,
            f"{file} is not a backup that can be restored: {error}.",
            "Give a file that gamebox serve backup wrote, with this version or an earlier one.",
        ) from error


def _unpack_member(tar: tarfile.TarFile, member: tarfile.TarInfo, place: Path) -> None:
    if not member.isreg() or not _NAMES.fullmatch(member.name):
        raise ValueError(f"it has {member.name!r:.80}, which no backup has")
    target = place / member.name
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    source = tar.extractfile(member)
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as stream:  # noqa: PTH123
        if source is not None:
            shutil.copyfileobj(source, stream)
        stream.flush()
        os.fsync(stream.fileno())


def _forget_missing_checkpoints(connection: sqlite3.Connection, folder: Path, place: Path) -> None:
    """Forget those whose file is neither in the backup nor in the folder: they were deleted, or are on another disk."""
    for row in connection.execute("SELECT sandbox, name, file FROM checkpoints").fetchall():
        name = f"{CHECKPOINTS}/{row['sandbox']}/{row['file']}"
        if not (place / name).is_file() and not (folder / name).is_file():
            connection.execute("DELETE FROM checkpoints WHERE sandbox = ? AND name = ?", (row["sandbox"], row["name"]))


def _reconcile(connection: sqlite3.Connection, made_at: str, *, remove_unknown: bool) -> list[str]:
    """Note which sandboxes are gone, and find those that the backup does not know; return what is to be said."""
    try:
        listed = engine.listed()
    except SandboxError as error:
        return [f"the engine was not asked, the service will do it when it starts: {error.message}"]
    running = {each.ident for each in listed}
    records = rows.every(connection)
    lost = [each for each in records if each.state in ("running", "paused") and each.ident not in running]
    for record in lost:
        at = now()
        text = f"It was gone when the backup of {made_at} was restored."
        rows.update(connection, replace(record, state="lost", reason="removed", post_mortem=text, ended_at=at))
        data = {"sandbox_id": record.id, "state": "lost", "reason": "removed"}
        rows.add_event(connection, record.tenant, record.id, at, data)
    found = sum(each.ident in running for each in records)
    lines = [f"{found} sandboxes are there, {len(lost)} are gone since then and are listed as lost"]
    known = {each.ident for each in records}
    own = service_id(connection)
    unknown = [each for each in listed if each.of_service == own and each.ident not in known]
    for each in unknown:
        gone = remove_unknown and engine.remove(each.ident)
        what = "removed" if gone else "could not be removed" if remove_unknown else "unknown to the backup"
        lines.append(f"{what}: {each.ident} ({each.image}, {each.age_seconds:.0f} s old)")
    if unknown and not remove_unknown:
        lines.append("restore again with --remove-unknown to remove them, or use gamebox rm --force")
    return lines


def _put_in_place(folder: Path, place: Path) -> Path | None:
    """Replace what is in the folder; return where that is now, or None if there was nothing."""
    aside = folder / f"before-restore-{str(iso(now()))[:19].replace(':', '')}-{secrets.token_hex(2)}"
    moved = [name for name in (STORE, *KEY_FILES) if (folder / name).exists() and (place / name).exists()]
    # Of a rotation that was killed, for the store that is moved aside.
    logs = [name for name in (f"{STORE}-wal", f"{STORE}-shm", NEXT_FILE) if (folder / name).exists()]
    if moved or logs:
        aside.mkdir(mode=0o700)
    for name in moved:
        os.link(folder / name, aside / name)
    for name in logs:  # first: the log of one store must never be read with another
        os.rename(folder / name, aside / name)  # noqa: PTH104
    for path in sorted((place / CHECKPOINTS).glob("*/*")):
        target = folder / path.relative_to(place)
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.replace(path, target)  # noqa: PTH105
    for name in (*KEY_FILES, STORE):
        if (place / name).exists():
            os.replace(place / name, folder / name)  # noqa: PTH105
    sync_folder(folder)
    return aside if moved or logs else None
