"""One sandbox under soak and what must be true of it."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from sandbox import DockerEnvironment, Limits
from sandbox.backend import GuestStream, StartRequest
from sandbox.docker.backend import DockerBackend
from sandbox.docker.engine.client import connect
from sandbox.docker.kept import owners
from sandbox.envelope import Envelope
from sandbox.testing import FaultyStream
from tests.integration.observing import Heartbeat, eventually, guest_pid, of_commands, resident_bytes

from .counts import Counts

MIB = 1 << 20
# What docs/reference/commands.md promises over a command's own timeout.
PROMISED_SECONDS = 0.25
# Several sandboxes at once, in one interpreter, on few processors: what a thread may wait for its turn beyond a machine's lateness.
TURN_SECONDS = 0.25
# The guest loads what it needs when it is first needed.
WARM_ACTIONS = 150


class Wrong(Exception):  # noqa: N818
    """An answer that is not what must be true."""


def check(what: bool, message: object) -> None:
    if not what:
        raise Wrong(str(message))


@dataclass(frozen=True)
class Kept:
    """What a checkpoint has to bring back."""

    files: dict[str, bytes]
    variables: dict[str, str]


class FaultyBackend(DockerBackend):
    """One whose stream passes through the ``faulty`` of ``env``."""

    env: FaultyEnvironment

    def open(self, request: StartRequest) -> GuestStream:
        opened = super().open(request)
        self.env.faulty = FaultyStream(opened.stream)
        return replace(opened, stream=self.env.faulty)


class FaultyEnvironment(DockerEnvironment):
    """One whose pipe passes through ``faulty`` until that is cut."""

    faulty: FaultyStream | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        backend: Any = self.backend
        backend.__class__ = FaultyBackend
        backend.env = self


class Subject:
    """A sandbox, the model of its files and of what runs in it. Used by one thread.

    Of three one is kept, and of two one has its pipe behind a ``FaultyStream``.
    """

    def __init__(self, rng: Random, counts: Counts, everything: set[Remains]) -> None:
        self.rng = rng
        self.counts = counts
        self.files: dict[str, bytes] = {}
        self.variables: dict[str, str] = {}
        self.sleeping: list[str] = []
        self.checkpoints: dict[str, Kept] = {}
        self.number = 0
        self.actions = 0
        self.everything = everything
        self._guest_bytes = 0
        self.keep = rng.random() < 0.34
        self.kind = FaultyEnvironment if rng.random() < 0.5 else DockerEnvironment
        on_disk = rng.random() < 0.3
        limits = Limits(
            memory_bytes=384 * MIB, pids=192, disk_bytes=1024 * MIB if on_disk else None, disk="auto" if on_disk else "memory"
        )
        self.env = self.kind(limits=limits, keep=self.keep, keep_seconds=300.0)
        before = time.monotonic()
        self.env.start()
        counts.slowest("slowest_start_ms", (time.monotonic() - before) * 1000)
        counts.add("sandboxes")
        self.pid = guest_pid(self.env)
        everything.add(Remains(self.env))

    @property
    def faulty(self) -> FaultyStream | None:
        """The faults of its pipe; None where it has none, or not any more."""
        return self.env.faulty if isinstance(self.env, FaultyEnvironment) else None

    def uncut(self) -> None:
        """The pipe was cut and another one stands."""
        if isinstance(self.env, FaultyEnvironment):
            self.env.faulty = None

    def becomes(self, env: DockerEnvironment) -> None:
        """Another orchestrator has the sandbox; what its environment object knew is lost with it."""
        self.env = env
        self.checkpoints = {}

    def new_name(self) -> str:
        self.number += 1
        return f"d{self.number % 5}/f{self.number}"

    def known(self) -> str | None:
        return self.rng.choice(sorted(self.files)) if self.files else None

    def text(self, most: int = 4000) -> str:
        alphabet = "abc déf€\n\t0123456789"
        return "".join(self.rng.choices(alphabet, k=self.rng.randrange(1, most)))

    def timely(self, promised: float, call: Callable[[], Envelope[Any]]) -> Envelope[Any]:
        """The answer of ``call``; counted as late where it comes later than promised, less what the machine itself was late."""
        with Heartbeat() as heart:
            before = time.monotonic()
            answer = call()
            over = time.monotonic() - before - promised
        self.heard(answer)
        self.counts.slowest("most_late_ms", over * 1000)
        if over > PROMISED_SECONDS + TURN_SECONDS + 2 * heart.late_seconds:
            self.counts.add("late", note=f"{over:.3f} s late, the machine {heart.late_seconds:.3f} s: {answer}")
        return answer

    def heard(self, answer: Envelope[Any]) -> None:
        """Take note of sleepers that the answer says were killed along with a command."""
        for notice in answer.notices:
            if notice.code == "others_killed":
                self.lost(re.findall(r"\bc\d+\b", notice.message))

    def lost(self, idents: Iterable[str]) -> None:
        gone = set(idents) & set(self.sleeping)
        self.counts.add("collateral", len(gone))
        self.sleeping = [ident for ident in self.sleeping if ident not in gone]

    def census(self) -> None:
        """Nothing runs but what was left running on purpose."""
        expected = len(self.sleeping)
        if not eventually(lambda: len(of_commands(self.env)) == expected, 3.0):
            found = [p.args for p in of_commands(self.env)]
            check(len(found) >= expected, f"{expected} sleepers, and nobody said that they ended: {found}")
            self.counts.add("survivors", len(found) - expected, f"{expected} sleepers, found {found}")

    def weigh(self) -> None:
        """How much the guest has grown since it was warm."""
        if self.actions == WARM_ACTIONS:
            self._guest_bytes = resident_bytes(self.pid)
        elif self._guest_bytes and self.actions > 2 * WARM_ACTIONS:
            self.counts.highest("leaked_guest_bytes", resident_bytes(self.pid) - self._guest_bytes)

    def close(self) -> None:
        self.env.remove()  # ends a kept one, too


def on_engine() -> tuple[set[str], set[str]]:
    """The containers and volumes of the engine."""
    api = connect().api
    return {c["Id"] for c in api.containers(all=True)}, {v["Name"] for v in api.volumes()["Volumes"] or []}


class Remains:
    """What a sandbox must leave nothing of: its container, its volumes, its loop devices, its first process, its owner's file."""

    def __init__(self, env: DockerEnvironment) -> None:
        api = connect().api
        found = api.inspect_container(env.container_id)
        mounts = [m["Name"] for m in found["Mounts"] if m.get("Type") == "volume" and m.get("RW")]
        options = [api.inspect_volume(name).get("Options") or {} for name in mounts]
        self.container = env.container_id
        self.name = env.backend.name
        self.volumes = tuple(mounts)
        devices = [str(o["device"]) for o in options if str(o.get("device", "")).startswith("/dev/loop")]
        self.devices = {device: _backing(device) for device in devices}
        self.pid = int(found["State"]["Pid"])
        self.started = _start_of(self.pid)

    def left(self, containers: set[str], volumes: set[str]) -> list[str]:
        """What of it is still there, when the engine has these containers and volumes."""
        found = [f"container {self.container[:12]}"] if self.container in containers else []
        found += [f"volume {name[:12]}" for name in self.volumes if name in volumes]
        found += [f"device {name}" for name, backing in self.devices.items() if backing and _backing(name) == backing]
        if self.started and _start_of(self.pid) == self.started:
            found.append(f"process {self.pid}")
        if owners.owner_of(self.name) is not None:
            found.append(f"the file of the owner of {self.name}")
        return found


def _backing(device: str) -> str:
    """The file behind a loop device, which has the number of its inode for a name, and how many there were before it.

    Device and inode may both be given again, to the sandbox of another program; the count is missing in kernels before 5.15.
    """
    folder = Path("/sys/block", Path(device).name)
    try:
        count = (folder / "diskseq").read_text() if (folder / "diskseq").exists() else ""
        return count + (folder / "loop/backing_file").read_text()
    except OSError:
        return ""


def _start_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    except OSError:
        return ""


def in_thread(call: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=call)
    thread.start()
    return thread
