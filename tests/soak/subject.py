"""One sandbox under soak and what must be true of it."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

from sandbox import DockerEnvironment, Limits
from sandbox.docker.engine import connect
from sandbox.envelope import Envelope
from tests.integration.observing import Heartbeat, eventually, guest_pid, of_commands, resident_bytes

from .counts import Counts

MIB = 1 << 20
# What docs/sandbox.md promises over a command's own timeout.
PROMISED_SECONDS = 0.25
# Several sandboxes at once, in one interpreter, on few processors: what a thread may wait for its turn beyond a machine's lateness.
TURN_SECONDS = 0.25
# The guest loads what it needs when it is first needed.
WARM_ACTIONS = 60


class Wrong(Exception):  # noqa: N818
    """An answer that is not what must be true."""


def check(what: bool, message: object) -> None:
    if not what:
        raise Wrong(str(message))


class Subject:
    """A sandbox, the model of its files and of what runs in it. Used by one thread."""

    def __init__(self, rng: Random, counts: Counts, everything: set[Remains]) -> None:
        self.rng = rng
        self.counts = counts
        self.files: dict[str, bytes] = {}
        self.variables: dict[str, str] = {}
        self.sleeping: list[str] = []
        self.number = 0
        self.actions = 0
        self._everything = everything
        self._guest_bytes = 0
        disk = 1024 * MIB if rng.random() < 0.3 else None
        self.env = DockerEnvironment(limits=Limits(memory_bytes=384 * MIB, pids=192, disk_bytes=disk))
        before = time.monotonic()
        self.env.start()
        counts.slowest("slowest_start_ms", (time.monotonic() - before) * 1000)
        counts.add("sandboxes")
        self.pid = guest_pid(self.env)
        everything.add(Remains(self.env))

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
        self.env.close()


class Remains:
    """What a sandbox must leave nothing of: its container, its volumes, its loop devices, its first process."""

    def __init__(self, env: DockerEnvironment) -> None:
        client = connect()
        try:
            found = client.api.inspect_container(env.container_id)
            mounts = [m["Name"] for m in found["Mounts"] if m.get("Type") == "volume" and m.get("RW")]
            self.container = env.container_id
            self.volumes = tuple(mounts)
            options = [client.api.inspect_volume(name).get("Options") or {} for name in mounts]
        finally:
            client.close()
        self.devices = tuple(str(o["device"]) for o in options if str(o.get("device", "")).startswith("/dev/loop"))
        self.pid = int(found["State"]["Pid"])
        self.started = _start_of(self.pid)

    def left(self) -> list[str]:
        """What of it is still there."""
        client = connect()
        try:
            containers = {c["Id"] for c in client.api.containers(all=True)}
            volumes = {v["Name"] for v in client.api.volumes()["Volumes"] or []}
        finally:
            client.close()
        found = [f"container {self.container[:12]}"] if self.container in containers else []
        found += [f"volume {name[:12]}" for name in self.volumes if name in volumes]
        if self.started and _start_of(self.pid) == self.started:
            found.append(f"process {self.pid}")
        return found


def _start_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    except OSError:
        return ""


def in_thread(call: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=call)
    thread.start()
    return thread
