"""LocalEnvironment: the same guest as a child process of the host. NO isolation: commands run as you, on your files."""

from __future__ import annotations

import errno
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

from sandbox.environment.base import Approver
from sandbox.environment.sandboxed import GuestEnvironment, end_words
from sandbox.messages.sandbox_ends import ended_by_itself
from sandbox.network.policy import Network
from sandbox.pipe.forked_processes import forked_since, let_go, part_in_children
from sandbox.pipe.transport import Transport
from sandbox.text.wording import value_text

from .argument_types import HOST_PATH, check_callable, check_types, check_variables, path_is
from .errors import ErrorCode, SandboxError, SandboxUnavailableError
from .interrupts import Shield
from .limits import Limits
from .transfers import folders

START_SECONDS = 20.0


class ProcessStream:
    """The pipe to a guest that is a child process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        if process.stdin is None or process.stdout is None:
            raise ValueError("the process has no pipes")
        self._stdin, self._in = process.stdin, process.stdin.fileno()
        self._stdout, self._out = process.stdout, process.stdout.fileno()
        self._poll = select.poll()
        self._poll.register(self._out, select.POLLIN)
        self._room = select.poll()
        self._room.register(self._in, select.POLLOUT)
        os.set_blocking(self._in, False)
        self._writing = threading.Lock()
        self._reading = threading.Lock()
        self._released = False
        part_in_children(self)

    def part(self) -> None:
        """See ``forks.Parted``: the guest ends at the end of its input, which no other process may hold open."""
        if not self._stdin.closed:
            let_go(self._in)

    def send(self, data: memoryview, timeout_seconds: float) -> int:
        """See ``ByteStream``."""
        if not self._room.poll(timeout_seconds * 1000):
            return 0
        with self._writing:  # once it is closed, the number may be that of another file
            if self._stdin.closed:
                raise BrokenPipeError(errno.EPIPE, "the pipe to the guest is closed")
            return os.write(self._in, data)

    def has_room(self, timeout_seconds: float) -> bool:
        """See ``ByteSink``."""
        room = select.poll()  # its own, for another thread may be in ``send``
        room.register(self._in, select.POLLOUT)
        return bool(room.poll(timeout_seconds * 1000))

    def receive(self, timeout_seconds: float) -> bytes | None:
        """See ``ByteStream``."""
        try:
            with self._reading:
                if self._stdout.closed:
                    return b""
                if not self._poll.poll(timeout_seconds * 1000):
                    return None
                return os.read(self._out, 1 << 20)
        finally:
            if self._released:
                self.release()

    def close(self) -> None:
        """See ``ByteStream``."""
        with self._writing:
            try:
                self._stdin.close()  # the guest ends at the end of its input, and its output with it
            except OSError:
                pass

    def release(self) -> None:
        """Close the descriptor that is read. A thread that is reading closes it instead: its number may soon be another file's."""
        self._released = True
        with Shield():
            if self._reading.acquire(blocking=False):
                try:
                    self._stdout.close()
                finally:
                    self._reading.release()


_NONE_HERE = {
    "network": "commands have the user's own, and no rule holds",
    "services": "commands have the user's own network, in which no name of theirs leads anywhere",
    "cache": "commands find packages where the user's own do",
}


def _remove(folder: str, pid: int) -> None:
    if not forked_since(pid):
        folders.remove(folder)


