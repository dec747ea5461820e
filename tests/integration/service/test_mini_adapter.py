"""The adapter for mini-swe-agent, whose sandbox is one of a service: its commands, and what is left when its process is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.contract.checks import with_more_time
from tests.servers.gamebox_service import shared_service

from .api import Api

pytestmark = pytest.mark.engine

PROGRAM = """
import time
from sandbox.integrations.mini_swe_agent import GameboxEnvironment
environment = GameboxEnvironment(image="gamebox/base", limits={"idle_seconds": 6.0})
print(f"id={environment.environment.id}", flush=True)
time.sleep(600)
"""


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Api:
    service = shared_service()
    monkeypatch.setenv("MSWEA_SILENT_STARTUP", "1")
    monkeypatch.setenv("MSWEA_GLOBAL_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("GAMEBOX_URL", service.url)
    monkeypatch.setenv("GAMEBOX_API_KEY", service.key)
    return Api(service)


def test_its_sandbox_is_one_of_the_service(api: Api) -> None:
    from sandbox.integrations.mini_swe_agent import GameboxEnvironment

    with api, GameboxEnvironment(image="gamebox/base", container_timeout="10m", env={"COLOUR": "red"}) as environment:
        ident = str(environment.environment.id)  # type: ignore[union-attr]
        assert api.call("GET", f"/sandboxes/{ident}")["time_to_live_seconds"] == 600
        assert environment.execute({"command": "echo $COLOUR; exit 3"}) == {
            "output": "red\n",
            "returncode": 3,
            "exception_info": "",
        }
        late = with_more_time(
            lambda seconds: environment.execute({"command": "echo begun; sleep 60"}, timeout=seconds),
            lambda answer: bool(answer["output"]), 0.5,
        )  # fmt: skip
        assert (late["output"], late["returncode"], late["extra"]["exception_type"]) == ("begun\n", -1, "timeout")
        environment.cleanup()
        api.call("GET", f"/sandboxes/{ident}", status=404)


def test_a_killed_client_leaves_a_sandbox_that_ends(api: Api) -> None:
    client = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    assert client.stdout is not None
    with api:
        try:
            ident = next(line for line in client.stdout if line.startswith("id=")).strip().removeprefix("id=")
            assert api.call("GET", f"/sandboxes/{ident}")["state"] == "running"
        finally:
            client.send_signal(signal.SIGKILL)
            client.wait()
            client.stdout.close()
        while api.call("GET", f"/sandboxes/{ident}")["state"] == "running":
            time.sleep(0.2)
        api.call("DELETE", f"/sandboxes/{ident}", status=204)
