"""The store of a service fails: what cannot be written is not acknowledged, and a way back is named."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.observing import eventually
from tests.integration.own_engine import IMAGE, OwnEngine, lacking
from tests.programs import run_gamebox
from tests.servers.gamebox_service import ServiceProcess

from .api import Api

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]
UNAVAILABLE = "store_unavailable"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk."""
    if os.geteuid() != 0:
        lacking("needs root, to mount a small disk")
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                continue


def test_on_a_full_disk_nothing_is_acknowledged_that_is_not_written(place: Path, disk: Path, engine: OwnEngine) -> None:
    service = ServiceProcess(disk / "data", "--stop-all").start()
    try:
        with Api(service) as api:
            ident = api.create(image=IMAGE)
            before = engine.containers()
            fill(disk)
            for method, path, body in (
                ("POST", f"/sandboxes/{ident}/run", {"command": "touch done"}),
                ("POST", "/sandboxes", {"image": IMAGE}),
                ("POST", "/keys", {}),
                ("POST", f"/sandboxes/{ident}/pause", None),
                ("DELETE", f"/sandboxes/{ident}", None),
            ):
                problem = api.call(method, path, body, status=503)
                assert (problem["code"], problem["retryable"]) == (UNAVAILABLE, True), (path, problem)
                assert "log of the service" in problem["hint"]
            assert [each["state"] for each in api.call("GET", "/sandboxes")["items"]] == ["running"]
            assert api.call("POST", f"/sandboxes/{ident}/list", {"path": "."})["result"]["entries"] == []

            (disk / "filler").unlink()
            assert eventually(lambda: api.http.post(f"/v1/sandboxes/{ident}/run", json={"command": "true"}).is_success)
            made = api.call("POST", "/keys", {}, status=201)
            with Api(service, made["key"]) as other:
                other.call("GET", "/whoami")
            assert engine.containers() == before
            # What was refused is in the audit all the same: it waited for the store.
            assert eventually(lambda: api.call("GET", "/audit", params={"outcome": UNAVAILABLE})["items"])
    finally:
        service.stop()


def test_a_store_that_is_damaged_is_refused_with_the_way_back(place: Path, tmp_path: Path) -> None:
    service, file = ServiceProcess(tmp_path / "data").start(), tmp_path / "backup.tar"
    assert run_gamebox("serve", "backup", file, "--data", service.folder).returncode == 0
    key = service.key
    service.stop()
    store = service.folder / "service.db"
    with store.open("r+b") as damaged:
        damaged.seek(4096)
        damaged.write(os.urandom(os.path.getsize(store) - 4096))
    with pytest.raises(AssertionError, match=r"The store \S+ cannot be used.*\n.*gamebox serve restore FILE"):
        service.start()
    service.stop()
    refused = run_gamebox("serve", "backup", tmp_path / "other.tar", "--data", service.folder)
    assert (refused.returncode, "cannot be copied" in refused.stderr) == (2, True)
    assert not (tmp_path / "other.tar").exists()
    (tmp_path / "no.tar").write_bytes(b"no tar")
    refused = run_gamebox("serve", "restore", tmp_path / "no.tar", "--data", service.folder)
    assert "is not a backup that can be restored" in refused.stderr

    assert run_gamebox("serve", "restore", file, "--data", service.folder).returncode == 0
    with Api(service.start(), key) as api:
        assert api.call("GET", "/whoami")["tenant"] == "default"
    service.stop()

