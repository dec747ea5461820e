"""What one client behind a proxy, one key and one tenant may have under way: others have room at any time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from sandbox.service.app import make_house
from sandbox.service.connections import OpenConnection, OpenConnections
from sandbox.service.house import House
from sandbox.service.http.gate import Gate
from sandbox.service.http.problems import Problem
from sandbox.service.places import Places
from sandbox.service.ports.access import Admission, key_place, public_key
from sandbox.service.settings import read_settings
from sandbox.service.store.database import Database
from sandbox.service.store.tables.tenants import TenantRecord
from sandbox.service.tenants.account import Account
from sandbox.service.tenants.metering import Visit
from sandbox.service.tenants.rules import Ceiling, Quota


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("service")
    database = Database(folder / "db")
    yield make_house(
        read_settings({"data": folder, "behind_proxy": "192.0.2.0/24", "address_connections": 2, "key_connections": 2}), database
    )
    database.close()


def test_a_client_behind_a_proxy_leaves_requests_for_others(house: House) -> None:
    statuses: list[tuple[str, int]] = []

    async def answered(gate: Gate, app: FastAPI, client: str) -> None:
        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append((client, message["status"]))

        headers = [(b"host", b"localhost")]
        scope = {"type": "http", "method": "GET", "path": "/", "raw_path": b"/", "query_string": b"", "scheme": "http"}
        await gate({**scope, "app": app, "headers": headers, "client": (client, 1)}, _nothing, send)

    async def work() -> None:
        over = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await over.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})

        state = FastAPI()
        state.state.house = house
        gate = Gate(app)
        clients = ("198.51.100.1", "198.51.100.1", "198.51.100.1", "198.51.100.2", "2001:db8::1", "2001:db8::2", "2001:db8::3")
        tasks = [asyncio.ensure_future(answered(gate, state, client)) for client in clients]
        await asyncio.sleep(0)
        assert statuses == [("198.51.100.1", 429), ("2001:db8::3", 429)]
        over.set()
        await asyncio.gather(*tasks)

    asyncio.run(work())
    assert [status for _, status in statuses] == [429, 429, 200, 200, 200, 200, 200]
    assert house.clients.taken == 0


async def _nothing() -> Any:
    return {"type": "http.request"}


def test_a_key_leaves_requests_for_the_other_keys_of_its_tenant(house: House, tmp_path: Path) -> None:
    record = TenantRecord(id="t", created_at=0.0)
    account = Account(record, Ceiling(), Quota(requests_under_way=3), house.tenants._output)
    visits = [Visit() for _ in range(5)]
    for visit in visits[:2]:
        visit.enter(account, house.tenants.ledger, house.callers, "k1")
    with pytest.raises(Problem, match="This key already has 2") as caught:
        visits[2].enter(account, house.tenants.ledger, house.callers, "k1")
    assert (caught.value.status, caught.value.code) == (429, "too_many_connections")
    visits[3].enter(account, house.tenants.ledger, house.callers, "k2")
    with pytest.raises(Problem, match="3 requests of this tenant"):
        visits[4].enter(account, house.tenants.ledger, house.callers, "k2")
    assert house.callers.of("k2") == 1  # what was refused for another reason holds no place
    with pytest.raises(Problem, match="This key"), key_place(house, Admission(None, "k1")):  # type: ignore[arg-type]
        pass
    with key_place(house, Admission(None, public_key(80))):  # type: ignore[arg-type]
        pass
    for visit in visits:
        visit.leave()
    assert house.callers.taken == 0


def test_the_connections_of_a_tenant_leave_room_for_those_of_others() -> None:
    every = OpenConnections(100)
    every.tenants = Places(8, 8)
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(every.open(OpenConnection("a", "greedy", None, print)))
        with pytest.raises(Problem, match="4 connections to sandboxes of this tenant"):
            every.open(OpenConnection("b", "greedy", None, print)).__enter__()
        stack.enter_context(every.open(OpenConnection("c", "other", None, print)))
    assert every.tenants.taken == 0


def test_who_guesses_keys_is_locked_out_with_all_addresses_of_an_ipv6_network(house: House) -> None:
    codes = []
    for number in range(21):
        with pytest.raises(Problem) as caught:
            house.keys.caller("e2b_wrong", f"2001:db8:0:7::{number:x}")
        codes.append(caught.value.code)
    assert codes == ["unauthorized"] * 20 + ["locked_out"]
    with pytest.raises(Problem, match="not valid"):
        house.keys.caller("e2b_wrong", "2001:db8:0:8::1")
