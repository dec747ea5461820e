"""Growth: how figures change with more sandboxes, files, bytes and other work; drawn as well if there is a folder for it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import machine
from benchmarks.measuring import GIB, KIB, MIB, Options, Row, Turns, load, milliseconds, time_in_turns
from benchmarks.pictures import draw_lines
from sandbox import Limits

from .commands import BASH, MAKE_FILES, bare_bash
from .crowd import started

RUN = 'run("true")'


def growth(options: Options) -> Iterator[Row]:
    """Measure each kind of growth."""
    for name, unit, measure in (
        ("sandboxes", "sandboxes", of_sandboxes), ("files", "files in the workspace", of_files),
        ("bytes", "bytes of a file", of_bytes), ("load", "busy processes of the host", of_load),
    ):  # fmt: skip
        lines: dict[str, dict[float, float]] = {}
        for size, row in measure(options):
            for label, figures in ((row.name.split(": ")[1], row.figures), (row.baseline, row.beside)):
                if label and "p50" in figures:
                    lines.setdefault(label, {})[size] = figures["p50"]
            yield row
        if options.out is not None:
            points = {label: list(line.items()) for label, line in lines.items()}
            picture = draw_lines(f"Growth with {name}", unit, "ms, median", points)
            (options.out / f"growth-{name}.svg").write_text(picture, encoding="utf-8")


def of_sandboxes(options: Options) -> Iterator[tuple[int, Row]]:
    """Measure the start of many, each ms for one of them, and a run in one after the other while all live."""
    for count in (1, 10) if options.quick else (1, 10, 100, 500):
        before_load, before = load(), time.perf_counter()
        with started(options.image, count) as envs:
            each = (time.perf_counter() - before) * 1000 / count
            yield count, Row(f"{count:,} sandboxes: start of each", {"p50": each}, load=(before_load, load()))
            bare, runs = [], []
            for turn in range(max(count, options.rounds(100))):
                bare.append(milliseconds(bare_bash))
                runs.append(milliseconds(lambda env=envs[turn % count]: env.run("true").unwrap()))  # type: ignore[misc]
            turns = Turns({BASH: bare, RUN: runs}, (before_load, load()))
            yield count, turns.row(RUN, BASH, name=f"{count:,} sandboxes: {RUN}")


def of_files(options: Options) -> Iterator[tuple[int, Row]]:
    """Measure a run, and one that changes a file, in larger and larger workspaces."""
    for count in (10, 1_000) if options.quick else (10, 100, 1_000, 10_000, 100_000):
        with machine.open_sandbox(options.image, limits=Limits(memory_bytes=3 * GIB)) as env:
            env.run(MAKE_FILES.format(count), timeout_seconds=1200).unwrap()
            calls: dict[str, Callable[[], object]] = {
                BASH: bare_bash,
                RUN: lambda env=env: env.run("true").unwrap(),  # type: ignore[misc]
                "a command that changes a file": lambda env=env: env.run("echo x >> d0/f1.txt").unwrap(),  # type: ignore[misc]
            }
            turns = time_in_turns(calls, options.rounds(60))
            for name in list(calls)[1:]:
                yield count, turns.row(name, BASH, name=f"{count:,} files: {name}")


def of_bytes(options: Options) -> Iterator[tuple[int, Row]]:
    """Measure upload and download, beside writing and reading a file of the host."""
    sizes = [KIB << (2 * power) for power in range(4 if options.quick else 11)]
    limits = Limits(transfer_bytes=2 * GIB, file_bytes=2 * GIB)
    with tempfile.TemporaryDirectory() as folder, machine.open_sandbox(options.image, limits=limits) as env:
        path = Path(folder, "file")
        target = Path(folder, "target")
        for size in sizes:
            path.write_bytes(bytes(range(256)) * (size // 256))
            calls: dict[str, Callable[[], object]] = {
                "host, write": lambda: target.write_bytes(path.read_bytes()),
                "upload": lambda: env.upload(path, "file").unwrap(),
                "host, read": target.read_bytes,
                "download": lambda: env.download("file", target, overwrite=True).unwrap(),
            }
            turns = time_in_turns(calls, options.rounds(20) if size <= 16 * MIB else 3, 1)
            for name, baseline in (("upload", "host, write"), ("download", "host, read")):
                yield size, turns.row(name, baseline, name=f"{size:,} bytes: {name}")


def of_load(options: Options) -> Iterator[tuple[int, Row]]:
    """Measure a run beside more and more busy processes."""
    with machine.open_sandbox(options.image) as env:
        calls: dict[str, Callable[[], object]] = {BASH: bare_bash, RUN: lambda: env.run("true").unwrap()}
        for count in (0, 2, 4, 8):
            with machine.spinning(count):
                turns = time_in_turns(calls, options.rounds(100))
            yield count, turns.row(RUN, BASH, name=f"{count} busy processes: {RUN}")
