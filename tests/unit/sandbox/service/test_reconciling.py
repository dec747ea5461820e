"""What is written down of sandboxes is compared with the engine."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

from sandbox.errors import ErrorCode, SandboxError
from sandbox.service.fleet.live_sandbox import LiveSandbox
from sandbox.service.fleet.reconciling import Reconciling
from sandbox.service.store.tables.sandboxes import SandboxRecord, State


class Live:
    """What is looked at of a sandbox; one that is ``attached`` sees its own end."""

    def __init__(self, ident: str, state: State, *, attached: bool = False) -> None:
        self.record = SandboxRecord(
            id=ident, tenant="a", ident=ident, state=state, created_at=0, ends_at=0, time_to_live_seconds=1
        )
        self.environment = object() if attached else None
        self.changing = asyncio.Lock()


def compared(lives: list[Live], states: dict[str, str] | None, *, times: int = 1) -> list[tuple[str, str | None]]:
    """Return what was settled by the last of so many comparisons with an engine that lists ``states``, or does not answer."""
    settled: list[tuple[str, str | None]] = []

    async def asked() -> dict[str, str]:
        if states is None:
            raise SandboxError(ErrorCode.engine_unavailable, "It is away.")
        return states

    async def settle(live: Any, state: str | None) -> None:
        assert live.changing.locked()
        settled.append((live.record.id, state))

    async def compare() -> None:
        reconciling = Reconciling(lambda: cast("list[LiveSandbox]", lives), asked, settle)
        for _ in range(times):
            settled.clear()
            assert await reconciling.compare() == (states is not None)

    asyncio.run(compare())
    return settled


def test_what_agrees_is_left_alone() -> None:
    lives = [Live("a", "running"), Live("b", "paused"), Live("c", "creating"), Live("d", "deleting"), Live("e", "running")]
    assert compared(lives, {"a": "running", "b": "paused", "e": "paused"}) == []


def test_containers_that_are_gone_or_awake_are_settled() -> None:
    lives = [Live("a", "running"), Live("b", "paused"), Live("c", "paused"), Live("d", "running")]
    expected = [("a", None), ("b", None), ("c", "running"), ("d", "exited")]
    assert compared(lives, {"c": "running", "d": "exited"}) == expected


def test_one_that_is_attached_says_itself_why_it_ended() -> None:
    lives = [Live("a", "running", attached=True)]
    assert compared(lives, {}) == []
    assert compared(lives, {}, times=2) == [("a", None)]


def test_an_engine_that_does_not_answer_proves_nothing() -> None:
    assert compared([Live("a", "running"), Live("b", "paused")], None, times=2) == []


def test_what_changes_while_the_engine_is_asked_is_left_alone() -> None:
    live = Live("a", "running")

    async def asked() -> dict[str, str]:
        live.record = replace(live.record, state="paused")
        return {}

    async def settle(live: Any, state: str | None) -> None:
        raise AssertionError

    async def compare() -> None:
        assert await Reconciling(lambda: cast("list[LiveSandbox]", [live]), asked, settle).compare()

    asyncio.run(compare())
