"""The engine of a service goes and comes back: with live-restore nothing is lost, without it what is lost is told."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.docker.engine.client import connect
from sandbox.docker.kept import orphans
from tests.integration.observing import eventually
from tests.integration.own_engine import IMAGE, OwnEngine, running
from tests.servers.gamebox_service import ServiceProcess

from .api import Api

pytestmark = [pytest.mark.engine, pytest.mark.exhaustive]


@pytest.fixture(autouse=True)
def _environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("GAMEBOX_SERVICE_IMAGES", IMAGE)


MAIN = "from agent.cli.app import main; main()"
# A cut is hidden for 8 s, not 30, and a call of the engine given up after 8 s, not 60: a test would wait for nothing.
SOON_LOST = "from sandbox.docker.kept import attach; attach.RECONNECT_SECONDS = 8.0; "
SOON_GIVEN_UP = "from sandbox.docker.engine import client; client.connect.__defaults__ = (8, None); "


def beside(own: OwnEngine) -> str:
    """Return what to start a service by that asks sandboxes past the engine, as it does where that has its usual socket."""
    socket = own.address.removeprefix("unix://")
    return f"from sandbox.docker.container import shortcut; shortcut.SOCKETS = ({socket!r},); {MAIN}"


def serving(own: OwnEngine, tmp_path: Path, program: str | None = None) -> Iterator[tuple[OwnEngine, Api]]:
    service = ServiceProcess(tmp_path / "data", "--stop-all", program=program).start()
    try:
        with Api(service) as api:
            yield own, api
    finally:
        service.stop()


@pytest.fixture
def restoring(tmp_path: Path) -> Iterator[tuple[OwnEngine, Api]]:
    """A service on an engine whose containers survive its restart."""
    with running(live_restore=True) as own:
        yield from serving(own, tmp_path, SOON_LOST + MAIN)


@pytest.fixture
def forgetting(tmp_path: Path) -> Iterator[tuple[OwnEngine, Api]]:
    """A service on an engine that ends its containers with itself."""
    with running() as own:
        yield from serving(own, tmp_path)


def test_an_engine_that_was_away_for_long_loses_no_sandbox(restoring: tuple[OwnEngine, Api]) -> None:
    """Longer than a cut is hidden: the connection is given up, and the service makes another one."""
    own, api = restoring
    ident = api.create(image=IMAGE)
    late = api.run(ident, "sleep 20; echo late", background=True)["result"]["id"]
    own.kill()
    began = time.monotonic()
    answer = api.run(ident, "true", timeout_seconds=5)
    assert answer["code"] in ("sandbox_unavailable", "engine_unavailable")
    assert time.monotonic() - began < 60
    assert api.state(ident) == "running"
    own.start()
    assert eventually(lambda: (api.run(ident, "echo again").get("result") or {}).get("output") == "again\n", 60)
    ended = api.call("POST", f"/sandboxes/{ident}/wait_for", {"id": late, "exit": True, "timeout_seconds": 90})
    assert ended["tool_executed"] is True
    assert "late" in api.call("POST", f"/sandboxes/{ident}/logs", {"id": late})["result"]["content"]


def test_while_the_engine_is_away_sandboxes_go_on_and_requests_to_it_are_503(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a service that is root beside the engine: it asks sandboxes past that. Nothing is lost, and a delete is made up for."""
    with running(live_restore=True) as own:
        service = ServiceProcess(tmp_path / "data", "--stop-all", program=beside(own)).start()
        try:
            with Api(service) as api:
                stays, goes, paused = (api.create(image=IMAGE) for _ in range(3))
                api.call("POST", f"/sandboxes/{paused}/pause")
                own.terminate()
                assert api.run(stays, "echo past it")["result"]["output"] == "past it\n"
                for method, path in (("POST", ""), ("POST", f"/{stays}/pause"), ("DELETE", f"/{goes}"), ("DELETE", f"/{goes}")):
                    body = {"image": IMAGE} if not path else None
                    problem = api.call(method, f"/sandboxes{path}", body, status=503)
                    assert (problem["code"], problem["retryable"]) == ("engine_unavailable", True)
                assert [api.state(each) for each in (stays, goes, paused)] == ["running", "deleting", "paused"]
                assert api.run(goes, "true")["code"] == "sandbox_unavailable"
                own.start()
                assert eventually(lambda: api.http.get(f"/v1/sandboxes/{goes}").status_code == 404, 30)
                api.call("POST", f"/sandboxes/{paused}/resume")
                for each in (stays, paused, api.create(image=IMAGE)):
                    assert api.run(each, "echo on")["result"]["output"] == "on\n"
                assert len(own.containers()) == 3
        finally:
            service.stop()
        assert (own.containers(), own.loop_devices()) == ([], [])  # the disks are freed
        own.terminate()  # such an engine lets go of the names of volumes with its next restart
        own.start()
        orphans._swept.clear()
        orphans.sweep(connect())  # as a service does every minute
        assert own.nothing_is_left()


