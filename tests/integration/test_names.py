"""Names of kept sandboxes, given by several orchestrators at once."""

from __future__ import annotations

import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox.docker.engine.client import connect
from sandbox.docker.kept import inventory

pytestmark = pytest.mark.engine

RACER = """
import sys
from sandbox import DockerEnvironment, Limits, SandboxError
env = DockerEnvironment(limits=Limits(memory_bytes=128 << 20), keep=True, keep_seconds=60.0, name=sys.argv[1])
print("there", flush=True)
input()
try:
    env.start()
except SandboxError as error:
    print("refused", error.code, "attach" in (error.hint or ""), flush=True)
else:
    print("made", env.run("echo works").unwrap().output.strip(), flush=True)
    input()
    env.remove()
"""


def raced(name: str, count: int, caches: list[Path]) -> list[str]:
    """What racing processes say of their start; none is left, nor a sandbox."""
    pipe = subprocess.PIPE
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, name], stdin=pipe, stdout=pipe, text=True, env={"XDG_CACHE_HOME": str(cache)}
        )
        for cache in (caches * count)[:count]
    ]
    try:
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "there\n"
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        said = [racer.stdout.readline().strip() for racer in racers if racer.stdout is not None]
        there = [each for each in inventory.sandboxes(connect(), every=True) if each.name == name]
        assert len(there) == said.count("made works"), "those that were refused leave nothing"
        return said
    finally:
        for racer in racers:
            racer.communicate("end\n", timeout=60)
        assert not [each for each in inventory.sandboxes(connect(), every=True) if each.name == name]


def test_of_eight_that_race_for_a_name_one_gets_it(tmp_path: Path) -> None:
    said = raced(f"race-{secrets.token_hex(4)}", 8, [tmp_path])
    assert sorted(said) == ["made works", *["refused invalid_configuration True"] * 7]


def test_of_those_that_share_no_lock_never_two_get_it(tmp_path: Path) -> None:
    """As from several hosts."""
    said = raced(f"race-{secrets.token_hex(4)}", 4, [tmp_path / str(n) for n in range(4)])
    assert said.count("made works") <= 1
    assert set(said) <= {"made works", "refused invalid_configuration True"}
