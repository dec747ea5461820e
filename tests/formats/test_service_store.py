"""A store that the first version wrote is brought to this one, and served."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sandbox.service.store.migrations import STEPS
from tests.integration.service.api import Api
from tests.servers.gamebox_service import ServiceProcess

from .make_service import IDS, KEY

HERE = Path(__file__).parent


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceProcess]:
    """A service with a copy of the store, and without an engine: what it says is what the store says."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    service = ServiceProcess(tmp_path / "data")
    service.folder.mkdir()
    shutil.copyfile(HERE / "service-1.db", service.folder / "service.db")
    yield service.start()
    service.kill()


def test_it_is_served_and_was_copied_before(served: ServiceProcess) -> None:
    with Api(served, KEY) as api:
        assert api.call("GET", "/whoami") == {"tenant": "default", "scope": "admin", "key_id": "k0"}
        found = {each["id"]: each for each in api.call("GET", "/sandboxes")["items"]}
        assert {ident: each["state"] for ident, each in found.items()} == {ident: state for state, ident in IDS.items()}
        running = found[IDS["running"]]
        assert (running["image"], running["metadata"], running["env"]) == ("gamebox/base", {"job": "running"}, ["K"])
        assert running["network"]["rules"] == ["example.com"]
        assert found[IDS["lost"]]["post_mortem"] == "It had no memory."
        with api.events("/events", after=1, method="GET") as events:
            assert next(events).data["sandbox_id"] == IDS["paused"]
        assert api.call("GET", "/audit")["items"] == []
    assert not (served.folder / "admin.key").exists(), "there is a key already"
    with closing(sqlite3.connect(served.folder / "service.1.db")) as before:
        assert before.execute("PRAGMA user_version").fetchone() == (1,)
        assert before.execute("SELECT count(*) FROM sandboxes").fetchone() == (len(IDS),)
    with closing(sqlite3.connect(served.folder / "service.db")) as store:
        assert store.execute("PRAGMA user_version").fetchone() == (len(STEPS),)
        assert len(store.execute("SELECT id FROM service").fetchone()[0]) == 16
