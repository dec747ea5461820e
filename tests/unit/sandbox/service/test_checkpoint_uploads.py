"""Files of checkpoints that come over HTTP: what has come counts at once, and what is broken off counts no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.errors import ErrorCode, SandboxError
from sandbox.service.fleet import checkpoints as module
from sandbox.service.fleet.checkpoints import Checkpoints
from sandbox.service.store.database import Database
from sandbox.service.tenants.amounts import Amounts
from sandbox.service.tenants.ledger import CheckpointRoom, Ledger
from sandbox.service.tenants.rules import Quota


def test_uploads_that_do_not_end_take_no_more_than_the_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_most_bytes", lambda _: 1 << 20)
    ledger = Ledger(lambda _: Quota(checkpoint_bytes=1000), 1.0)
    ledger.reserve("mine", {"a": Amounts(1)}, None)

    async def main() -> None:
        database = Database(tmp_path / "db")
        environment: Any = None  # no upload comes to its end
        checkpoints = Checkpoints(database, tmp_path, "a", CheckpointRoom(ledger, "mine", "a"))
        begun = asyncio.Event()

        async def endless() -> AsyncIterator[bytes]:
            yield bytes(600)
            begun.set()
            await asyncio.Event().wait()

        async def second() -> AsyncIterator[bytes]:
            yield bytes(300)
            yield bytes(300)

        first = asyncio.ensure_future(checkpoints.take(environment, endless(), None, "r1"))
        await begun.wait()
        with pytest.raises(SandboxError) as caught:
            await checkpoints.take(environment, second(), None, "r2")
        assert caught.value.code is ErrorCode.store_full
        assert ledger.stored_bytes("mine") == 600
        first.cancel()
        await asyncio.wait([first])
        assert ledger.stored_bytes("mine") == 0
        assert list((tmp_path / "checkpoints/a").iterdir()) == []
        database.close()

    asyncio.run(main())
