"""gamebox serve --check says what holds on this host, and disturbs no service that runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.own_engine import IMAGE, OwnEngine
from tests.programs import run_gamebox
from tests.servers.gamebox_service import ServiceProcess

from .api import Api

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]


def found(*options: str | Path) -> dict[str, str]:
    lines = run_gamebox("serve", "--check", *options).stdout.splitlines()
    words = [line.split(maxsplit=1) for line in lines]
    return {rest.partition(":")[0]: state for state, rest in words}


def test_it_says_what_a_restart_of_the_engine_does(place: Path, engine: OwnEngine) -> None:
    states = found("--data", place / "new")
    names = ("engine", "engine restart", "reboot", "data")
    assert [states[name] for name in names] == ["holds", "limited", "limited", "holds"]
    assert not (place / "new").exists()
    assert engine.containers() == []


def test_it_says_for_how_many_sandboxes_the_disk_has_room(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAMEBOX_SERVICE_DISK_BYTES", str(32 << 20))
    assert found("--data", place / "new")["room"] == "holds"
    monkeypatch.setenv("GAMEBOX_SERVICE_DISK_BYTES", str(1 << 50))
    assert found("--data", place / "new")["room"] == "limited"


def test_without_an_engine_it_fails(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{place}/none.sock")
    done = run_gamebox("serve", "--check", "--data", place / "new")
    assert (done.returncode, done.stdout.split()[0]) == (1, "fails")


def test_a_service_that_runs_goes_on(service: ServiceProcess, api: Api) -> None:
    states = found("--data", service.folder)
    assert (states["data"], states["store"]) == ("limited", "holds")
    assert {"space for data", "space of the engine"} <= set(states)
    ident = api.create(image=IMAGE)
    assert api.run(ident, "echo on")["result"]["output"] == "on\n"
    api.call("DELETE", f"/sandboxes/{ident}", status=204)
