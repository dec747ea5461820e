"""The orchestrator's wall clock jumps by a year, forth and back, while sandboxes work: nothing is late, early or lost for it.

It is shifted by libfaketime, which stands between the process and the C library; monotonic time goes on, as it does where a real
clock is set. What the kernel and the engine do when their clock jumps is not tried; that the guest never reads the wall clock
is checked in tests/unit/house/test_clocks.py.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from .own_engine import IN_A_PROCESS, ROOT, OwnEngine

LIBRARY = next(iter(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")), None)
pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(90),
    pytest.mark.skipif(LIBRARY is None, reason="no libfaketime here (Debian: faketime)"),
]
YEAR_SECONDS = 365 * 86400
JUMPS = ("+365d", "-365d", "+0")


ORCHESTRATOR = (
    IN_A_PROCESS
    + """
import sys, time
def say(*words): print(*words, flush=True)
with DockerEnvironment(IMAGE, limits=Limits(memory_bytes=256 << 20, lease_seconds=4.0)) as env:
    say("ready")
    for line in sys.stdin:
        if line == "clock\\n":
            say(int(time.time()))
        elif line == "run\\n":
            say(env.run("sleep 0.7; echo ran", timeout_seconds=5).unwrap().output.strip())
        elif line == "long\\n":
            say(env.run("sleep 30", timeout_seconds=1.5).code)
"""
)


def test_of_the_orchestrator(engine: OwnEngine, tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    clock.write_text("+0")
    settings = {
        "LD_PRELOAD": str(LIBRARY),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DOCKER_HOST": engine.address,
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    }
    with subprocess.Popen(
        [sys.executable, "-c", ORCHESTRATOR],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=settings,
    ) as child:

        def ask(question: str, jump: str = "") -> tuple[str, float]:
            assert child.stdin is not None
            assert child.stdout is not None
            before = time.monotonic()
            child.stdin.write(f"{question}\n")
            child.stdin.flush()
            if jump:
                time.sleep(0.3)
                clock.write_text(jump)
            return child.stdout.readline().strip(), time.monotonic() - before

        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            for jump in JUMPS:
                assert ask("run", jump)[0] == "ran"
                shift = int(ask("clock")[0]) - time.time()
                assert abs(shift - {"+365d": YEAR_SECONDS, "-365d": -YEAR_SECONDS, "+0": 0}[jump]) < 60
                said, took = ask("long", jump)
                assert said == "timeout"
                assert 1.4 < took < 60, took
            time.sleep(5.0)  # past the lease: pings go on
            assert ask("run")[0] == "ran"
        finally:
            assert child.stdin is not None
            child.stdin.close()
            child.wait(20)
    assert engine.nothing_is_left()
