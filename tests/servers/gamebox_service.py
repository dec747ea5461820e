"""A real ``gamebox serve`` on loopback, in a process of its own, forked as in ``programs``; all tests of a worker share one."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

from tests.programs import Program

START_SECONDS = 60
STOP_SECONDS = 60


class ServiceProcess:
    """A service with its data in ``folder``; ``start`` it again after ``kill`` or ``stop`` on the same port.

    ``program`` is Python that is run in the place of the command, and in a process that is started and not forked.
    """

    def __init__(self, folder: Path, *options: str, program: str | None = None) -> None:
        self.folder, self._options, self._program = folder, options, program
        self.port, self.scheme = 0, "http"
        self.process: Program | subprocess.Popen[bytes] | None = None
        self.output: IO[str] | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"{self.scheme}://127.0.0.1:{self.port}"

    @property
    def key(self) -> str:
        """Its first key."""
        return (self.folder / "admin.key").read_text().strip()

    def start(self) -> ServiceProcess:
        """Start it; return when it takes requests."""
        words = ["serve", "--port", str(self.port), "--data", str(self.folder), *self._options]
        # Tests run beside each other, and none of them fills its disk.
        env = {"GAMEBOX_SERVICE_DISK_FACTOR": "100", **os.environ}
        read, write = os.pipe()
        self.output = open(read, encoding="utf-8")  # noqa: SIM115
        with open(write, "w") as out, (self.folder.parent / "service.log").open("a") as log, open(os.devnull) as nothing:
            if self._program is None:
                self.process = Program(words, (nothing, out, log), env=env)
            else:
                command = [sys.executable, "-c", self._program, *words]
                self.process = subprocess.Popen(command, stdin=nothing, stdout=out, stderr=log, env=env)
        address = self.output.readline().strip()
        self.scheme, separator, place = address.partition("://")
        assert separator, (self.folder.parent / "service.log").read_text()[-2000:]
        self.port = int(place.rpartition(":")[2])
        return self

    def kill(self) -> None:
        """End it as kill -9 does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it as an operator does; the sandboxes go on."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(STOP_SECONDS)
            self.process = None
        if self.output is not None:
            self.output.close()


@functools.cache
def shared_service() -> ServiceProcess:
    """Return a service of this process, which ends with it and then ends all of its sandboxes."""
    folder = Path(tempfile.mkdtemp(prefix="gamebox-tests-service-"))
    # What the command ``gamebox`` is, started and not forked: it finds its modules when it needs them.
    made = ServiceProcess(folder / "data", "--stop-all", program="from agent.cli.process import main; main()")

    own = os.getpid()

    def end() -> None:
        if os.getpid() != own:
            return  # a test forked
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    (folder / "data").mkdir()
    return made.start()
