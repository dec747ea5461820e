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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sandbox.argument_types import HOST_PATH, check_callable, check_types, check_variables, path_is
from sandbox.backend import Description, GuestStream, StartRequest
from sandbox.environment.base import Approver
from sandbox.environment.sandboxed import SandboxedEnvironment
from sandbox.errors import ErrorCode, SandboxError, SandboxUnavailableError
from sandbox.interrupts import Shield
from sandbox.limits import Limits
from sandbox.messages.sandbox_ends import ended_by_itself
from sandbox.network.policy import Network
from sandbox.pipe.forked_processes import forked_since, point_at_devnull, release_in_children
from sandbox.pipe.transport import Transport
from sandbox.text.wording import value_text
from sandbox.transfers import folders

from .launcher import find_launcher


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
        os.set_blocking(self._out, False)
        self._writing = threading.Lock()
        self._reading = threading.Lock()
        self._released = False
        release_in_children(self)

    def release_in_child(self) -> None:
        """See ``forked_processes.Inherited``: the guest ends at the end of its input, which no other process may hold open."""
        if not self._stdin.closed:
            point_at_devnull(self._in)

    def send(self, data: memoryview, timeout_seconds: float) -> int:
        if not self._room.poll(timeout_seconds * 1000):
            return 0
        with self._writing:  # once it is closed, the number may be that of another file
            if self._stdin.closed:
                raise BrokenPipeError(errno.EPIPE, "the pipe to the guest is closed")
            return os.write(self._in, data)

    def has_room(self, timeout_seconds: float) -> bool:
        room = select.poll()  # its own, for another thread may be in ``send``
        room.register(self._in, select.POLLOUT)
        return bool(room.poll(timeout_seconds * 1000))

    def descriptors(self) -> tuple[int, ...]:
        """See ``WatchedStream``."""
        return (self._out,)

    buffered = 0

    def ready(self, timeout_seconds: float) -> bool:
        """See ``WatchedStream``."""
        return self._stdout.closed or bool(self._poll.poll(timeout_seconds * 1000))

    def receive_into(self, view: memoryview) -> int | None:
        """See ``WatchedStream``."""
        return self._receive(view, 0)

    def _receive(self, view: memoryview, timeout_seconds: float) -> int | None:
        try:
            with self._reading:
                if self._stdout.closed:
                    return 0
                if timeout_seconds and not self._poll.poll(timeout_seconds * 1000):
                    return None
                return os.readv(self._out, [view])
        except BlockingIOError:
            return None
        finally:
            if self._released:
                self.release()

    def receive(self, timeout_seconds: float) -> bytes | None:
        view = memoryview(bytearray(1 << 16))
        size = self._receive(view, timeout_seconds)
        return None if size is None else bytes(view[:size])

    def finish(self) -> None:
        """See ``WatchedStream``."""

    def close(self) -> None:
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


