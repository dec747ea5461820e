"""The clock of the host is set while no service is there: sandboxes live as long as they were to, and their times follow."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from tests.integration.own_engine import IMAGE
from tests.servers.gamebox_service import ServiceProcess

from .api import Api

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]
# As long as the time to live, twice.
JUMP = 7200.0
LATER = f"""
import sys, time
real = time.time
time.time = lambda: real() + {JUMP}
from agent.cli.app import main
main(sys.argv[1:])
"""


def end_of(api: Api, ident: str) -> float:
    assert api.run(ident, "echo on")["result"]["output"] == "on\n"
    return datetime.fromisoformat(api.call("GET", f"/sandboxes/{ident}")["ends_at"]).timestamp()


def test_a_clock_that_is_set_ends_no_sandbox(place: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    first, later, back = (ServiceProcess(folder), ServiceProcess(folder, program=LATER), ServiceProcess(folder, "--stop-all"))
    with Api(first.start()) as api:
        ident = api.create(image=IMAGE)
        end = end_of(api, ident)
    first.kill()
    with Api(later.start()) as api:
        assert end_of(api, ident) == pytest.approx(end + JUMP, abs=30)
    later.kill()
    with Api(back.start()) as api:
        assert end_of(api, ident) == pytest.approx(end, abs=30)
    back.stop()
