"""A run that delegates, killed with SIGKILL at random moments over and over.

python -m tests.scenarios.killed_tree KILLS SEED            # runs of 20 steps one after the other, until there were so many kills
python -m tests.scenarios.killed_tree go LOG RUN            # one process of such a run
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.record.resume import begin, resume
from agent.record.store import EventLog, record_of, verify
from sandbox import DockerEnvironment, Limits
from sandbox.docker.engine.client import connect
from sandbox.docker.kept.inventory import remove, sandboxes
from tests.unit.agent.record.delegating_runs import FINISH, call, delegate, tree, tree_of

ROOT = Path(__file__).parents[2]
STEPS = 20


def slow(word: str) -> dict[str, Any]:
    """A command that can be hit while it works, before and after it leaves its trace."""
    return call("run", command=f"sleep 0.05; echo {word} >> done; sleep 0.05")


WORKER = [slow("w1"), call("write", path="file", content="x"), slow("w2"), FINISH]
MIDDLE = [slow("m1"), delegate("worker", task="work"), slow("m2"), FINISH]
TO = (delegate("worker", task="x"), delegate("middle"))
BOSS = [*(step for n in range(1, 7) for step in (slow(f"b{n}"), TO[n % 2], slow("b"))), slow("last"), FINISH]
_BELOW = {1: ["m1", "w1", "w2", "m2"], 0: ["w1", "w2"]}
DONE = [*(word for n in range(1, 7) for word in (f"b{n}", *_BELOW[n % 2], "b")), "last"]


def go(log_path: str, run: str) -> None:
    """Begin the run or go on with it, to its end; says "ready" when it is under way."""
    with EventLog(log_path) as log, log.begin(run) as writer:
        if log.head(run) is None:
            options: Any = {"limits": Limits(memory_bytes=256 << 20), "track_changes": False, "keep_seconds": 300.0}
            environment = DockerEnvironment(keep=True, name=f"run-{run}", **options).start()
            agent = tree(environment, boss=BOSS, middle=MIDDLE, worker=WORKER)
            begin(agent, writer, "leave traces")
            print("ready", flush=True)
            outcome = agent.execute("leave traces")
        elif record_of(log, run).status == "finished":  # it was killed behind its last event
            print("ready\nfinished", flush=True)
            return
        else:
            environment = DockerEnvironment.attach(f"run-{run}")
            agent = tree(environment, boss=BOSS, middle=MIDDLE, worker=WORKER)
            print("ready", flush=True)
            outcome = resume(agent, writer)
        print(outcome.status.value, outcome.reason, outcome.usage.calls, flush=True)
        environment.close()


@dataclass
class Found:
    """What came of it all."""

    kills: int = 0
    runs: int = 0
    within: Counter[int] = field(default_factory=Counter)  # how deep the agent stood that was at work, with how many kills


def killed_over_and_over(folder: Path, kills: int, seed: int) -> Found:
    """Runs until there were so many kills; raises AssertionError for an event that was lost, or an action done twice."""
    chance, found = random.Random(seed), Found()
    while found.kills < kills:
        log_path, run = folder / f"{found.runs}.db", f"tree-{uuid.uuid4().hex[:12]}"
        with swept(run):
            heads: dict[str, str] = {}
            while process(log_path, run, Moment(chance) if found.kills < kills else None):
                found.kills += 1
                found.within[look_over(log_path, run, heads)] += 1
            found.runs += 1
            check_end(log_path, run, heads)
    return found


class Moment:
    """When a process is killed: after some events more in its log, and a little later. A slow machine reaches the same moments."""

    def __init__(self, chance: random.Random) -> None:
        self.events, self.seconds = chance.randrange(12), chance.uniform(0.0, 0.1)

    def wait(self, log_path: Path, started: subprocess.Popen[str]) -> None:
        """Return when it is there, or the process ended."""
        enough = _events(log_path) + self.events
        while _events(log_path) < enough and started.poll() is None:
            time.sleep(0.005)
        time.sleep(self.seconds)


def _events(log_path: Path) -> int:
    with closing(sqlite3.connect(f"file:{log_path}?mode=ro", uri=True)) as log:
        return int(log.execute("SELECT count(*) FROM events").fetchone()[0])


def process(log_path: Path, run: str, moment: Moment | None) -> bool:
    """One process of the run, killed at that moment; whether it was, else it came to its end."""
    command = [sys.executable, "-m", "tests.scenarios.killed_tree", "go", str(log_path), run]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        assert started.stderr is not None
        ready = started.stdout.readline()
        assert ready == "ready\n", (ready, started.communicate())
        if moment is not None:
            moment.wait(log_path, started)
            started.send_signal(signal.SIGKILL)
        out, err = started.stdout.read(), started.stderr.read()
    assert started.returncode in (0, -signal.SIGKILL), (out, err)
    if started.returncode == 0:
        assert out.startswith("finished"), (out, err)
    return started.returncode != 0


def look_over(log_path: Path, run: str, heads: dict[str, str]) -> int:
    """Every event that was in the log is there still, as it was; how deep the agent stood that was at work."""
    with EventLog(log_path) as log:
        for each in log.every_run():
            verdict = verify(log, each, heads.get(each))
            assert verdict.intact, verdict
            heads[each] = verdict.head
        depth, open_run = 0, next(iter(tree_of(log, run)), None)
        while open_run is not None and open_run.parts:
            child = list(open_run.parts)[-1]
            depth, open_run = depth + 1, tree_of(log, child)[0]
    return depth


def check_end(log_path: Path, run: str, heads: dict[str, str]) -> None:
    """Everything was done once, in order, and is in the record."""
    look_over(log_path, run, heads)
    environment = DockerEnvironment.attach(f"run-{run}")
    try:
        done = environment.read("done").unwrap().content.split()
    finally:
        environment.close()
    assert done == DONE, done
    with EventLog(log_path) as log:
        records = tree_of(log, run)
    assert [record.status for record in records] == ["finished"] * len(records)
    assert len(records[0].steps) == STEPS
    assert [record.agent for record in records].count("worker") == 6
    assert records[0].usage.calls == sum(len(record.steps) for record in records)
    answers = [step.envelope or {} for record in records for step in record.steps]
    assert all(answer.get("tool_executed") is True for answer in answers), answers


@contextmanager
def swept(run: str) -> Iterator[None]:
    """The run's sandbox is gone afterwards."""
    try:
        yield
    finally:
        for each in sandboxes(connect(), every=True):
            if each.name == f"run-{run}":
                remove(each, force=True)


if __name__ == "__main__":
    if sys.argv[1] == "go":
        go(*sys.argv[2:])
    else:
        os.environ.setdefault("XDG_STATE_HOME", tempfile.mkdtemp())
        with tempfile.TemporaryDirectory() as scratch:
            print(killed_over_and_over(Path(scratch), int(sys.argv[1]), int(sys.argv[2])))
