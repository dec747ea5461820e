"""Make the store and the guest of a service that ``test_service_formats`` uses: ``python -m tests.formats.make_service FOLDER``.

Run it only to add files of a new version beside the old ones; a checked-in file is never made again. ``service-1.db`` has the
tables of the first version, and ``guest-3.tar.xz`` the modules of the guest as they were when protocol 3 was new.
"""

from __future__ import annotations

import hashlib
import io
import json
import sqlite3
import sys
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

from sandbox import Limits, Network
from sandbox.docker.images.runtime import guest_files
from sandbox.docker.spec import SandboxSpec
from sandbox.service.store.migrations import STEPS

KEY = "e2b_" + "0123456789" * 4
AT = 1_790_000_000.0
IDS = {"running": "a" * 20, "paused": "b" * 20, "lost": "c" * 20, "creating": "d" * 20}


def make_store(path: Path) -> None:
    """Write a store as the first version did."""
    limits, network = Limits(memory_bytes=64 << 20), Network.allow("example.com")
    spec = SandboxSpec(image="gamebox/base", limits=limits, network=network, env=("K",), keep=True)
    with closing(sqlite3.connect(path)) as store:
        store.executescript(f"{STEPS[0]}; PRAGMA user_version = 1;")
        store.execute("INSERT INTO tenants VALUES ('default', ?)", (AT,))
        digest = hashlib.sha256(KEY.encode()).digest()
        row: tuple[Any, ...] = ("k0", "default", "admin", "admin", digest, "e2b_0123…6789", AT, None, None)
        store.execute("INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        for number, (state, ident) in enumerate(IDS.items()):
            over = (4_000_000_000.0, "oom", "It had no memory.") if state == "lost" else (None, None, None)
            texts = [json.dumps(each) for each in ({"job": state}, {"sandbox": "text"}, spec.to_data(), {"K": "value"})]
            store.execute(
                f"INSERT INTO sandboxes VALUES ({', '.join('?' * 14)})",
                (
                    ident, "default", f"gamebox-{number:016x}", state, over[1], over[2],
                    AT + number, 4_000_000_000.0, over[0], 3600.0, *texts,
                ),
            )  # fmt: skip
        running = IDS["running"]
        store.execute("INSERT INTO requests VALUES (?, 'r1', 'run', ?, ?, ?)", (running, b"digest", AT, AT + 1))
        answer = json.dumps({"id": running})
        store.execute("INSERT INTO creations VALUES ('default', 'mine', ?, ?, ?, ?)", (b"digest", running, AT, answer))
        store.execute("INSERT INTO checkpoints VALUES (?, 'before', 'f00d')", (running,))
        for state, ident in IDS.items():
            data = json.dumps({"sandbox_id": ident, "state": state, "reason": None})
            store.execute("INSERT INTO events (tenant, sandbox, at, data) VALUES ('default', ?, ?, ?)", (ident, AT, data))
        store.commit()
        store.execute("VACUUM")


def make_guest(path: Path) -> None:
    """Write the modules of the guest, as they are now."""
    with tarfile.open(path, "w:xz", preset=9) as tar:
        for name, content in sorted(guest_files().items()):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    make_store(folder / "service-1.db")
    make_guest(folder / "guest-3.tar.xz")
