"""What this process and this host hold of a run: descriptors, threads, bytes and files, before it and after."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sandbox.docker.engine import client as engine
from tests.integration.observing import resident_bytes

# Of glibc's malloc.h.
_M_ARENA_MAX = -8


@dataclass(frozen=True)
class Held:
    """``descriptors`` are named by what they lead to, ``threads`` by their names, ``files`` by their paths."""

    descriptors: tuple[str, ...]
    threads: tuple[str, ...]
    files: tuple[str, ...]
    resident_bytes: int


def one_arena() -> None:
    """Have the threads to come share one heap: with one each, what they leave free in it looks like a leak of 50 MB."""
    with contextlib.suppress(OSError, AttributeError):  # of glibc alone
        ctypes.CDLL("libc.so.6").mallopt(_M_ARENA_MAX, 1)


@contextmanager
def own_places() -> Iterator[Path]:
    """Temporary files and the files of owners are in a folder of the run's own, so that what is left in it is the run's."""
    names = ("TMPDIR", "XDG_STATE_HOME")
    before = {name: os.environ.get(name) for name in names}
    with tempfile.TemporaryDirectory(prefix="gamebox-soak-") as folder:
        Path(folder, "state").mkdir()
        os.environ |= {"TMPDIR": folder, "XDG_STATE_HOME": str(Path(folder, "state"))}
        tempfile.tempdir = None
        try:
            yield Path(folder)
        finally:
            tempfile.tempdir = None
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def held(folder: Path) -> Held:
    """What is held now; ``folder`` as from ``own_places``."""
    for client in list(engine._clients.values()):
        client.api.close()  # idle connections, of which docker-py keeps up to 25 a client
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # of glibc alone: what it keeps for later is nobody's
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    descriptors = []
    for name in os.listdir("/proc/self/fd"):
        try:
            descriptors.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:  # the one of this look
            continue
    threads = tuple(thread.name for thread in threading.enumerate())
    files = tuple(sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()))
    return Held(tuple(descriptors), threads, files, resident_bytes(os.getpid()))
