"""The second use of the product: shell tasks in isolation, from Python and from the command line, several at once."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import threading
from pathlib import Path

import pytest

from sandbox import DockerEnvironment, Limits
from sandbox.errors import ErrorCode
from sandbox.ready import wait_for_http
from tests.programs import run_gamebox

pytestmark = pytest.mark.engine
LIMITS = Limits(memory_bytes=256 << 20, pids=128)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A folder of work: readings to add up, and the script that does it."""
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "readings.csv").write_text("place,litres\nharbour,4\nriver,7\nharbour,1\n")
    (folder / "sum.sh").write_text(
        'tail -n +2 "$1" | awk -F, \'{ s[$1] += $2 } END { for (p in s) print p "," s[p] }\' | sort\n'
    )
    return folder


def test_a_task_of_several_steps(job: Path, tmp_path: Path) -> None:
    """Copied in, worked on in a session, served, fetched, copied out; the folder on the host stays as it was."""
    with DockerEnvironment(workspace=job, limits=LIMITS) as env:
        env.run("mkdir out && cd out && export TARGET=sums.csv").unwrap()
        assert (
            env.run("sh ../sum.sh ../readings.csv > $TARGET; echo $? in $PWD").unwrap().output
            == "0 in /workspace/out\n"
        )
        server = env.run("exec python3 -m http.server 8000 --bind 127.0.0.1", background=True).unwrap().id
        page = wait_for_http(env, "http://127.0.0.1:8000/sums.csv", status=200, command_id=server)
        assert list(csv.reader(io.StringIO(page.text))) == [["harbour", "5"], ["river", "7"]]
        assert env.kill(server).unwrap().survivors == 0
        env.download("out", tmp_path / "result").unwrap()
    assert (tmp_path / "result/sums.csv").read_text() == "harbour,5\nriver,7\n"
    assert sorted(os.listdir(job)) == ["readings.csv", "sum.sh"]


def test_tasks_at_once_see_nothing_of_one_another(job: Path) -> None:
    """Five tasks, one of them hostile: each has its own files and processes, and the host keeps its own."""
    secret = f"marked-{os.getpid()}"
    said: dict[int, str] = {}

    def work(number: int) -> None:
        with DockerEnvironment(workspace=job, limits=LIMITS, env={"TASK": str(number)}) as env:
            env.run(f"echo {secret}-{number} > mine; (exec -a {secret}-{number} sleep 100) &", session=None).unwrap()
            if number == 0:
                hostile = env.run("rm -rf / 2>/dev/null; f() { f | f & }; f; wait; sleep 100", timeout_seconds=1.0)
                assert hostile.code is ErrorCode.timeout  # type: ignore[union-attr]
            seen = env.run("cat mine 2>/dev/null; cat /proc/[0-9]*/cmdline | tr '\\0' '\\n'; ls / ~ /tmp", session=None)
            said[number] = seen.unwrap().output

    tasks = [threading.Thread(target=work, args=(n,)) for n in range(5)]
    for task in tasks:
        task.start()
    for task in tasks:
        task.join()
    assert sorted(said) == [0, 1, 2, 3, 4]
    for number, output in said.items():
        assert not [n for n in range(5) if n != number and f"{secret}-{n}" in output]
        assert number == 0 or f"{secret}-{number}" in output
    assert (job / "sum.sh").exists()


def test_from_the_command_line(job: Path) -> None:
    command = ["run", "--workspace", str(job), "--memory", "256m", "--timeout", "20", "--"]

    def gamebox(*args: str) -> subprocess.CompletedProcess[str]:
        return run_gamebox(*command, *args)

    done = gamebox("sh", "sum.sh", "readings.csv")
    assert (done.stdout, done.returncode) == ("harbour,5\nriver,7\n", 0)
    refused = gamebox("sh", "-c", "echo changed > readings.csv; cat /etc/shadow; exec 3<>/dev/tcp/127.0.0.1/1; exit 3")
    assert refused.returncode != 0
    assert "ermission denied" in refused.stderr
    assert (job / "readings.csv").read_text().startswith("place,")
