"""Bytes through the pipe: files of three sizes on both kinds of disk, and the output of a command."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.machine import open_sandbox
from benchmarks.measuring import KIB, MIB, Goal, Options, Row, time_in_turns
from sandbox import DockerEnvironment, Limits

# Bytes by their name, rounds, and the ms that each call may take.
SIZES = {"1 KiB": (KIB, 200, 0.4), "1 MiB": (MIB, 60, 2.5), "64 MiB": (64 * MIB, 7, 120.0)}
OUTPUT_BYTES = 10 * MIB
OUTPUT = f"yes {'x' * 79} | head -c {OUTPUT_BYTES}"


def text_of(size: int) -> str:
    """Return a text of so many bytes, in lines."""
    line = "".join(chr(97 + n % 26) for n in range(75)) + "\n"
    return (line * (size // len(line) + 1))[: size - 1] + "\n"


def write_synced(path: Path, content: bytes) -> None:
    """Write a file as a careful program does: beside the old one, to the disk, then in its place."""
    beside = path.with_suffix(".new")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def files(options: Options) -> Iterator[Row]:
    """Measure reading and writing, and the same by a program of the host: in memory, and on disk with fsync."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory, tempfile.TemporaryDirectory() as disk:
        for kind, folder, limits in (
            ("in memory", memory, Limits(disk="memory", read_bytes=2 * MIB, memory_bytes=2 << 30)),
            ("on disk", disk, Limits(read_bytes=2 * MIB)),
        ):
            with open_sandbox(options.image, limits=limits) as env:
                for size, (count, rounds, most) in SIZES.items():
                    for row in _file_rows(env, Path(folder, "file"), text_of(count), options.rounds(rounds), most):
                        yield replace(row, name=f"{kind}: {row.name} {size}")


def _file_rows(env: DockerEnvironment, path: Path, text: str, rounds: int, most: float) -> Iterator[Row]:
    """Measure one size: download and upload, and read and write if a text may be as long as that."""
    content = text.encode()
    calls: dict[str, Callable[[], object]] = {
        "host, write and fsync": lambda: write_synced(path, content),
        # No row: the processors slept while the host's disk worked, and whatever comes next is late, by 0.1 ms.
        "after the disk": lambda: env.download("file").unwrap(),
        "upload": lambda: env.upload(content, "file").unwrap(),
        "host, read": path.read_bytes,
        "download": lambda: env.download("file").unwrap(),
    }
    if len(content) <= env.limits.read_bytes:
        calls["write"] = lambda: env.write("file", text).unwrap()
        calls["read"] = lambda: env.read("file").unwrap()
    env.upload(content, "file").unwrap()
    # Little is left to do after these answers, and a processor that slept wakes late.
    turns = time_in_turns(calls, rounds, 1, pause_seconds=0)
    for call in [each for each in ("read", "write", "download", "upload") if each in calls]:
        beyond = call in ("read", "write") and len(content) > Limits().read_bytes
        goals = [] if beyond else [Goal("p50", most)]
        baseline = "host, read" if call in ("read", "download") else "host, write and fsync"
        yield turns.row(call, baseline, *goals, note="more than a model may read by default" if beyond else "")


def output(options: Options) -> Iterator[Row]:
    """Measure 10 MiB of output that is kept whole, beside a bare pipe."""
    bare, ours = "bare pipe", "10 MiB of output, kept whole"

    def piped() -> None:
        assert len(subprocess.run(["bash", "-c", OUTPUT], stdout=subprocess.PIPE, check=True).stdout) == OUTPUT_BYTES

    with open_sandbox(options.image) as env:

        def kept() -> None:
            assert len(env.run(OUTPUT, keep_output_bytes=16 * MIB).unwrap().output) == OUTPUT_BYTES

        turns = time_in_turns({bare: piped, ours: kept}, options.rounds(30), 2)
        yield turns.row(ours, bare, Goal("p50", 60.0), Goal("ratio", 2.0))
