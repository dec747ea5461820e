"""A real ``gamebox serve`` on loopback, in a process of its own; all tests of a worker share one."""

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

START_SECONDS = 60
STOP_SECONDS = 60


class ServiceProcess:
    """A service with its data in ``folder``; ``start`` it again after ``kill`` or ``stop`` on the same port.

    ``program`` is Python that is run in the place of the command.
    """

    def __init__(self, folder: Path, *options: str, program: str | None = None) -> None:
        self.folder, self._options, self._program = folder, options, program
        self.port, self.scheme = 0, "http"
        self.process: subprocess.Popen[str] | None = None

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
        command = [str(Path(sys.executable).with_name("gamebox"))]
        if self._program is not None:
            command = [sys.executable, "-c", self._program]
        command += ["serve", "--port", str(self.port), "--data", str(self.folder)]
        # Tests run beside each other, and none of them fills its disk.
        env = {"GAMEBOX_SERVICE_DISK_FACTOR": "100", **os.environ}
        with (self.folder.parent / "service.log").open("a") as log:
            self.process = subprocess.Popen(
                [*command, *self._options], stdout=subprocess.PIPE, stderr=log, text=True, env=env
            )
        assert self.process.stdout is not None
        address = self.process.stdout.readline().strip()
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
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None


@functools.cache
def shared_service() -> ServiceProcess:
    """Return a service of this process, which ends with it and then ends all of its sandboxes."""
    folder = Path(tempfile.mkdtemp(prefix="gamebox-tests-service-"))
    made = ServiceProcess(folder / "data", "--stop-all")

    own = os.getpid()

    def end() -> None:
        if os.getpid() != own:
            return  # a test forked
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    (folder / "data").mkdir()
    return made.start()
