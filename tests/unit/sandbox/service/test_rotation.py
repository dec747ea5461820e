"""The rotation of secret.key: nothing is lost wherever it is killed, nothing is left that the old key opens, backups know of it."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from sandbox.docker.spec import SandboxSpec
from sandbox.errors import SandboxError
from sandbox.service.fleet.provision import sandbox_place, secret_place
from sandbox.service.folder import own_folder
from sandbox.service.operators import backup, restore
from sandbox.service.operators.rotation import rotate_secret_key
from sandbox.service.store.database import STORE, Database, opened
from sandbox.service.store.sealing import FILE, NEXT_FILE, open_seal, read_key
from sandbox.service.store.tables import sandboxes as sandbox_rows
from sandbox.service.store.tables import secrets as rows
from sandbox.service.store.tables.sandboxes import SandboxRecord

STEPS = ("key", "sealed", "store", "vacuum", "rename")
SECRET, VARIABLE = {"value": "swordfish-99"}, {"env": {"A": "b"}}
# Forks before it has threads: each child is killed at another step.
KILLED = """
import os, signal, sys
from pathlib import Path
from sandbox.service.operators.rotation import rotate_secret_key
for step in sys.argv[2:]:
    child = os.fork()
    if not child:
        rotate_secret_key(Path(sys.argv[1]) / step, at=lambda done: done == step and os.kill(os.getpid(), signal.SIGKILL))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of a service that has a secret, and a sandbox with variables."""
    made = tmp_path / "service"
    made.mkdir(mode=0o700)
    database = Database(made / STORE)
    seal = database.seal
    database.close()
    with closing(opened(made / STORE)) as store:
        store.execute("INSERT INTO tenants (id, created_at) VALUES ('a', 0)")
        rows.put(store, "a", "deploy", seal.close(SECRET, secret_place("a", "deploy")), 1.0, 9)
        for ident, sealed in (("s" * 20, seal.close(VARIABLE, sandbox_place("a", "s" * 20))), ("t" * 20, b"")):
            record = SandboxRecord(
                id=ident,
                tenant="a",
                ident=f"gamebox-{ident[:16]}",
                state="ended",
                created_at=0,
                ends_at=1,
                time_to_live_seconds=1,
                spec=SandboxSpec().to_data(),
                sealed=sealed,
            )
            sandbox_rows.insert(store, record)
    return made


def values(folder: Path) -> tuple[object, ...]:
    """What a service that starts now reads from the store."""
    database = Database(folder / STORE)
    try:
        with closing(sqlite3.connect(folder / STORE)) as store:
            (secret,) = store.execute("SELECT sealed FROM secrets").fetchone()
            sealed = dict(store.execute("SELECT id, sealed FROM sandboxes"))
        seal, ident = database.seal, "s" * 20
        plain = seal.open(secret, secret_place("a", "deploy")), seal.open(sealed[ident], sandbox_place("a", ident))
        return (*plain, sealed["t" * 20], seal.digest(b"body"))
    finally:
        database.close()


def test_everything_is_encrypted_with_another_key_and_nothing_is_left_of_the_old_one(folder: Path, tmp_path: Path) -> None:
    before, key = values(folder), read_key(folder / FILE)
    with closing(sqlite3.connect(folder / STORE)) as store:
        old = [*store.execute("SELECT sealed FROM secrets UNION SELECT sealed FROM sandboxes WHERE sealed <> x''")]
    lines = rotate_secret_key(folder, tmp_path / "old.key")
    assert "the values of 1 secrets and of 1 sandboxes" in lines[0]
    assert (read_key(tmp_path / "old.key"), read_key(folder / FILE) == key) == (key, False)
    assert (folder / FILE).stat().st_mode & 0o777 == 0o600
    assert values(folder) == before  # the digests, too: requests that are sent again are known
    stored = b"".join(path.read_bytes() for path in folder.iterdir() if path.name.startswith(STORE))
    assert not [sealed for (sealed,) in old if sealed in stored]
    rotate_secret_key(folder)
    assert values(folder) == before
    (folder / FILE).write_bytes((tmp_path / "old.key").read_bytes())
    with pytest.raises(SandboxError, match="is not the key of the store"):
        Database(folder / STORE)


def test_a_rotation_that_is_killed_at_any_point_loses_nothing(folder: Path, tmp_path: Path) -> None:
    before, key = values(folder), read_key(folder / FILE)
    for step in STEPS:
        shutil.copytree(folder, tmp_path / step)
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path, *STEPS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(-signal.SIGKILL)] * len(STEPS)
    for step in STEPS:
        place = tmp_path / step
        assert (place / NEXT_FILE).exists() == (step != "rename"), step
        tar = tmp_path / f"{step}.tar"
        backup.write_backup(place, tar, secrets=True)
        with tarfile.open(tar) as found:
            found.extraction_filter = getattr(tarfile, "data_filter", None)  # Debian's Python 3.11.2 has none
            found.extractall(tmp_path / f"{step}-backup")
        assert values(tmp_path / f"{step}-backup") == before, step
        assert values(place) == before, step
        assert not (place / NEXT_FILE).exists()
        assert (read_key(place / FILE) == key) == (step in ("key", "sealed")), step
        rotate_secret_key(place)
        assert values(place) == before, step


def test_a_service_that_runs_is_not_rotated(folder: Path) -> None:
    lock = own_folder(folder)
    try:
        with pytest.raises(SandboxError, match="Another service uses"):
            rotate_secret_key(folder)
    finally:
        os.close(lock)
    with pytest.raises(SandboxError, match="There is no store"):
        rotate_secret_key(folder / "none")


def test_a_backup_from_before_needs_the_key_of_then(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    before, tar = values(folder)[:3], tmp_path / "before.tar"
    backup.write_backup(folder, tar)
    rotate_secret_key(folder, tmp_path / "old.key")
    with pytest.raises(SandboxError, match="was it rotated since") as caught:
        restore.restore_backup(folder, tar)
    assert "--secret-key KEYFILE" in caught.value.hint
    assert values(folder)[:3] == before
    (folder / NEXT_FILE).write_text("0" * 64)
    (folder / NEXT_FILE).chmod(0o600)
    restore.restore_backup(folder, tar, secret_key=tmp_path / "old.key")
    assert not (folder / NEXT_FILE).exists()
    assert values(folder)[:3] == before
    assert read_key(folder / FILE) == read_key(tmp_path / "old.key")
    with closing(opened(folder / STORE)) as store, pytest.raises(SandboxError, match="is missing"):
        open_seal(tmp_path, store)
