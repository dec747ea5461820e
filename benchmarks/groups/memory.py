"""Memory of a sandbox: its processes, and its share of the orchestrator."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from benchmarks import machine
from benchmarks.measuring import KIB, MIB, Goal, Options, Row, summary
from sandbox.environment.sandboxed import SandboxedEnvironment
from sandbox.operations import OPERATIONS

SETTLE_SECONDS = 0.5
# In a fresh process: bytes and threads that each sandbox after the first takes.
CROWD = """
import contextlib, json, sys
from benchmarks import machine
with contextlib.ExitStack() as stack:
    stack.enter_context(machine.open_sandbox(sys.argv[1])).run("true").unwrap()
    size, threads, count = machine.resident_bytes("self"), machine.threads(), int(sys.argv[2])
    for _ in range(count):
        stack.enter_context(machine.open_sandbox(sys.argv[1])).run("true").unwrap()
    more = machine.resident_bytes("self") - size, machine.threads() - threads
    print(json.dumps([each / count for each in more]))
"""


def call_everything(env: SandboxedEnvironment) -> None:
    """Call every operation once; all but those of pages, which need a server, have to work."""
    ident = env.run("cat", background=True, pty=True).unwrap().id
    calls: dict[str, Callable[[], Any]] = {
        "write": lambda: env.write("a", "one\n"), "read": lambda: env.read("a"), "edit": lambda: env.edit("a", "one", "two"),
        "list": env.list, "list_details": lambda: env.list_details("."), "stat": lambda: env.stat("a"),
        "search": lambda: env.search("two"),
        "make_dir": lambda: env.make_dir("d"), "move": lambda: env.move("a", "d/a"), "delete": lambda: env.delete("d/a"),
        "upload": lambda: env.upload(bytes(MIB), "b"), "download": lambda: env.download("b"),
        "run": lambda: env.run("true"), "open_session": lambda: env.open_session("s"),
        "sessions": env.sessions, "end_session": lambda: env.end_session("s"), "send": lambda: env.send(ident, "x\n"),
        "resize": lambda: env.resize(ident, 20, 80), "screen": lambda: env.screen(ident), "logs": lambda: env.logs(ident),
        "wait_for": lambda: env.wait_for(id=ident, log="x", timeout_seconds=10), "processes": env.processes,
        "kill": lambda: env.kill(ident), "browse": lambda: env.browse("http://127.0.0.1:1/"), "usage": env.usage,
        # The image has no browser: what one takes is its own, see the group browser.
        "browse_interact": lambda: env.browse_interact({"action": "back"}), "screenshot": env.screenshot,
    }  # fmt: skip
    if set(calls) != set(OPERATIONS):
        raise SystemExit(f"operations that are not measured: {set(calls) ^ set(OPERATIONS)}")
    for name, call in calls.items():
        answer = call()
        if name not in ("browse", "browse_interact", "screenshot"):
            answer.unwrap()


def memory(options: Options) -> Iterator[Row]:
    """Measure all processes of a container after little and after everything, and what each sandbox takes of this process."""
    little, everything, reading, sleeping = [], [], [], []
    with ExitStack() as stack:
        for _ in range(options.rounds(5)):
            other = stack.enter_context(machine.plain_container(options.image))
            env = stack.enter_context(machine.open_sandbox(options.image))
            env.run("true").unwrap()
            time.sleep(SETTLE_SECONDS)
            little.append(_mebibytes(env.container_id))
            sleeping.append(_mebibytes(other.id or ""))
            call_everything(env)
            time.sleep(SETTLE_SECONDS)
            everything.append(_mebibytes(env.container_id))
            _open_page(env)
            time.sleep(SETTLE_SECONDS)
            reading.append(_mebibytes(env.container_id))
    beside = summary(sleeping)
    sleep = "a container that sleeps"
    yield Row("after start and one run", summary(little), "MiB", sleep, beside, (Goal("p50", 9.0),), "goal 7")
    yield Row("after one call of every operation", summary(everything), "MiB", sleep, beside, (Goal("p50", 16.0),))
    yield Row("in the half minute after a page", summary(reading), "MiB", sleep, beside, note="what reads pages waits for the next")
    yield from _orchestrator(options)


def _open_page(env: SandboxedEnvironment) -> None:
    """Open a page of a server in the sandbox, and end the server."""
    server = env.run("python3 -m http.server 8000 --bind 127.0.0.1", background=True).unwrap().id
    env.wait_for(port=8000).unwrap()
    env.browse("http://127.0.0.1:8000/").unwrap()
    env.kill(server).unwrap()


def _mebibytes(container_id: str) -> float:
    return machine.proportional_bytes(machine.container_pids(container_id)) / MIB


def _orchestrator(options: Options) -> Iterator[Row]:
    """Measure what each sandbox but the first takes of a fresh process."""
    count = options.rounds(30)
    done = subprocess.run([sys.executable, "-c", CROWD, options.image, str(count)], check=True, capture_output=True, text=True)
    size, threads = json.loads(done.stdout)
    figures = {"p50": size / KIB, "rounds": count}
    yield Row("orchestrator, each further sandbox", figures, "KiB", goals=(Goal("p50", 200.0),), note="in a fresh process")
    yield Row("orchestrator, threads of each further sandbox", {"p50": threads}, "threads", goals=(Goal("p50", 0.0),))
