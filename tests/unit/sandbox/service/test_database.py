"""The store: what was answered is on disk, one call's failure is its own, and a file that cannot be used is refused in words."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox.client.http.codes import ProblemCode
from sandbox.errors import ErrorCode, SandboxError
from sandbox.service.store import tidying
from sandbox.service.store.database import Database
from sandbox.service.store.migrations import STEPS
from sandbox.service.store.tables import requests, sandboxes
from sandbox.service.store.tables.keys import KeyRecord
from sandbox.service.store.tables.keys import insert as insert_key
from sandbox.service.store.tables.sandboxes import SandboxRecord

RECORD = SandboxRecord(
    id="abc", tenant="default", ident="gamebox-1", state="running", created_at=1.0, ends_at=2.0, time_to_live_seconds=1.0,
    metadata={"a": "b"}, description={"sandbox": "text"}, spec={"image": "x"}, options={"cache": True}, sealed=b"\0sealed",
)  # fmt: skip


def add_tenant(connection: sqlite3.Connection) -> None:
    insert_key(
        connection,
        KeyRecord(id="k", tenant="default", name="", scope="admin", digest=b"d", shown="e2b_", created_at=0.0),
    )


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    async def work() -> list[SandboxRecord]:
        first = Database(tmp_path / "db")
        await first.call(add_tenant)
        await first.call(lambda c: sandboxes.insert(c, RECORD))
        first.close()
        second = Database(tmp_path / "db")
        found = await second.call(sandboxes.every)
        second.close()
        return found

    assert asyncio.run(work()) == [RECORD]


def test_a_call_that_fails_undoes_what_it_did_and_no_more(tmp_path: Path) -> None:
    def fail(connection: sqlite3.Connection) -> None:
        sandboxes.insert(connection, RECORD)
        raise KeyError("mine")

    async def work() -> list[str]:
        database = Database(tmp_path / "db")
        await database.call(add_tenant)
        other = SandboxRecord(**{**{name: getattr(RECORD, name) for name in RECORD.__slots__}, "id": "other"})
        calls = [database.call(fail), database.call(lambda c: sandboxes.insert(c, other))]
        failed, _ = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(failed, KeyError)
        found = await database.call(sandboxes.every)
        database.close()
        return [each.id for each in found]

    assert asyncio.run(work()) == ["other"]


def test_many_calls_at_once_are_each_answered(tmp_path: Path) -> None:
    async def work() -> list[int]:
        database = Database(tmp_path / "db")

        def echo(n: int) -> Callable[[sqlite3.Connection], int]:
            return lambda c: int(c.execute("SELECT ?", (n,)).fetchone()[0])

        found = await asyncio.gather(*(database.call(echo(n)) for n in range(500)))
        database.close()
        return list(found)

    assert asyncio.run(work()) == list(range(500))


WRITER = """
import asyncio, sys
from pathlib import Path
from sandbox.service.store.database import Database
from sandbox.service.store.tables.sandboxes import add_event

async def work():
    database = Database(Path(sys.argv[1]))
    for n in range(100000):
        await database.call(lambda c: add_event(c, "default", str(n), 0.0, {}))
        print(n, flush=True)