def test_while_the_engine_stands_still_what_needs_it_is_given_up_and_leaves_nothing(tmp_path: Path) -> None:
    """It takes connections and answers nothing: a creation is given up after the time of a call, and removed later."""
    with running(live_restore=True) as own:
        service = ServiceProcess(tmp_path / "data", "--stop-all", program=SOON_GIVEN_UP + beside(own)).start()
        try:
            with Api(service) as api:
                stays = api.create(image=IMAGE)
                assert api.run(stays, "true")["tool_executed"]  # its answer came past the engine: all later ones do
                own.freeze()
                try:
                    problem = api.call("POST", "/sandboxes", {"image": IMAGE}, status=503)
                    assert (problem["code"], problem["retryable"]) == ("engine_timeout", True)
                    assert api.run(stays, "echo past it")["result"]["output"] == "past it\n"
                    assert api.call("GET", f"/sandboxes/{stays}")["state"] == "running"
                finally:
                    own.thaw()
                assert eventually(lambda: api.http.post("/v1/sandboxes", json={"image": IMAGE}).status_code == 201, 60)
                listed = [each["id"] for each in api.call("GET", "/sandboxes")["items"] if each["state"] == "running"]
                assert (stays in listed, len(listed)) == (True, 2)
                assert eventually(lambda: len(own.containers()) == 2, 60), own.containers()
        finally:
            service.stop()
        assert own.nothing_is_left()


def test_after_a_reboot_all_are_lost_with_the_reason_and_nothing_of_them_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Service, engine and containers end together; paused sandboxes are lost, too, and the files of checkpoints are freed."""
    with running() as own:
        service = ServiceProcess(tmp_path / "data").start()
        try:
            with Api(service) as api:
                running_one, paused = api.create(image=IMAGE), api.create(image=IMAGE)
                api.call("POST", f"/sandboxes/{running_one}/checkpoint", {"name": "before"})
                api.call("POST", f"/sandboxes/{paused}/pause")
            service.kill()
            own.terminate()
            own.start()
            service.start()
            with Api(service) as api:
                assert eventually(lambda: [api.state(each) for each in (running_one, paused)] == ["lost", "lost"], 30)
                for each in (running_one, paused):
                    found = api.call("GET", f"/sandboxes/{each}")
                    assert (found["reason"], found["ended_at"] is None) == ("removed", False)
                    answer = api.run(each, "true")
                    assert (answer["code"], answer["reason"]) == ("sandbox_unavailable", "removed")
                    assert found["post_mortem"] in answer["error"]
                    assert api.call("POST", f"/sandboxes/{each}/resume", status=410)["reason"] == "removed"
                assert eventually(lambda: all(gone for (gone,) in rows(service, "SELECT gone_at FROM sandboxes")), 20)
                assert list((service.folder / "checkpoints").glob("*/*")) == []
                fresh = api.create(image=IMAGE)
                assert api.run(fresh, "echo on")["result"]["output"] == "on\n"
                api.call("DELETE", f"/sandboxes/{fresh}", status=204)
        finally:
            service.stop()
        assert own.nothing_is_left()


def rows(service: ServiceProcess, query: str) -> list[tuple[object, ...]]:
    with contextlib.closing(sqlite3.connect(service.folder / "service.db")) as store:
        return store.execute(query).fetchall()


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
