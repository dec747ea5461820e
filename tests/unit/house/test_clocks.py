"""Nothing is timed by the wall clock, which may jump: what reads it is listed here."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[3]
READS = {
    "time.time",
    "time.time_ns",
    "time.localtime",
    "time.gmtime",
    "datetime.now",
    "datetime.utcnow",
    "datetime.today",
    "date.today",
}
# Where it is shown, or where a day more or less does not matter.
SHOWN = {
    "sandbox/envelope.py",  # the timestamp of an answer
    "sandbox/service/clock.py",  # times that are answered, and ends that outlive the process
    "sandbox/client/listing.py",  # ages that are shown
    "sandbox/client/time_to_live.py",  # when a service, whose clock it is, ends a sandbox
    "sandbox/docker/container/create.py",  # a label for people
    "sandbox/docker/builds/log.py",  # when a line was printed, to be shown
    "sandbox/docker/builds/archives.py",  # for how long a file was not used, by the times of files
    "sandbox/docker/builds/layers.py",  # for how long an image was not used, by the engine's times
    "sandbox/docker/kept/inventory.py",  # ages that are shown
    "sandbox/docker/kept/owners.py",  # since when, to be shown; a week after which a file may go
    "sandbox/guest/state/scanning.py",  # compared with the times of files, which are of that clock
    "sandbox/packages/store.py",  # how old a page is that another process may have fetched; in doubt it is asked for again
    "sandbox/packages/fetching.py",  # when that was
    "sandbox/network/egress.py",  # when a connection began, to be shown
    "sandbox/docker/images/runtime.py",  # a day after which an unused volume may go; locks keep those in use
}


def reads_wall_clock(path: Path) -> set[str]:
    """The reads of the wall clock in a module, also imported by name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found.add(f"{node.value.id}.{node.attr}")
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{name.name}" for name in node.names}
    return found & READS


def test_what_reads_the_wall_clock() -> None:
    reading = {str(p.relative_to(ROOT)) for p in (ROOT / "sandbox").rglob("*.py") if reads_wall_clock(p)}
    assert reading <= SHOWN
    assert [path for path in reading if path.startswith("sandbox/guest/")] == ["sandbox/guest/state/scanning.py"]
