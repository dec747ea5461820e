"""The engine of a service goes and comes back: with live-restore nothing is lost, without it what is lost is told."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.observing import eventually
from tests.integration.own_engine import IMAGE, OwnEngine, running
from tests.servers.gamebox_service import ServiceProcess

from .api import Api

pytestmark = [pytest.mark.engine, pytest.mark.exhaustive]


@pytest.fixture(autouse=True)
def _environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("GAMEBOX_SERVICE_IMAGES", IMAGE)


def serving(own: OwnEngine, tmp_path: Path) -> Iterator[tuple[OwnEngine, Api]]:
    service = ServiceProcess(tmp_path / "data", "--stop-all").start()
    try:
        with Api(service) as api:
            yield own, api
    finally:
        service.stop()


@pytest.fixture
def restoring(tmp_path: Path) -> Iterator[tuple[OwnEngine, Api]]:
    """A service on an engine whose containers survive its restart."""
    with running(live_restore=True) as own:
        yield from serving(own, tmp_path)


@pytest.fixture
def forgetting(tmp_path: Path) -> Iterator[tuple[OwnEngine, Api]]:
    """A service on an engine that ends its containers with itself."""
    with running() as own:
        yield from serving(own, tmp_path)


def test_an_engine_that_was_away_for_long_loses_no_sandbox(restoring: tuple[OwnEngine, Api]) -> None:
    """Longer than a cut is hidden (30 s): the connection is given up, and the service makes another one."""
    own, api = restoring
    ident = api.create(image=IMAGE)
    late = api.run(ident, "sleep 60; echo late", background=True)["result"]["id"]
    own.kill()
    began = time.monotonic()
    answer = api.run(ident, "true", timeout_seconds=5)
    assert answer["code"] in ("sandbox_unavailable", "engine_unavailable")
    assert time.monotonic() - began < 60
    assert api.state(ident) == "running"
    own.start()
    assert eventually(lambda: api.run(ident, "echo again").get("result", {}).get("output") == "again\n", 60)
    ended = api.call("POST", f"/sandboxes/{ident}/wait_for", {"id": late, "exit": True, "timeout_seconds": 90})
    assert ended["tool_executed"] is True
    assert "late" in api.call("POST", f"/sandboxes/{ident}/logs", {"id": late})["result"]["content"]


def test_an_engine_that_ends_its_containers_loses_them_and_the_service_says_so(forgetting: tuple[OwnEngine, Api]) -> None:
    own, api = forgetting
    lost = [api.create(image=IMAGE), api.create(image=IMAGE)]
    own.terminate()
    own.start()
    assert eventually(lambda: [api.state(ident) for ident in lost] == ["lost", "lost"], 60)
    for ident in lost:
        assert api.run(ident, "true")["code"] == "sandbox_unavailable"
        assert api.call("GET", f"/sandboxes/{ident}")["post_mortem"]
    fresh = eventually(lambda: api.http.post("/v1/sandboxes", json={"image": IMAGE}).json().get("id"), 30)
    assert api.run(fresh, "echo on")["result"]["output"] == "on\n"
