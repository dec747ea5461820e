"""Kill a service by SIGKILL again and again, while clients create, run, stream, upload, pause, checkpoint, fork and delete.

Each client keeps a journal of every acknowledged answer. At the end it is compared with what the API says, and with the
containers, volumes and loop devices of the engine and the files of the service: nothing lost, nothing twice, nothing left over.
Half of the kills come at a random moment, the others a moment after a certain action has begun.

    python -m tests.soak.service [--kills 100] [--clients 4] [--seed N] [--json]

It starts an engine of its own, and needs root. Exit code 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import tempfile
import time
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import pytest

from sandbox.docker.engine.client import connect
from tests.integration.observing import eventually
from tests.integration.own_engine import IMAGE, OwnEngine, running
from tests.servers.gamebox_service import ServiceProcess

from .client import Client, check
from .journal import Journal

# How long nothing is killed, at most, and how long the service is dead.
LIVE_SECONDS, DEAD_SECONDS = 2.5, 0.4
AIMED = ("create", "run", "stream", "upload", "pause", "resume", "checkpoint", "rollback", "fork", "delete")
AIM_SECONDS = 3.0
# The first creation on an engine takes longer.
FIRST_SECONDS = 60.0
SETTLED_SECONDS = 30.0
# A busy machine takes a while to start a service.
PROGRESS_SECONDS = 30.0


class Kills:
    """One run. ``journal`` is what came of it."""

    def __init__(self, engine: OwnEngine, folder: Path, seed: int, clients: int) -> None:
        self.journal = Journal()
        self._engine, self._folder, self._rng = engine, folder, Random(seed)
        self._service = ServiceProcess(folder / "data")
        self._seed, self._number = seed, clients

    def run(self, kills: int, *, told: bool = False) -> Journal:
        """Kill so many times, and compare."""
        service = self._service.start()
        clients = [
            Client(n, Random(f"{self._seed}/{n}"), self.journal, service.url, service.key, IMAGE) for n in range(self._number)
        ]
        for client in clients:
            client.thread.start()
        try:
            eventually(lambda: self.journal.done["create"] >= len(clients) or self.journal.wrong, FIRST_SECONDS)
            for number in range(kills):
                self._kill()
                if told:
                    done = sum(self.journal.done.values())
                    print(f"{number + 1} kills, {done} actions, {len(self.journal.wrong)} wrong", file=sys.stderr, flush=True)
                if not any(client.thread.is_alive() for client in clients):
                    break
        finally:
            for client in clients:
                client.stop.set()
            for client in clients:
                client.thread.join(240)
        if not self.journal.wrong:
            self._compare(clients)
        service.stop()
        return self.journal

    def _kill(self) -> None:
        if self._rng.random() < 0.75:  # else it may be killed while it recovers; always so, clients would wait for ever
            before = sum(self.journal.done.values())
            eventually(lambda: sum(self.journal.done.values()) > before or self.journal.wrong, PROGRESS_SECONDS)
        if self._rng.random() < 0.5:
            time.sleep(self._rng.uniform(0.1, LIVE_SECONDS))
        else:
            aim, until = self._rng.choice(AIMED), time.monotonic() + AIM_SECONDS
            while aim not in self.journal.doing.values() and time.monotonic() < until:
                time.sleep(0.002)
            time.sleep(self._rng.choice((0.0, 0.01, 0.05, 0.2)))
        self.journal.killed()
        self._service.kill()
        time.sleep(self._rng.uniform(0, DEAD_SECONDS))
        self._service.start()

    # --- the end ------------------------------------------------------------------
    def _compare(self, clients: list[Client]) -> None:
        asker = Client(-1, self._rng, self.journal, self._service.url, self._service.key, IMAGE)
        for client in clients:
            for box in list(client.known):
                self._noting(lambda box=box: asker.finish(box))
        expected = sorted(box.id for client in clients for box in client.known)
        self._noting(lambda: self._compare_listed(asker, expected))
        self._noting(lambda: self._compare_engine(expected))
        for ident in expected:
            asker.ask("DELETE", f"/sandboxes/{ident}")
        self._noting(self._compare_remains)

    def _noting(self, compare: Any) -> None:
        try:
            compare()
        except Exception as error:  # noqa: BLE001
            self.journal.note(f"at the end: {error}")

    def _compare_listed(self, asker: Client, expected: list[str]) -> None:
        def listed() -> list[tuple[str, str]]:
            items = asker.ask("GET", "/sandboxes", params={"limit": "200"}).json()["items"]
            return sorted((each["id"], each["state"]) for each in items)

        wanted = [(ident, "running") for ident in expected]
        check(eventually(lambda: listed() == wanted, SETTLED_SECONDS), f"listed are {listed()}, not {wanted}")

    def _compare_engine(self, expected: list[str]) -> None:
        """Each container belongs to a sandbox of the API, or stands by for one."""

        def differs() -> str:
            containers = {each["Names"][0].lstrip("/"): each["State"] for each in connect().api.containers(all=True)}
            with sqlite3.connect(self._folder / "data" / "service.db") as store:
                idents = {row[0]: row[1] for row in store.execute("SELECT ident, id FROM sandboxes")}
                standing_by = {row[0] for row in store.execute("SELECT ident FROM members")}
            store.close()
            unknown = sorted(set(containers) - set(idents) - standing_by)
            states = {containers.get(ident) for ident, known in idents.items() if known in expected}
            if sorted(idents.values()) != expected or unknown or not states <= {"running"}:
                return f"containers {containers}, sandboxes {idents}, standing by {standing_by}"
            return ""

        check(eventually(lambda: not differs(), SETTLED_SECONDS), differs())

    def _compare_remains(self) -> None:
        """After all were deleted and the service has ended, nothing is left anywhere."""
        self._service.stop()
        self._engine.nothing_is_left(SETTLED_SECONDS)
        data = self._folder / "data"
        files = [str(path.relative_to(data)) for path in data.rglob("*") if path.is_file()]
        known = ("service.db", "service.db-wal", "service.db-shm", "admin.key", "secret.key", "lock")
        more = [name for name in files if name not in known and not name.endswith(".log") and not name.startswith("audit")]
        check(not more, f"files left in the folder of the service: {more}")
        owners = list((self._folder / "state" / "gamebox" / "owners").glob("*.json"))
        check(not owners, f"owners left: {owners}")
        with sqlite3.connect(data / "service.db") as store:
            tables = [row[0] for row in store.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            left = {name: store.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in tables}
        store.close()
        more = [name for name in ("sandboxes", "requests", "checkpoints", "members") if left.get(name)]
        check(not more, f"rows left in the store: {left}")


def environment(folder: Path, patched: pytest.MonkeyPatch) -> None:
    """Have services use ``folder``, and allow the image of the tests."""
    patched.setenv("XDG_STATE_HOME", str(folder / "state"))
    patched.setenv("GAMEBOX_SERVICE_IMAGES", IMAGE)


def main() -> int:
    """The program; its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(10**6))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    print(f"seed {options.seed}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="gamebox-kills-") as name, pytest.MonkeyPatch.context() as patched:
        folder = Path(name)
        environment(folder, patched)
        with running() as engine:
            journal = Kills(engine, folder, options.seed, options.clients).run(options.kills, told=True)
            if journal.wrong:
                print((folder / "service.log").read_text()[-6000:], file=sys.stderr)
    found = {"seed": options.seed, "kills": options.kills, **journal.to_dict()}
    print(json.dumps(found) if options.json else "\n".join(f"{name}: {value}" for name, value in found.items()))
    return 1 if journal.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
