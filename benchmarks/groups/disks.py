"""What a sandbox's disks cost at its start and its close, and in a crowd, beside files in memory."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from benchmarks.measuring import MIB, Options, Row, Turns, load, milliseconds
from sandbox import DockerEnvironment, Limits

KINDS = {
    "in memory": Limits(memory_bytes=256 * MIB, pids=64, disk="memory"),
    "on disks": Limits(memory_bytes=256 * MIB, pids=64),
}
_FILE_SYSTEMS = {"in memory": "tmpfs", "on disks": "ext2/ext3"}


def check(env: DockerEnvironment, kind: str) -> None:
    """Exit where the sandbox does not keep its files as asked: its figures would be those of something else."""
    found = env.sh("stat -f -c %T /workspace").output.strip()
    if found != _FILE_SYSTEMS[kind]:
        raise SystemExit(f"this engine does not keep files {kind}, but on {found}: {env.describe()['limits']}")


def disks(options: Options) -> Iterator[Row]:
    """Measure sandboxes one after the other, in turns, and a crowd that is started at once and removed at once."""
    taken: dict[str, list[float]] = {f"{what}, {kind}": [] for what in ("start", "close") for kind in KINDS}
    before = load()
    for turn in range(options.rounds(40) + 1):
        for kind, limits in KINDS.items():
            env = DockerEnvironment(options.image, limits=limits)
            start = milliseconds(lambda env=env: (env.start(), env.run("true").unwrap()))  # type: ignore[misc]
            check(env, kind)
            close = milliseconds(env.close)
            if turn:  # the first one of each makes what the others use again
                taken[f"start, {kind}"].append(start)
                taken[f"close, {kind}"].append(close)
            env.close(wait=True)
    turns = Turns(taken, (before, load()))
    for what in ("start", "close"):
        yield turns.row(f"{what}, on disks", f"{what}, in memory")
    size, before = options.rounds(100), load()
    crowds = {kind: crowd(options.image, limits, size) for kind, limits in KINDS.items()}
    turns = Turns({f"{what}, {kind}": [found[what]] for kind, found in crowds.items() for what in found}, (before, load()))
    for what in ("started", "gone"):
        yield turns.row(f"{what}, on disks", f"{what}, in memory", name=f"{size} at once, all {what}")


def crowd(image: str, limits: Limits, size: int) -> dict[str, float]:
    """Return ms until all of ``size`` sandboxes have answered, and until all are gone."""
    envs = [DockerEnvironment(image, limits=limits) for _ in range(size)]
    with ThreadPoolExecutor(size) as pool:
        try:
            started = milliseconds(lambda: list(pool.map(lambda env: env.start().run("true").unwrap(), envs)))
        finally:
            closed = milliseconds(lambda: list(pool.map(lambda env: env.close(wait=True), envs)))
    return {"started": started, "gone": closed}
