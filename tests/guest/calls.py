"""A call as the guest's dispatcher makes it, for handlers under test: real files, real helper processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sandbox.guest.commands.killer import kill_below
from sandbox.guest.commands.launch.spawner import Spawner
from sandbox.guest.commands.processes import Processes
from sandbox.guest.loop.context import HelperResult, Place
from sandbox.guest.loop.reactor import Reactor
from sandbox.guest.loop.worker_call import WorkerCall
from sandbox.guest.protocol.faults import Fault
from sandbox.local.launcher import find_launcher

LIMITS = {
    "read_bytes": 256 << 10, "write_bytes": 8 << 20, "transfer_bytes": 1 << 30, "network": "none",
    "memory_bytes": 1 << 40, "spill_bytes": 1 << 20, "pids": 1 << 22,
}  # fmt: skip
MODULES = str(Path(__file__).parents[2])  # where the package of the guest is found


def place_at(base: Path, **limits: Any) -> Place:
    """A place with a workspace, a home and a spill folder below ``base``, all three roots."""
    names = [base / name for name in ("workspace", "home", "spill")]
    for name in names:
        name.mkdir(exist_ok=True)
    workspace, home, spill = (os.fsencode(name) for name in names)
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": MODULES}
    return Place(
        workspace,
        home,
        spill,
        (workspace, home, spill),
        os.getuid(),
        os.getgid(),
        {**LIMITS, **limits},
        (sys.executable,),
        environ,
    )


@dataclass
class RealCall:
    """``incoming`` is what the caller streams; what a handler sends is collected in ``sent``."""

    place: Place
    args: dict[str, Any]
    incoming: list[bytes] = field(default_factory=list)
    complete: bool = True
    sent: bytearray = field(default_factory=bytearray)
    processes: Any = field(default_factory=lambda: SimpleNamespace(commands={}, isolated=False))

    def hand_over(self, work: Callable[[], None]) -> None:
        work()

    def await_report(self, start: Callable[[Callable[[Any], None]], Callable[[], None]]) -> Any:
        raise AssertionError("there is no reactor")

    def body(self) -> Iterator[bytes]:
        yield from self.incoming
        if not self.complete:
            raise Fault("transfer_incomplete")

    def send(self, chunk: bytes) -> None:
        self.sent += chunk

    def run_helper(
        self,
        argv: list[str],
        *,
        timeout_seconds: float,
        max_output_bytes: int,
        cwd_fd: int | None = None,
        stdin: bytes | int = b"",
        env: dict[str, str] | None = None,
    ) -> HelperResult:
        source: dict[str, Any] = {"stdin": stdin} if isinstance(stdin, int) else {"input": stdin}
        cwd = None if cwd_fd is None else f"/proc/self/fd/{cwd_fd}"
        passed = () if cwd_fd is None else (cwd_fd,)
        env = {**self.place.environ, **(env or {})}
        timed_out = False
        try:
            done = subprocess.run(
                argv,
                capture_output=True,
                timeout=timeout_seconds,
                cwd=cwd,
                pass_fds=passed,
                env=env,
                check=False,
                **source,
            )
            code, out, err = done.returncode, done.stdout, done.stderr
        except FileNotFoundError:
            raise Fault("program_not_found", program=argv[0]) from None
        except subprocess.TimeoutExpired as error:
            timed_out, code, out, err = True, -9, error.stdout or b"", error.stderr or b""
        cut = len(out) > max_output_bytes
        return HelperResult(code if code >= 0 else None, out[:max_output_bytes], err[:max_output_bytes], cut, timed_out)


class RunningProcesses:
    """The processes of a guest on this host, with the reactor that they live in."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._reactor = Reactor()
        self.processes = Processes(self._reactor, Spawner(self._reactor, place, False), place)
        self._thread = threading.Thread(target=self._reactor.run)
        self._thread.start()

    def call(self, **args: Any) -> WorkerCall:
        """A call as a worker of the guest gets it. It must not stream."""
        link: Any = None
        return WorkerCall(self.place, args, 1, link, self._reactor, self.processes)

    def close(self) -> None:
        """End the reactor, the launcher and all that it started."""
        self._reactor.hand_over(self._reactor.stop)
        self._thread.join()
        kill_below(self.launcher)
        os.kill(self.launcher, signal.SIGKILL)
        os.waitpid(self.launcher, 0)

    @property
    def launcher(self) -> int:
        """The process below which all others are."""
        return self.processes.spawner._launcher


@contextmanager
def running_processes(place: Place) -> Iterator[RunningProcesses]:
    """Run a guest's processes on this host."""
    place.launcher = str(find_launcher())
    running = RunningProcesses(place)
    try:
        yield running
    finally:
        running.close()


def forger(output: bytes) -> tuple[str, ...]:
    """An interpreter that runs a program of its own, whatever it is to run: it writes ``output`` once it was asked, and stays."""
    writing = f"sys.stdout.buffer.write({output!r}); sys.stdout.flush()"
    program = f"import sys; sys.stdin.readline(); {writing}; sys.stdin.read()"
    return (sys.executable, "-c", program)
