"""Kill a service by SIGKILL again and again, while clients create, run, stream, upload, pause, checkpoint, fork and delete.

Each client keeps a journal of every acknowledged answer. At the end it is compared with what the API says, and with the
containers, volumes and loop devices of the engine, and the files, rows and quotas of the service: nothing lost, nothing twice,
nothing left over.
A third of the kills come at a random moment. The others wait until the store and the engine show a request in a certain state
(``states.py``), the one that the fewest kills have hit so far. The counts of all states are printed.

    python -m tests.soak.service [--kills 100] [--clients 4] [--seed N] [--folder FOLDER] [--json]

It starts an engine of its own, and needs root. Exit code 1 if anything is wrong, or if with 100 kills or more none came in a
certain state.
"""

from __future__ import annotations

import argparse
import json
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import pytest

from sandbox.docker.engine.client import connect
from sandbox.docker.engine.events import SANDBOX_LABEL
from tests.integration.observing import eventually
from tests.integration.own_engine import IMAGE, OwnEngine, running
from tests.servers.gamebox_service import ServiceProcess

from .client import Client, check
from .journal import Journal
from .states import states_of

# How long nothing is killed, at most, and how long the service is dead.
LIVE_SECONDS, DEAD_SECONDS = 2.5, 0.4
RANDOM_PART = 1 / 3
AIM_SECONDS = 6.0
# From so many kills on, each state has to be hit.
KILLS_OF_A_WHOLE_RUN = 100
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
        try:
            return self._run(kills, told)
        finally:
            self._service.stop()

    def _run(self, kills: int, told: bool) -> Journal:
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
                if self.journal.wrong:
                    break
        finally:
            for client in clients:
                client.stop.set()
            for client in clients:
                client.thread.join(240)
        if not self.journal.wrong:
            self._compare(clients)
        return self.journal

    def _kill(self) -> None:
        if self._rng.random() < 0.75:  # else it may be killed while it recovers; always so, clients would wait for ever
            before = sum(self.journal.done.values())
            eventually(lambda: sum(self.journal.done.values()) > before or self.journal.wrong, PROGRESS_SECONDS)
        if self._rng.random() < RANDOM_PART:
            time.sleep(self._rng.uniform(0.1, LIVE_SECONDS))
        else:
            self._await_state()
        doing = list(self.journal.doing.values())
        self._service.kill()
        self.journal.killed(states_of(doing, self._store, _containers))
        time.sleep(self._rng.uniform(0, DEAD_SECONDS))
        self._service.start()

    def _await_state(self) -> None:
        """Wait until a request is in the state that was hit least, for a while."""
        counts = {(action, state): n for action, states in self.journal.killed_in.items() for state, n in states.items()}
        fewest = min(counts.values())
        aim = self._rng.choice([each for each, n in counts.items() if n == fewest])
        until = time.monotonic() + AIM_SECONDS
        while time.monotonic() < until and not self.journal.wrong:
            doing = [each for each in list(self.journal.doing.values()) if each.action == aim[0]]
            if doing and aim in states_of(doing, self._store, _containers):
                return
            time.sleep(0 if doing else 0.0005)

    @property
    def _store(self) -> Path:
        return self._folder / "data" / "service.db"

    # --- the end ------------------------------------------------------------------
    def _compare(self, clients: list[Client]) -> None:
        with closing(Client(-1, self._rng, self.journal, self._service.url, self._service.key, IMAGE)) as asker:
            for client in clients:
                for box in list(client.known):
                    self._noting(lambda box=box: asker.finish(box))
            expected = sorted(box.id for client in clients for box in client.known)
            self._noting(lambda: self._compare_listed(asker, expected))
            self._noting(lambda: self._compare_engine(expected))
            self._noting(lambda: self._compare_files(expected))
            for ident in expected:
                asker.ask("DELETE", f"/sandboxes/{ident}")
            self._noting(lambda: self._compare_quota(asker))
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
            containers = _containers()
            volumes = [each["Labels"].get(SANDBOX_LABEL, each["Name"]) for each in _volumes()]
            with closing(sqlite3.connect(self._store)) as store:
                idents = {row[0]: row[1] for row in store.execute("SELECT ident, id FROM sandboxes")}
                standing_by = {row[0] for row in store.execute("SELECT ident FROM members")}
            known = {*idents, *standing_by}
            states = {containers.get(ident) for ident, box in idents.items() if box in expected}
            loops = self._engine.loop_devices()
            if sorted(idents.values()) != expected or not {*containers, *volumes} <= known or not states <= {"running"}:
                return f"containers {containers}, volumes of {volumes}, sandboxes {idents}, standing by {standing_by}"
            return f"loop devices {loops}, but {len(volumes)} volumes" if len(loops) > len(volumes) else ""

        check(eventually(lambda: not differs(), SETTLED_SECONDS), differs())

    def _compare_files(self, expected: list[str]) -> None:
        """Each checkpoint that is listed has its file, and there is no other one."""
        with closing(sqlite3.connect(self._store)) as store:
            rows = sorted(f"{sandbox}/{file}" for sandbox, file in store.execute("SELECT sandbox, file FROM checkpoints"))
        folder = self._folder / "data" / "checkpoints"
        files = sorted(str(path.relative_to(folder)) for path in folder.glob("*/*"))
        check(rows == files, f"checkpoints in the store {rows}, in its folder {files}")
        owners = {path.stem for path in (self._folder / "state" / "gamebox" / "owners").glob("*.json")}
        check(len(owners) <= len(expected), f"owners {owners} of {expected}")

    def _compare_quota(self, asker: Client) -> None:
        """Nothing is in use when everything was deleted."""
        names = ("sandboxes", "memory_bytes", "cpus", "disk_bytes", "checkpoint_bytes")

        def used() -> dict[str, float]:
            found = asker.ask("GET", "/quota").json()["used"]
            return {name: found[name] for name in names if found[name]}

        check(eventually(lambda: not used(), SETTLED_SECONDS), f"in use at the end: {used()}")

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


def _containers() -> Mapping[str, str]:
    """Return the states of the engine's containers by their names."""
    return {each["Names"][0].lstrip("/"): each["State"] for each in connect().api.containers(all=True)}


def _volumes() -> list[dict[str, Any]]:
    listed = connect().api.volumes().get("Volumes") or []
    return [{**each, "Labels": each["Labels"] or {}} for each in listed if not each["Name"].startswith("gamebox-runtime-")]


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
    parser.add_argument("--folder", type=Path, help="an empty folder for the service's data and log; without it, nothing is kept")
    options = parser.parse_args()
    print(f"seed {options.seed}", file=sys.stderr, flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # its engine and service end with it
    with ExitStack() as stack:
        patched = stack.enter_context(pytest.MonkeyPatch.context())
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gamebox-kills-")))
        environment(folder, patched)
        with running() as engine:
            journal = Kills(engine, folder, options.seed, options.clients).run(options.kills, told=True)
            if journal.wrong:
                print((folder / "service.log").read_text()[-20000:], file=sys.stderr)
    found = {"seed": options.seed, "kills": options.kills, **journal.to_dict()}
    print(json.dumps(found) if options.json else "\n".join(f"{name}: {value}" for name, value in found.items()))
    missed = options.kills >= KILLS_OF_A_WHOLE_RUN and journal.never_killed_in
    return 1 if journal.wrong or missed else 0


if __name__ == "__main__":
    sys.exit(main())
