"""What a hog in one sandbox costs the others: the median of their run("true") beside its quiet value, in the same run.

Each hog gets a sandbox of its own. A neighbour is timed before, meanwhile and after. Then the hog's sandbox is asked to echo, and
either does, or says why it is gone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from benchmarks.machine import open_sandbox
from benchmarks.measuring import MIB, Goal, Options, Row, load, milliseconds, summary
from sandbox import DockerEnvironment, Limits


def _limits() -> Limits:
    return Limits(memory_bytes=512 * MIB, pids=256)


@dataclass(frozen=True)
class Hog:
    """A command that uses up one thing, in a sandbox of its kind."""

    source: str
    limits: Callable[[], Limits] = _limits
    options: dict[str, Any] = field(default_factory=dict)


def python(source: str) -> str:
    """The command that runs ``source``."""
    return f"exec python3 - <<'PROGRAM'\n{source}\nPROGRAM"


FILL = "while :; do head -c 300M /dev/zero > {0}/filler; head -c 300M /dev/zero > {0}/filler2; rm -f {0}/filler*; done 2>/dev/null"
HOGS: dict[str, Hog] = {
    "fork bomb": Hog("f() { f | f & }; f; wait; sleep 60"),
    "memory hog": Hog("while :; do python3 -c 'x = [bytearray(1 << 20) for _ in range(4096)]'; done 2>/dev/null"),
    "disk filler, tmpfs": Hog(FILL.format("/workspace"), lambda: Limits(memory_bytes=512 * MIB, pids=256, disk="memory")),
    "disk filler, ext4": Hog(
        FILL.format("/workspace"), lambda: Limits(memory_bytes=512 * MIB, pids=256, disk_bytes=1024 * MIB)
    ),
    "disk filler, soft": Hog(FILL.format("/srv"), options={"profile": "root"}),
    "inotify hog": Hog(
        python(
            "import ctypes, os, time\n"
            "libc = ctypes.CDLL(None)\n"
            "made = [fd for fd in (libc.inotify_init1(0) for _ in range(4000)) if fd >= 0]\n"
            "os.makedirs('many', exist_ok=True)\n"
            "while True:\n"
            "    for n in range(2000):\n"
            "        os.makedirs(f'many/{n}', exist_ok=True)\n"
            "        for fd in made[:4]: libc.inotify_add_watch(fd, f'many/{n}'.encode(), 0xFFF)\n"
        )
    ),
    "fd hog": Hog(
        "for i in $(seq 100); do "
        "python3 -c 'import os, time\ntry:\n  while True: os.open(\"/dev/null\", 0)\nexcept OSError: time.sleep(60)' & done; wait"
    ),
    "cpu hog": Hog(
        python(
            "import hashlib, threading\n"
            "data = bytes(1 << 22)\n"
            "def spin():\n"
            "    while True: hashlib.sha256(data)\n"
            "for _ in range(100): threading.Thread(target=spin).start()"
        )
    ),
    "output flood": Hog("yes >&2 & yes"),
}


def while_it_lasts(env: DockerEnvironment, going: Callable[[], bool]) -> list[float]:
    """Time one run after the other, with a pause, as long as ``going``."""
    taken = []
    while going():
        taken.append(milliseconds(lambda: env.run("true", session=None).unwrap()))
        time.sleep(0.02)
    return taken


def measure(name: str, seconds: float, neighbour: DockerEnvironment) -> Row:
    """Measure one hog beside ``neighbour``."""
    hog, before = HOGS[name], load()
    answers: list[Any] = []

    def during(length: float) -> list[float]:
        until = time.monotonic() + length
        return while_it_lasts(neighbour, lambda: time.monotonic() < until)

    with open_sandbox(limits=hog.limits(), **hog.options) as env:
        quiet = during(seconds / 2)
        thread = threading.Thread(target=lambda: answers.append(env.run(hog.source, timeout_seconds=seconds)))
        thread.start()
        time.sleep(0.3)
        busy = while_it_lasts(neighbour, thread.is_alive)
        thread.join()
        after = env.run("echo alive", session=None, timeout_seconds=20)
        quiet += during(seconds / 2)
    end = "ended" if answers[0].ok else answers[0].code.value
    state = "usable" if after.ok and after.result.output == "alive\n" else f"dead: {getattr(after, 'error', after)}"
    note = f"the hog: {end}, its sandbox after: {state}"
    return Row(name, summary(busy), "ms", "before and after", summary(quiet), (Goal("ratio", 3.0),), note, (before, load()))


def hogs(options: Options) -> Iterator[Row]:
    """Measure every hog."""
    with open_sandbox(limits=_limits()) as neighbour:
        for name in HOGS:
            yield measure(name, 2.0 if options.quick else 6.0, neighbour)
