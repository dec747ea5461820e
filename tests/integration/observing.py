"""What the tests see of a sandbox from outside: its processes as the engine lists them, and how late this machine itself is."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import docker
import docker.errors

from sandbox import DockerEnvironment
from sandbox.docker.engine.client import connect

COMMAND_UID = 1000
# Above this the machine, not the sandbox, is what is late.
MACHINE_LATE_SECONDS = 0.1
MOST_TRIES = 5


@dataclass(frozen=True)
class HostProcess:
    """One process of a container as ``ps`` on the engine's host shows it."""

    pid: int
    uid: int
    state: str
    threads: int
    args: str

    @property
    def alive(self) -> bool:
        """Not a mere zombie; a process whose leader thread is dead has further threads and counts as alive."""
        return not self.state.startswith("Z") or "l" in self.state or self.threads > 1


def processes(env: DockerEnvironment) -> list[HostProcess]:
    """Every process in the sandbox's container, as the engine sees it from the host; [] where the container is gone."""
    try:
        listed = connect().api.top(env.container_id, ps_args="-eo pid,uid,stat,nlwp,args")
    except docker.errors.APIError:
        return []
    # Podman does not part the columns.
    rows = [row if len(row) > 1 else row[0].split(None, 4) for row in listed["Processes"]]
    return [HostProcess(int(p), int(u), s, int(n), a) for p, u, s, n, a in rows]


def of_commands(env: DockerEnvironment, *, without: Sequence[str] = ()) -> list[HostProcess]:
    """Live processes of commands (they, and only they, have the user's id), but for those with ``without`` in their argv."""
    return [p for p in processes(env) if p.uid == COMMAND_UID and p.alive and not any(w in p.args for w in without)]


def guest_pid(env: DockerEnvironment) -> int:
    """Process id of the guest on the host."""
    return int(connect().api.inspect_container(env.container_id)["State"]["Pid"])


def resident_bytes(pid: int) -> int:
    """Resident memory of a process of this host."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


def in_workspace(env: DockerEnvironment, name: str) -> Path:
    """A file of the sandbox as this host sees it, also while the sandbox cannot be reached."""
    return Path(f"/proc/{guest_pid(env)}/root/workspace/{name}")


def _runnable() -> int:
    with open("/proc/loadavg", encoding="ascii") as file:
        return int(file.read().split()[3].split("/")[0])


class Heartbeat:
    """A thread that wants to wake every 5 ms; ``late_seconds`` is the most that this machine kept it waiting.

    ``lost_seconds`` is the whole time for which it was kept waiting, or there was more to run than the machine has processors.
    """

    def __init__(self) -> None:
        self.late_seconds = 0.0
        self.lost_seconds = 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def _beat(self) -> None:
        while True:
            before = time.monotonic()
            if self._end.wait(0.005):
                return
            waited = time.monotonic() - before
            self.late_seconds = max(self.late_seconds, waited - 0.005)
            self.lost_seconds += waited if _runnable() > (os.cpu_count() or 1) else waited - 0.005

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


def crowded(looks: int = 40) -> bool:
    """Whether there is more to run on this machine than it has processors, on average; looks for 0.2 s.

    What does not sleep waits longer then than a heartbeat shows, a killed process for instance that has to die.
    """
    runnable = 0
    for _ in range(looks):
        time.sleep(0.005)
        runnable += _runnable()
    return runnable > looks * (os.cpu_count() or 1)


def within(seconds: float, case: Callable[[], Any], prepare: Callable[[], object] = lambda: None) -> tuple[Any, float]:
    """Call ``prepare``, then hold ``case`` to a promised deadline; answers (its result, seconds it took).

    The machine is shared and noisy: where it was itself more than 100 ms late, or is crowded when the case is over and none of its
    processes are left, the whole case gets another try.
    """
    for _ in range(MOST_TRIES):
        prepare()
        with Heartbeat() as heart:
            before = time.monotonic()
            result = case()
            took = time.monotonic() - before
        if took <= seconds or (heart.late_seconds < MACHINE_LATE_SECONDS and not crowded()):
            break
    assert took <= seconds, f"took {took:.3f} s where {seconds} s are promised (machine late by {heart.late_seconds:.3f} s)"
    return result, took


def in_time(took: float, promised_seconds: float, heart: Heartbeat) -> bool:
    """Whether a promised deadline was met, without the time that the machine lost; if it is crowded still, 18 s more are given."""
    return took < promised_seconds + heart.lost_seconds or (took < promised_seconds + 18 and crowded())


def eventually(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """The first true value of ``condition`` within ``seconds``, else its last value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return value


def pause(client: docker.DockerClient, container: str | None) -> None:
    """Pause a container from outside. As the product does, again where runc gave up: see ``FREEZE_SECONDS`` of the backend."""
    assert container is not None

    def paused() -> bool:
        try:
            client.api.pause(container)
        except docker.errors.APIError as error:
            if "unable to freeze" not in str(error):
                raise
            return False
        return True

    assert eventually(paused)
