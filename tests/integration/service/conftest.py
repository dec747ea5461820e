"""A real service on an engine of the tests' own, in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.own_engine import IMAGE, OwnEngine
from tests.servers.gamebox_service import ServiceProcess

from .api import Api


@pytest.fixture(scope="module")
def place(engine: OwnEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for services, whose environment allows the image of the tests."""
    folder = tmp_path_factory.mktemp("service")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_STATE_HOME", str(folder / "state"))
        patched.setenv("GAMEBOX_SERVICE_IMAGES", f"gamebox/*,{IMAGE}")
        templates = {"base": IMAGE, "code-interpreter-v1": "gamebox/code-interpreter"}
        patched.setenv("GAMEBOX_SERVICE_E2B_TEMPLATES", json.dumps(templates))
        yield folder


@pytest.fixture(scope="module")
def service(place: Path) -> Iterator[ServiceProcess]:
    """A service that ends its sandboxes when it ends."""
    made = ServiceProcess(place / "data", "--stop-all")
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def api(service: ServiceProcess) -> Iterator[Api]:
    """Requests to the service."""
    with Api(service) as made:
        yield made


@pytest.fixture(scope="module")
def sandbox(api: Api) -> Iterator[str]:
    """A sandbox that the tests of a module share."""
    ident = api.create(image=IMAGE)
    yield ident
    api.call("DELETE", f"/sandboxes/{ident}", status=204)