asyncio.run(work())
"""


def test_what_was_answered_survives_sigkill(tmp_path: Path) -> None:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, tmp_path / "db"], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    lines = [writer.stdout.readline() for _ in range(50)]
    os.kill(writer.pid, signal.SIGKILL)
    lines += writer.stdout.readlines()
    writer.wait()
    writer.stdout.close()
    answered = {line.strip() for line in lines if line.endswith("\n")}

    async def work() -> set[str]:
        database = Database(tmp_path / "db")
        found = await database.call(lambda c: {row["sandbox"] for row in c.execute("SELECT sandbox FROM events")})
        database.close()
        return found

    assert len(answered) >= 50
    assert answered <= asyncio.run(work())


@pytest.mark.parametrize("damage", ["not a database", "later"])
def test_a_store_that_cannot_be_used_is_refused(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "db"
    if damage == "later":
        with sqlite3.connect(path) as made:
            made.execute(f"PRAGMA user_version = {len(STEPS) + 1}")
        made.close()
    else:
        path.write_bytes(b"nonsense" * 1000)
    with pytest.raises(SandboxError) as caught:
        Database(path)
    assert caught.value.code is ErrorCode.setup_failed
    assert str(path) in caught.value.message
    assert "backup" in caught.value.hint


def test_a_locked_store_is_an_error_that_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.service.store.database.BUSY_SECONDS", 0.1)

    async def work() -> None:
        database = Database(tmp_path / "db")
        other = sqlite3.connect(tmp_path / "db", isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(SandboxError) as caught:
            await database.call(add_tenant)
        assert (caught.value.code, caught.value.retryable) == (ProblemCode.store_unavailable, True)
        other.execute("ROLLBACK")
        other.close()
        await database.call(add_tenant)
        database.close()

    asyncio.run(work())


def request_at(sent: float, answered: float | None) -> Callable[[sqlite3.Connection], None]:
    def work(connection: sqlite3.Connection) -> None:
        requests.begin(connection, "abc", f"r{sent}", "run", b"d", sent)
        if answered is not None:
            requests.answered(connection, "abc", f"r{sent}", answered)

    return work


def test_the_first_request_with_an_id_is_told_to_the_second(tmp_path: Path) -> None:
    async def work() -> None:
        database = Database(tmp_path / "db")
        await database.call(add_tenant)
        await database.call(lambda c: sandboxes.insert(c, RECORD))
        assert await database.call(lambda c: requests.begin(c, "abc", "r", "run", b"d", 1.0)) is None
        found = await database.call(lambda c: requests.begin(c, "abc", "r", "run", b"other", 2.0))
        assert found is not None
        assert (found.digest, found.answered_at) == (b"d", None)
        await database.call(lambda c: requests.answered(c, "abc", "r", 3.0))
        (listed,) = await database.call(lambda c: requests.of_sandbox(c, "abc", most=5))
        assert listed.answered_at == 3.0
        for sent, answered in ((10.0, 11.0), (20.0, 21.0), (30.0, None)):
            await database.call(request_at(sent, answered))
        assert await database.call(lambda c: requests.forget(c, "abc", 5.0, 15.0, 9)) == 2
        kept = await database.call(lambda c: requests.of_sandbox(c, "abc", most=5))
        assert [each.sent_at for each in kept] == [30.0, 20.0]
        await database.call(lambda c: sandboxes.delete(c, "abc"))
        assert await database.call(lambda c: requests.of_sandbox(c, "abc", most=5)) == []
        database.close()

    asyncio.run(work())


def test_what_is_old_is_forgotten_while_others_use_the_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tidying, "PIECE", 10)

    def count(connection: sqlite3.Connection) -> int:
        found: int = connection.execute("SELECT count(*) FROM requests").fetchone()[0]
        return found

    async def work() -> set[int]:
        database = Database(tmp_path / "db")
        await database.call(add_tenant)
        await database.call(lambda c: sandboxes.insert(c, RECORD))
        for n in range(40):
            await database.call(request_at(float(n), n + 1.0 if n < 35 else None))
        forgetting, seen = asyncio.ensure_future(tidying.forget_old(database, ["abc"], 2000.0)), set()
        while not forgetting.done():
            seen.add(await database.call(count))
            await asyncio.sleep(0)
        await forgetting
        assert await database.call(count) == 5
        database.close()
        return seen

    assert {30, 20, 10} <= asyncio.run(work())


def test_events_are_read_after_one_unless_some_were_forgotten(tmp_path: Path) -> None:
    async def work() -> None:
        database = Database(tmp_path / "db")

        def add(c: sqlite3.Connection) -> None:
            c.executemany("INSERT INTO tenants (id, created_at) VALUES (?, 0)", [("t",), ("other",)])
            for n in range(4):
                sandboxes.add_event(c, "t", f"s{n % 2}", float(n), {"n": n})
                sandboxes.add_event(c, "other", "s9", 99.0, {"n": -n})

        await database.call(add)

        async def after(ident: int, sandbox: str | None = None) -> list[int] | None:
            found = await database.call(lambda c: sandboxes.events_after(c, "t", sandbox, ident, 10))
            return None if found is None else [each.data["n"] for each in found]

        assert await after(0) == [0, 1, 2, 3]
        assert await after(1, "s1") == [1, 3]
        assert await after(4) == []
        assert await after(5) is None, "there was none yet with that id"
        await database.call(lambda c: sandboxes.forget_events(c, 2.0))
        assert await after(1) is None
        assert await after(2) == [2, 3]
        others = await database.call(lambda c: sandboxes.events_after(c, "other", None, 2, 10))
        assert [each.id for each in others or ()] == [3, 4], "ids of a tenant say nothing of another one's events"
        assert await database.call(lambda c: sandboxes.events_after(c, "nobody", None, 0, 10)) == []
        await database.call(lambda c: sandboxes.forget_events(c, 0.0, most=1))
        assert (await after(2), await after(3)) == (None, [3]), "a tenant has so many events, however fast it makes them"
        await database.call(lambda c: sandboxes.forget_events(c, 99.0))
        assert await after(4) == []
        assert await after(3) is None
        database.close()

    asyncio.run(work())