class LocalEnvironment(GuestEnvironment):
    """The operations of a sandbox carried out on the host itself, in ``workspace`` (default: a temporary folder).

    Nothing is isolated: commands run with the rights of this process, have its network and all its files, and only the time,
    size and path limits of the operations hold. For trusted commands, tests, and machines without an engine. ``start`` refuses
    ``Limits(disk="hard")``, for nothing bounds what is written here: ``limit_not_enforced``. What only a sandbox can have
    (``network``, ``services``, ``cache``) is ``operation_not_supported``.
    """

    _no_rules = "commands have the user's own."

    def __init__(
        self,
        workspace: str | os.PathLike[str] | None = None,
        *,
        limits: Limits | None = None,
        env: dict[str, str] | None = None,
        approver: Approver | None = None,
        track_changes: bool = True,
        read_roots: Sequence[str] = (),
        network: object = None,
        services: object = None,
        cache: object = None,
    ) -> None:
        for name, given in (("network", network), ("services", services), ("cache", cache)):
            if given is not None:
                raise SandboxError(
                    ErrorCode.operation_not_supported,
                    f"LocalEnvironment has no {name}: {_NONE_HERE[name]}.",
                    f"Use DockerEnvironment({name}=...), or leave it out.",
                )
        check_types(
            "LocalEnvironment", workspace=(workspace, HOST_PATH | None), limits=(limits, Limits | None), env=(env, Mapping | None)
        )
        check_callable("LocalEnvironment", "approver", approver)
        check_variables("LocalEnvironment", env or {})
        super().__init__(limits, Network.bridge(), approver, track_changes, read_roots)
        if workspace is not None and not path_is(workspace, Path.is_dir):
            raise SandboxError(
                ErrorCode.workspace_invalid,
                f"The workspace {value_text(os.fspath(workspace), 300)} is no folder.",
                "Give a folder that exists.",
            )
        self._given = None if workspace is None else os.path.realpath(workspace)
        self._env = dict(env or {})
        self._temporary: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._stream: ProcessStream | None = None

    @property
    def workspace(self) -> str:
        """Path of the workspace on the host; only while it is started."""
        if self._temporary is None:
            raise SandboxError(ErrorCode.sandbox_closed, "The environment is not started.", "Call start() first.")
        return self._given or os.path.join(self._temporary, "workspace")

    def _summary(self) -> tuple[str, ...]:
        known = (self.workspace,) if self._temporary is not None else () if self._given is None else (self._given,)
        return (*known, *super()._summary())

    def _connect(self) -> Transport:
        if self.limits.disk == "hard":
            raise SandboxError(
                ErrorCode.limit_not_enforced,
                'disk="hard" cannot be kept: a LocalEnvironment writes to the user\'s own disk, which nothing bounds.',
                'Use DockerEnvironment, or leave out disk="hard".',
            )
        self._temporary = tempfile.mkdtemp(prefix="gamebox-local-")
        weakref.finalize(self, _remove, self._temporary, os.getpid())  # of an environment that nobody closed
        base = os.path.realpath(self._temporary)
        for name in ("workspace", "home", "spill", "tmp"):
            os.mkdir(os.path.join(base, name))
        workspace = self._given or os.path.join(base, "workspace")
        home, spill, tmp = (os.path.join(base, name) for name in ("home", "spill", "tmp"))
        package_root = str(Path(__file__).resolve().parent.parent)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "sandbox.guest"],  # -P: a folder "sandbox" where the user is must not be run instead
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={"PYTHONPATH": package_root, "PATH": os.environ.get("PATH", os.defpath)},
            start_new_session=True,
            bufsize=0,
        )  # fmt: skip
        self._stream = ProcessStream(self._process)
        transport = self._carrying(Transport(self._stream, self._post_mortem, lease_seconds=self.limits.lease_seconds))
        place = {
            "workspace": workspace, "home": home, "spill": spill, "roots": [workspace, home, spill, tmp],
            "uid": os.getuid(), "gid": os.getgid(),
            "interpreter": ["/usr/bin/env", f"PYTHONPATH={package_root}", sys.executable, "-P"],
            "environ": {
                "PATH": os.environ.get("PATH", os.defpath), "HOME": home, "TMPDIR": tmp, "LANG": "C.UTF-8", "TERM": "dumb",
                "PYTHONDONTWRITEBYTECODE": "1",  # see docker/container.py
                **self._env,
            },
        }  # fmt: skip
        transport.open(self._hello(place, isolated=False), START_SECONDS)
        return transport

    def _starts_empty(self) -> bool:
        return self._given is None

    def _post_mortem(self, reason: str, detail: str) -> SandboxUnavailableError:
        code = None
        deadline = time.monotonic() + 1.0
        while self._process is not None and code is None and time.monotonic() < deadline:
            code = self._process.poll()
            time.sleep(0.005)
        ended = f"its process ended with {code}" if code is not None else "its process still runs"
        if code is not None and (end := ended_by_itself(code, self.limits)):
            return end
        return SandboxUnavailableError(
            reason if code is None else "exited",
            f"The guest is gone: {ended} {detail}".strip() + ".",
            "Start another environment.",
        )

    def _release(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            if process.stdin is not None and not process.stdin.closed:
                process.stdin.close()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if self._stream is not None:
                self._stream.release()
            elif process.stdout is not None:
                process.stdout.close()
        if self._temporary is not None:
            folders.remove(self._temporary)
            self._temporary = None

    def describe(self) -> dict[str, str]:
        """Short sections for the prompt: what really holds here, which is little."""
        return {
            "sandbox": f"{self._kind()}{self._readable_words()}",
            "network": "The user's own network.",
            **self.hidden.describe(),
            "limits": (
                f"None but time: a command may take {self.limits.timeout_seconds:g} s unless timeout_seconds says otherwise."
                f"{end_words(self.limits)}"
            ),
            **self._left(),
        }

    def _kind(self) -> str:
        return "NO ISOLATION: commands run directly on the user's machine, with the user's rights."
