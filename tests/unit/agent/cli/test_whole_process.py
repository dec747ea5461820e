"""The process of the command line: room for the frames of its calls in one piece of memory, and no looks for garbage."""

from __future__ import annotations

import json
import subprocess
import sys

# Prints at which depths a call maps memory each time: in the process as it is, and below the command line.
PROBE = """
import json, resource
from agent.cli import app, process

CALLS = 300


def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def leaf():
    return [1, *[2], max(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)]


def mapped_at(depth):
    if depth:
        return mapped_at(depth - 1)
    before = faults()
    for _ in range(CALLS):
        leaf()
    return faults() - before >= CALLS


def depths(_=None):
    return [depth for depth in range(300) if mapped_at(depth)]


def command_line(args):
    print(json.dumps([outside, depths()]))


outside, app.command_line = depths(), command_line
process.main()
"""


def test_no_call_below_the_command_line_maps_memory_each_time() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], check=True, capture_output=True, timeout=60)
    outside, below = json.loads(done.stdout)
    assert outside  # else this Python has no pieces, and what makes them larger can go
    assert below == []


# Prints how often a short command looked for garbage, with all that it loads.
LOOKS = """
import gc, sys
from agent.cli import process

assert "typer" not in sys.modules
before = gc.get_stats()[0]["collections"]
sys.argv = ["gamebox", "--help"]
try:
    process.main()
except SystemExit:
    print(gc.get_stats()[0]["collections"] - before, file=sys.stderr)
"""


def test_a_short_command_never_looks_for_garbage() -> None:
    done = subprocess.run([sys.executable, "-c", LOOKS], check=True, capture_output=True, timeout=60)
    assert done.stderr == b"0\n"
