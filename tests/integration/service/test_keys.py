"""Keys over HTTP: scopes, revoking, other tenants, and those who guess."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.integration.own_engine import IMAGE
from tests.servers.gamebox_service import ServiceProcess

from .api import Api

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]


@pytest.fixture
def keys(api: Api, service: ServiceProcess) -> Iterator[dict[str, Api]]:
    """A key of each scope."""
    made = {}
    for scope in ("read", "use", "manage", "admin"):
        made[scope] = Api(service, api.call("POST", "/keys", {"scope": scope, "name": scope}, status=201)["key"])
    yield made
    for each in made.values():
        each.http.close()


def test_each_scope_allows_what_those_before_it_do(keys: dict[str, Api], sandbox: str) -> None:
    def allowed(method: str, path: str, body: object = None) -> list[str]:
        answers = {scope: each.http.request(method, f"/v1{path}", json=body) for scope, each in keys.items()}
        assert {answer.json()["code"] for answer in answers.values() if answer.status_code == 403} <= {"forbidden"}
        return [scope for scope, answer in answers.items() if answer.status_code != 403]

    every = ["read", "use", "manage", "admin"]
    assert allowed("GET", "/sandboxes") == every
    assert allowed("GET", f"/sandboxes/{sandbox}") == every
    assert allowed("POST", f"/sandboxes/{sandbox}/run", {"command": "true"}) == every[1:]
    assert allowed("GET", f"/sandboxes/{sandbox}/files?path=none") == every[1:]
    assert allowed("PATCH", f"/sandboxes/{sandbox}", {}) == every[2:]
    assert allowed("POST", f"/sandboxes/{sandbox}/resume") == every[2:]
    assert allowed("GET", "/keys") == every[3:]


def test_a_key_is_shown_once_and_refused_when_it_is_revoked(api: Api, service: ServiceProcess) -> None:
    made = api.call("POST", "/keys", {"name": "shown", "scope": "read"}, status=201)
    (listed,) = [each for each in api.call("GET", "/keys")["items"] if each["id"] == made["id"]]
    assert made["key"].startswith("e2b_")
    assert made["key"] not in str(listed)
    assert listed["key"] == f"{made['key'][:8]}…{made['key'][-4:]}"
    with Api(service, made["key"]) as other, other.events("/events", method="GET") as events:
        ended = threading.Event()

        def read() -> None:
            list(events)
            ended.set()

        thread = threading.Thread(target=read)
        thread.start()
        api.call("DELETE", f"/keys/{made['id']}", status=204)
        assert ended.wait(10), "its open stream goes on"
        thread.join()
        assert other.call("GET", "/whoami", status=401)["code"] == "unauthorized"
    assert api.call("DELETE", f"/keys/{made['id']}", status=404)["code"] == "key_not_found"


def test_a_key_expires(api: Api, service: ServiceProcess) -> None:
    made = api.call("POST", "/keys", {"scope": "read", "expires_seconds": 0.2}, status=201)
    assert made["expires_at"] is not None
    time.sleep(0.3)
    with Api(service, made["key"]) as other:
        other.call("GET", "/whoami", status=401)


def test_the_key_is_taken_from_either_header(service: ServiceProcess) -> None:
    with httpx.Client(base_url=service.url, trust_env=False) as http:
        assert http.get("/v1/whoami", headers={"X-API-Key": service.key}).status_code == 200
        assert http.get("/v1/whoami", headers={"Authorization": f"bearer {service.key}"}).status_code == 200
        assert http.get("/v1/whoami", headers={"Authorization": f"Basic {service.key}"}).status_code == 401
        assert http.get("/v1/whoami", headers={"X-API-Key": service.key + "0"}).status_code == 401


def test_who_guesses_is_locked_out_and_who_has_a_key_is_not(place: Path, tmp_path: Path) -> None:
    made = ServiceProcess(tmp_path / "data").start()
    try:
        with httpx.Client(base_url=made.url, trust_env=False) as http:
            answers = [http.get("/v1/whoami", headers={"X-API-Key": f"e2b_{n:040x}"}) for n in range(25)]
            assert [each.status_code for each in answers] == [401] * 20 + [429] * 5
            assert int(answers[-1].headers["retry-after"]) <= 60
            assert http.get("/healthz").status_code == 200
            assert http.get("/v1/whoami", headers={"X-API-Key": made.key}).status_code == 200
    finally:
        made.stop()


def test_sandboxes_of_other_tenants_do_not_exist(place: Path, tmp_path: Path) -> None:
    """The second tenant is made in the store: there is no route for it yet."""
    import asyncio

    from sandbox.service.keys import Keys, Scope
    from sandbox.service.store.database import Database

    made = ServiceProcess(tmp_path / "data", "--stop-all").start()
    made.stop()

    async def add() -> str:
        database = Database(tmp_path / "data" / "service.db")
        key, _ = await Keys(database).make("other", "", Scope.admin)
        database.close()
        return key

    key = asyncio.run(add())
    made.start()
    try:
        with Api(made) as api, Api(made, key) as other:
            assert other.call("GET", "/whoami")["tenant"] == "other"
            ident = api.create(image=IMAGE)
            assert other.call("GET", "/sandboxes")["items"] == []
            assert other.call("GET", "/keys")["items"] != api.call("GET", "/keys")["items"]
            for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/run"), ("POST", "/pause"), ("GET", "/events")):
                found = other.call(method, f"/sandboxes/{ident}{path}", status=404)
                assert found["code"] == "sandbox_not_found"
            assert api.state(ident) == "running"
    finally:
        made.stop()


def test_a_revoked_key_reads_no_more_output(api: Api, service: ServiceProcess, sandbox: str) -> None:
    made = api.call("POST", "/keys", {"scope": "use"}, status=201)
    body = {"command": "echo 1; until [ -e go ]; do sleep 0.05; done; seq 2 8"}
    with Api(service, made["key"]) as other, other.events(f"/sandboxes/{sandbox}/run", body, request_id="cut") as events:
        assert next(events).output == b"1\n"
        api.call("DELETE", f"/keys/{made['id']}", status=204)
        api.call("POST", f"/sandboxes/{sandbox}/write", {"path": "go", "content": ""})
        assert list(events) == []
    assert api.call("GET", f"/sandboxes/{sandbox}/requests/cut")["result"]["output"].endswith("8\n")
