"""A daemon started from nothing: in namespaces of its own, so that no engine of this machine is touched."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(180),
    pytest.mark.skipif(os.geteuid() != 0, reason="starting a daemon needs root"),
    pytest.mark.skipif(shutil.which("dockerd") is None, reason="no dockerd here: the engine is another machine's"),
]

# Every folder in which a daemon meets another one is covered by an empty one; the process namespace ends with its first
# process, and everything started in it too.
APART = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"]
COVER = 'for folder in /run /var/lib/docker /var/log; do mount -t tmpfs -o mode=755 tmpfs "$folder"; done; exec "$@"'

START = """
import json, os
from sandbox.docker.engine import client as engine
from sandbox.docker.setup import provision
said = []
client = provision.ensure_engine(said.append)
found = [pid for pid in os.listdir("/proc") if pid.isdigit() and open(f"/proc/{pid}/comm").read() == "dockerd\\n"]
outputs = {os.readlink(f"/proc/{found[0]}/fd/{number}") for number in (0, 1, 2)}
again = []
provision.ensure_engine(again.append)
print(json.dumps({
    "said": said, "again": again, "daemons": len(found), "outputs": sorted(outputs),
    "own_session": os.getsid(int(found[0])) == int(found[0]),
    "containers": client.containers.list(all=True), "api": engine.describe(client).api_version,
}))
"""


def apart(code: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DOCKER_")}
    probe = subprocess.run([*APART, "sh", "-c", COVER, "sh", "true"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"this machine makes no namespaces: {probe.stderr.strip()}")
    command = [*APART, "sh", "-c", COVER, "sh", sys.executable, "-c", code]
    root = Path(__file__).resolve().parents[2]
    return subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, timeout=120, check=False)


def test_where_no_engine_answers_one_is_started_once_and_holds_nothing_of_ours() -> None:
    done = apart(START)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["said"] == ["starting the Docker daemon (dockerd, log in /var/log/gamebox-dockerd.log)"]
    assert found["again"] == []
    assert found["daemons"] == 1
    assert found["own_session"]
    assert found["outputs"] == ["/dev/null", "/var/log/gamebox-dockerd.log"]
    assert found["containers"] == []
    assert tuple(map(int, found["api"].split("."))) >= (1, 41)


FAIL = """
import os, sys
from pathlib import Path
from sandbox.docker.setup import provision
from sandbox.errors import SandboxError
Path("/var/lib/docker/image").write_text("a file where the daemon keeps a folder")
try:
    provision.ensure_engine(print)
except SandboxError as error:
    print(error.code.value, error.message, error.hint, sep="\\n")
"""


def test_a_daemon_that_does_not_start_says_why() -> None:
    said = apart(FAIL).stdout.splitlines()
    assert said[1] == "setup_failed"
    assert "dockerd ended with status 1: " in said[2]
    assert "not a directory" in said[2]
    assert "/var/log/gamebox-dockerd.log" in said[3]
