"""A backup of a service in one file, written while it runs: what ``restore`` needs to find its sandboxes again."""

from __future__ import annotations

import io
import json
import os
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import IO

from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass
from sandbox.service.clock import iso, now
from sandbox.service.fleet.checkpoints import FOLDER as CHECKPOINTS
from sandbox.service.fleet.checkpoints import all_files
from sandbox.service.store.database import STORE
from sandbox.service.store.sealing import FILE, NEXT_FILE, is_key_of, read_key
from sandbox.text.wording import size

FORMAT = 1
MANIFEST = "manifest.json"
# What opens the rest: only on request, for a backup lies elsewhere.
KEY_FILES = (FILE, "admin.key")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is in a backup; ``tables`` is the version of its store."""

    format: int
    gamebox: str
    made_at: str
    tables: int
    sandboxes: int
    checkpoints: int
    with_checkpoints: bool
    secrets: tuple[str, ...] = ()


def write_backup(
    folder: Path, file: Path, *, checkpoints: bool = False, secrets: bool = False, force: bool = False
) -> list[str]:
    """Write a backup of the service with its data in ``folder`` to ``file``; return what is to be said. Raises SandboxError."""
    store = folder / STORE
    if not store.is_file():
        raise _failed(f"There is no store {store}.", "Name the folder of a service: --data DIR.")
    if not file.parent.is_dir():
        raise _failed(f"There is no folder {file.parent} for the backup.", "Create it, or name another FILE.")
    if file.exists() and not force:
        raise _failed(f"{file} is there already.", "Take another name, or replace it with --force.")
    try:
        with _written_whole(file) as stream, tempfile.TemporaryDirectory(dir=file.resolve().parent) as place:
            copy = Path(place) / STORE
            tables, sandboxes, files = _copy_store(store, copy)
            keys = _keys(folder, copy) if secrets else {}
            manifest = Manifest(
                FORMAT, version("gamebox"), str(iso(now())), tables, sandboxes, len(files), checkpoints, tuple(keys)
            )
            with tarfile.open(fileobj=stream, mode="w") as tar:
                _add(tar, MANIFEST, json.dumps(asdict(manifest), indent=1).encode())
                tar.add(copy, STORE)
                for name, key in keys.items():
                    tar.add(key, name)
                for name in sorted(files) if checkpoints else ():
                    path = folder / CHECKPOINTS / name
                    if path.is_file():  # else it was deleted since the copy of the store
                        tar.add(path, f"{CHECKPOINTS}/{name}")
    except OSError as error:
        hint = "Check that its disk has room, and that this user may write there."
        raise _failed(f"The backup {file} could not be written: {error.strerror or error}.", hint) from error
    except (sqlite3.Error, ValueError) as error:
        raise _failed(
            f"The store {store} cannot be copied: {error}.", "If it is damaged, restore a backup: gamebox serve restore FILE."
        ) from error
    return [*_lines(file, manifest)]


def _keys(folder: Path, copy: Path) -> dict[str, Path]:
    """Return the files of keys by their names in the backup: of two secret.keys, the one that opens the copy of the store.

    Raises OSError, ValueError.
    """
    found = {name: folder / name for name in KEY_FILES if (folder / name).is_file()}
    with closing(sqlite3.connect(copy)) as connection:
        connection.row_factory = sqlite3.Row
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'sealing'").fetchone():
            return found
        for name in (FILE, NEXT_FILE):
            if (key := read_key(folder / name)) is not None and is_key_of(key, connection):
                return {**found, FILE: folder / name}
    raise ValueError("its secret.key is missing, or was rotated meanwhile")


def _lines(file: Path, manifest: Manifest) -> Iterator[str]:
    yield f"{file}: {manifest.sandboxes} sandboxes, {size(file.stat().st_size)}"
    if manifest.checkpoints and not manifest.with_checkpoints:
        yield f"without the files of {manifest.checkpoints} checkpoints, which stay in the folder (--checkpoints takes them along)"
    if manifest.secrets:
        yield f"with {' and '.join(manifest.secrets)}: anyone who reads this file can use the service"
    else:
        yield "without secret.key and admin.key: keep a copy of them elsewhere (--secrets takes them along)"


def _copy_store(store: Path, copy: Path) -> tuple[int, int, set[str]]:
    """Copy the store as it is at one moment, also while it is written; return its version, sandboxes, and checkpoints.

    Raises sqlite3.Error, and ValueError for one that is damaged.
    """
    address = f"{store.resolve().as_uri()}?mode=ro"
    with closing(sqlite3.connect(address, uri=True)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
        target.execute("PRAGMA journal_mode = DELETE")  # one file, and no log beside it
        target.row_factory = sqlite3.Row
        found = target.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if found != "ok":
            raise ValueError(f"it is damaged ({found})")
        tables = target.execute("PRAGMA user_version").fetchone()[0]
        sandboxes = target.execute("SELECT count(*) FROM sandboxes").fetchone()[0]
        return int(tables), int(sandboxes), all_files(target)


@contextmanager
def _written_whole(file: Path) -> Iterator[IO[bytes]]:
    """Yield a stream that becomes ``file`` at the end of the block: whole, on disk, and for its owner alone."""
    partial = file.with_name(f"{file.name}.partial")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as stream:  # noqa: PTH123  # a descriptor
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, file)  # noqa: PTH105
        sync_folder(file.resolve().parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Have the names in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(data), 0o600, int(now())
    tar.addfile(member, io.BytesIO(data))


def _failed(message: str, hint: str) -> SandboxError:
    return SandboxError(ErrorCode.setup_failed, message, hint)