class LocalBackend:
    """Implements ``Backend`` with a guest that is a child process, in ``folder`` or a temporary one. Isolates nothing."""

    attached = False

    def __init__(self, folder: str | None, limits: Limits, env: Mapping[str, str]) -> None:
        self.folder = folder
        self._limits = limits
        self._env = dict(env)
        self._variables: dict[str, str] = {}
        self.temporary: str | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.stream: ProcessStream | None = None

    @property
    def workspace(self) -> str | None:
        """The path of the workspace; None before the start and after the end."""
        return None if self.temporary is None else self.folder or os.path.join(self.temporary, "workspace")

    def open(self, request: StartRequest) -> GuestStream:
        if self._limits.disk == "hard":
            raise SandboxError(
                ErrorCode.limit_not_enforced,
                'disk="hard" cannot be kept: a LocalEnvironment writes to the user\'s own disk, which nothing bounds.',
                'Use DockerEnvironment, or leave out disk="hard".',
            )
        launcher = find_launcher()
        self.temporary = tempfile.mkdtemp(prefix="gamebox-local-")
        weakref.finalize(self, _remove, self.temporary, os.getpid())  # of an environment that nobody closed
        base = os.path.realpath(self.temporary)
        for name in ("workspace", "home", "spill", "tmp"):
            os.mkdir(os.path.join(base, name))
        workspace = self.folder or os.path.join(base, "workspace")
        home, spill, tmp = (os.path.join(base, name) for name in ("home", "spill", "tmp"))
        package_root = str(Path(__file__).resolve().parents[2])
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "sandbox.guest",
            ],  # -P: a folder "sandbox" where the user is must not be run instead
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"PYTHONPATH": package_root, "PATH": os.environ.get("PATH", os.defpath)},
            start_new_session=True,
            bufsize=0,
        )
        self.stream = ProcessStream(self.process)
        self._variables = {"PATH": os.environ.get("PATH", os.defpath), "HOME": home, "TMPDIR": tmp}
        place = {
            "workspace": workspace,
            "home": home,
            "spill": spill,
            "roots": [workspace, home, spill, tmp],
            "uid": os.getuid(),
            "gid": os.getgid(),
            "interpreter": ["/usr/bin/env", f"PYTHONPATH={package_root}", sys.executable, "-P"],
            "launcher": str(launcher),
            "environ": self._environ(),
        }
        return GuestStream(self.stream, place, {"isolated": False})

    def _environ(self) -> dict[str, str]:
        fixed = {"TERM": "dumb", "PYTHONDONTWRITEBYTECODE": "1"}  # see docker/container
        if "LANG" not in self._env:
            fixed["LC_CTYPE"] = "C.UTF-8"
        return {**self._variables, **fixed, **self._env}

    def serve(self, asked: LocalBackend, request: StartRequest) -> Mapping[str, str]:
        """See ``Backend``. The folder is part of how the guest was started."""
        if asked.folder != self.folder:
            raise SandboxError(
                ErrorCode.operation_not_supported,
                "A LocalEnvironment of a pool cannot be given a workspace: its process was started in another one.",
                "Give workspace to the pool, or upload the files.",
            )
        self._env, self._limits = asked._env, asked._limits
        return self._environ()

    def note_acquired(self) -> None:
        """Does nothing: nobody else sees it."""

    def check(self, facts: Mapping[str, Any], transport: Transport) -> None:
        """Does nothing: no limit is enforced by a kernel here."""

    def close(self, *, detach: bool) -> None:
        process = self.process  # stays there until all of this is done: a Ctrl-C may end it, and the next call goes on
        if process is not None:
            if process.stdin is not None and not process.stdin.closed:
                process.stdin.close()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if self.stream is not None:
                self.stream.release()
            elif process.stdout is not None:
                process.stdout.close()
            self.process = None
        if self.temporary is not None:
            folders.remove(self.temporary)
            self.temporary = None

    def wait_until_gone(self) -> None:
        """Does nothing: ``close`` waited."""

    def outlives_close(self) -> bool:
        return False

    def claim_removal(self, *, left: bool) -> bool:
        return True

    def explain(self, reason: str, detail: str) -> SandboxUnavailableError:
        code = None
        deadline = time.monotonic() + 1.0
        while self.process is not None and code is None and time.monotonic() < deadline:
            code = self.process.poll()
            time.sleep(0.005)
        ended = f"its process ended with {code}" if code is not None else "its process still runs"
        if code is not None and (end := ended_by_itself(code, self._limits)):
            return end
        return SandboxUnavailableError(
            reason if code is None else "exited",
            f"The guest is gone: {ended} {detail}".strip() + ".",
            "Start another environment.",
        )

    def explain_silence(
        self, error: SandboxUnavailableError, give_up: Callable[[SandboxUnavailableError], None]
    ) -> SandboxUnavailableError:
        """Return ``error``: what a guest on this host may have left running is not known."""
        return error

    def freeze(self) -> None:
        """Raise SandboxError ``operation_not_supported``."""
        raise SandboxError(
            ErrorCode.operation_not_supported,
            "LocalEnvironment cannot be paused.",
            "Use DockerEnvironment, or leave it as it is.",
        )

    def thaw(self) -> None:
        """Does nothing."""

    def describe(self) -> Description:
        """Return what really holds here, which is little."""
        seconds = self._limits.timeout_seconds
        known = self.folder if self.workspace is None else self.workspace
        return Description(
            sandbox="NO ISOLATION: commands run directly on the user's machine, with the user's rights.",
            summary=() if known is None else (known,),
            network="The user's own network.",
            limits=f"None but time: a command may take {seconds:g} s unless timeout_seconds says otherwise.",
        )


class LocalEnvironment(SandboxedEnvironment):
    """The operations of a sandbox carried out on the host itself, in ``workspace`` (default: a temporary folder).

    Nothing is isolated: commands run with the rights of this process, have its network and all its files, and only the time,
    size and path limits of the operations hold. For trusted commands, tests, and machines without an engine. ``start`` refuses
    ``Limits(disk="hard")``, for nothing bounds what is written here: ``limit_not_enforced``. What only a sandbox can have
    (``network``, ``services``, ``cache``) is ``operation_not_supported``.
    """

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
            "LocalEnvironment",
            workspace=(workspace, HOST_PATH | None),
            limits=(limits, Limits | None),
            env=(env, Mapping | None),
        )
        check_callable("LocalEnvironment", "approver", approver)
        check_variables("LocalEnvironment", env or {})
        if workspace is not None and not path_is(workspace, Path.is_dir):
            raise SandboxError(
                ErrorCode.workspace_invalid,
                f"The workspace {value_text(os.fspath(workspace), 300)} is not a folder.",
                "Give a folder that exists.",
            )
        folder = None if workspace is None else os.path.realpath(workspace)
        self.backend: LocalBackend = LocalBackend(folder, limits or Limits(), env or {})
        super().__init__(
            self.backend,
            limits=limits,
            network=Network.bridge(),
            approver=approver,
            track_changes=track_changes,
            read_roots=read_roots,
            no_rules="commands have the user's own.",
        )

    @property
    def workspace(self) -> str:
        """Path of the workspace on the host; only while it is started."""
        found = self.backend.workspace
        if found is None:
            raise SandboxError(ErrorCode.sandbox_closed, "The environment is not started.", "Call start() first.")
        return found

    def _starts_empty(self) -> bool:
        return self.backend.folder is None
