"""Tenants over HTTP: made by the operator, held to ceilings and quotas, and deleted with all they have."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from sandbox.docker.container.disks.disk import written_bytes
from sandbox.docker.engine.client import connect
from tests.integration.observing import eventually
from tests.integration.own_engine import IMAGE, OwnEngine, need_loop_devices
from tests.servers.gamebox_service import ServiceProcess

from .api import SMALL, Api

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]
MEMORY = SMALL["memory_bytes"]
_numbers = count()


@contextlib.contextmanager
def tenant(api: Api, service: ServiceProcess, **rules: Any) -> Iterator[tuple[str, Api]]:
    """A tenant with an admin key, deleted after the block."""
    ident = f"tenant-{next(_numbers)}"
    api.call("POST", "/tenants", {"id": ident, **rules}, status=201)
    key = api.call("POST", f"/tenants/{ident}/keys", {"scope": "admin"}, status=201)["key"]
    try:
        with Api(service, key) as made:
            yield ident, made
    finally:
        if api.http.get(f"/v1/tenants/{ident}").status_code == 200:
            api.call("DELETE", f"/tenants/{ident}", status=204)


def used(api: Api) -> dict[str, Any]:
    found: dict[str, Any] = api.call("GET", "/quota")["used"]
    return found


def test_the_operator_makes_tenants_and_their_admins_only_keys_of_their_own(api: Api, service: ServiceProcess) -> None:
    with tenant(api, service, name="Acme", quota={"sandboxes": 2}) as (ident, other):
        made = api.call("GET", f"/tenants/{ident}")
        assert (made["name"], made["state"], made["set"]) == ("Acme", "active", {"ceiling": {}, "quota": {"sandboxes": 2}})
        assert (made["quota"]["sandboxes"], made["quota"]["creations_waiting"]) == (2, 64)
        assert ident in [each["id"] for each in api.call("GET", "/tenants")["items"]]
        changed = api.call("PATCH", f"/tenants/{ident}", {"name": "New", "quota": {"memory_bytes": None}})
        assert (changed["name"], changed["set"]["quota"], changed["quota"]["memory_bytes"]) == ("New", {"memory_bytes": None}, None)
        assert changed["quota"]["sandboxes"] >= 2  # a share of the host
        assert api.call("POST", "/tenants", {"id": ident}, status=409)["code"] == "tenant_exists"
        for path, body in (("/tenants", {"id": "mine"}), (f"/tenants/{ident}/keys", {})):
            assert other.call("POST", path, body, status=403)["code"] == "forbidden"
        assert other.call("PATCH", f"/tenants/{ident}", {"quota": {}}, status=403)["code"] == "forbidden"
        mine = other.call("POST", "/keys", {"scope": "read"}, status=201)
        assert mine["id"] in [each["id"] for each in api.call("GET", f"/tenants/{ident}/keys")["items"]]
        api.call("DELETE", f"/tenants/{ident}/keys/{mine['id']}", status=204)
        with Api(service, mine["key"]) as revoked:
            revoked.call("GET", "/whoami", status=401)
    assert api.call("GET", f"/tenants/{ident}", status=404)["code"] == "tenant_not_found"


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({"id": "UPPER"}, "id is"),
        ({"id": "a", "quota": {"sandboxes": -1}}, "quota.sandboxes"),
        ({"id": "a", "quota": {"boxes": 1}}, "quota.boxes"),
        ({"id": "a", "ceiling": {"network": "bridge"}}, "ceiling.network"),
        ({"id": "a", "ceiling": {"hosts": ["http://example.com"]}}, "ceiling.hosts"),
    ],
)
def test_what_a_tenant_cannot_be_is_named(api: Api, body: dict[str, Any], detail: str) -> None:
    problem = api.call("POST", "/tenants", body, status=422)
    assert (problem["code"], detail in problem["detail"]) == ("invalid_body", True), problem["detail"]


def test_deleting_a_tenant_ends_its_sandboxes_and_keys(api: Api, service: ServiceProcess, engine: OwnEngine) -> None:
    before = engine.containers()
    with tenant(api, service) as (ident, other):
        first = other.create(image=IMAGE)
        other.create(image=IMAGE)
        with other.events("/events", after=0, method="GET") as events:
            assert next(events).data["sandbox_id"] == first
            api.call("DELETE", f"/tenants/{ident}", status=204)
            list(events)
        assert other.call("GET", "/sandboxes", status=401)["code"] == "unauthorized"
    assert engine.containers() == before
    assert api.call("DELETE", "/tenants/default", status=409)["code"] == "wrong_state"


def test_a_quota_is_reserved_and_released_and_never_leaks(api: Api, service: ServiceProcess, engine: OwnEngine) -> None:
    quota = {"sandboxes": 2, "memory_bytes": 3 * MEMORY, "cpus": 3}
    with tenant(api, service, quota=quota) as (ident, other):
        body = {"image": IMAGE, "limits": {**SMALL, "cpus": 2}}
        answer = other.http.post("/v1/sandboxes", json=body)
        first = answer.json()["id"]
        assert answer.headers["gamebox-quota"].startswith(f'"sandboxes";q=2;r=1, "memory_bytes";q={3 * MEMORY};r={2 * MEMORY}')
        assert answer.headers["ratelimit-policy"] == '"requests";q=60000;w=60, "creates";q=600;w=60'
        assert answer.headers["ratelimit"].startswith('"requests";r=')
        assert (used(other)["sandboxes"], used(other)["cpus"], used(other)["memory_bytes"]) == (1, 2, MEMORY)

        problem = other.call("POST", "/sandboxes", body, status=429)
        assert (problem["code"], problem["quota"], problem["limit"], problem["used"]) == ("quota_exceeded", "cpus", 3, 2)
        large = {"image": IMAGE, "limits": {"memory_bytes": 4 * MEMORY}}
        assert other.call("POST", "/sandboxes", large, status=403)["quota"] == "memory_bytes"
        # What fails gives everything back.
        other.call("POST", "/sandboxes", {**body, "image": "gamebox/none-such", "limits": {**SMALL, "cpus": 1}}, status=422)
        fork = {"count": 1, "checkpoint": "none"}
        api.call("PATCH", f"/tenants/{ident}", {"quota": {**quota, "cpus": 4}})
        assert other.call("POST", f"/sandboxes/{first}/fork", fork, status=404)["code"] == "checkpoint_not_found"
        assert other.call("POST", f"/sandboxes/{first}/fork", {"count": 2}, status=429)["quota"] == "sandboxes"
        assert other.call("POST", f"/sandboxes/{first}/fork", {"count": 3}, status=403)["quota"] == "sandboxes"
        assert used(other)["sandboxes"] == 1
        # A paused one gives back its processors, and asks for them when it is resumed.
        api.call("PATCH", f"/tenants/{ident}", {"quota": quota})
        other.call("POST", f"/sandboxes/{first}/pause")
        others = set(engine.containers())
        second = str(other.call("POST", "/sandboxes", body, status=201)["id"])
        assert other.call("POST", f"/sandboxes/{first}/resume", status=429)["quota"] == "cpus"
        assert other.state(first) == "paused"
        # One that is lost is released when nothing of it is left.
        (container,) = set(engine.containers()) - others
        connect().api.remove_container(container.removeprefix("/"), force=True)
        assert eventually(lambda: other.state(second) == "lost", 30)
        assert eventually(lambda: used(other)["sandboxes"] == 1, 30)
        assert other.call("POST", f"/sandboxes/{first}/resume")["state"] == "running"
        other.call("DELETE", f"/sandboxes/{first}", status=204)
        assert {name: used(other)[name] for name in ("sandboxes", "memory_bytes", "cpus", "disk_bytes")} == {
            "sandboxes": 0, "memory_bytes": 0, "cpus": 0, "disk_bytes": 0,
        }  # fmt: skip


def test_what_a_sandbox_has_written_of_its_disk_is_seen_on_the_host(api: Api, service: ServiceProcess) -> None:
    need_loop_devices()
    ident = api.create(image=IMAGE)
    with contextlib.closing(sqlite3.connect(f"file:{service.folder}/service.db?mode=ro", uri=True)) as store:
        (name,) = store.execute("SELECT ident FROM sandboxes WHERE id = ?", (ident,)).fetchone()
    before = written_bytes(connect(), {name})
    assert api.run(ident, "head -c 41943040 /dev/zero >big")["result"]["exit_code"] == 0
    after = written_bytes(connect(), {name, "another"})
    assert 40 << 20 <= after - before < 60 << 20
    assert written_bytes(connect(), {"another"}) == 0
    api.call("DELETE", f"/sandboxes/{ident}", status=204)


def test_of_two_creations_one_gets_the_last_place_and_asking_again_takes_none(api: Api, service: ServiceProcess) -> None:
    with tenant(api, service, quota={"sandboxes": 1}) as (_, other), ThreadPoolExecutor(4) as pool:
        def create(n: int) -> httpx.Response:
            headers = {"Idempotency-Key": f"place-{n}"}
            return other.http.post("/v1/sandboxes", json={"image": IMAGE, "limits": SMALL}, headers=headers)

        answers = list(pool.map(create, range(4)))
        assert sorted(each.status_code for each in answers) == [201, 429, 429, 429]
        (made,) = [n for n, each in enumerate(answers) if each.status_code == 201]
        assert create(made).json()["id"] == answers[made].json()["id"]
        other.call("DELETE", f"/sandboxes/{answers[made].json()['id']}", status=204)


def test_requests_and_creations_a_minute_and_at_once(api: Api, service: ServiceProcess) -> None:
    with tenant(api, service, quota={"requests_per_minute": 5, "creates_per_minute": 1}) as (ident, other):
        assert other.call("POST", "/sandboxes", {"image": "gamebox/none-such"}, status=422)["code"] == "image_not_found"
        problem = other.call("POST", "/sandboxes", {"image": "gamebox/none-such"}, status=429)
        assert problem["quota"] == "creates_per_minute"
        for _ in range(3):
            last = other.http.get("/v1/whoami")
        assert (last.status_code, last.headers["x-ratelimit-remaining"], last.headers["x-ratelimit-limit"]) == (200, "0", "5")
        refused = other.http.get("/v1/whoami")
        assert (refused.status_code, refused.json()["quota"], refused.json()["retryable"]) == (429, "requests_per_minute", True)
        assert 1 <= int(refused.headers["retry-after"]) <= 12
        api.call("PATCH", f"/tenants/{ident}", {"quota": {"requests_under_way": 1}})
        with other.events("/events", after=0, method="GET"):
            assert other.http.get("/v1/whoami").json()["quota"] == "requests_under_way"
        assert eventually(lambda: other.http.get("/v1/whoami").status_code == 200)


def test_bytes_that_were_transferred_count_in_both_directions(api: Api, service: ServiceProcess) -> None:
    with tenant(api, service) as (ident, other):
        sandbox = other.create(image=IMAGE)
        api.call("PATCH", f"/tenants/{ident}", {"quota": {"transfer_bytes_per_day": 1 << 20}})
        path = f"/v1/sandboxes/{sandbox}/files?path=data"
        assert other.http.put(path, content=bytes(600_000)).json()["tool_executed"] is True
        assert 600_000 < used(other)["transfer_bytes_per_day"] < 610_000
        with pytest.raises(httpx.RemoteProtocolError):  # the answer had begun
            other.http.get(path)
        problem = other.http.get("/v1/whoami")
        assert (problem.status_code, problem.json()["quota"]) == (429, "transfer_bytes_per_day")
        api.call("PATCH", f"/tenants/{ident}", {"quota": {"transfer_bytes_per_day": 2 << 20}})
        too_much = other.http.put(path, content=iter([bytes(100_000)] * 12))
        assert (too_much.status_code, too_much.json()["code"]) == (429, "quota_exceeded")


def test_checkpoints_have_a_quota_of_all_sandboxes_together(api: Api, service: ServiceProcess) -> None:
    with tenant(api, service, quota={"checkpoint_bytes": 200_000}) as (_, other):
        first, second = other.create(image=IMAGE), other.create(image=IMAGE)
        for sandbox in (first, second):
            other.run(sandbox, "head -c 120000 /dev/urandom > data")
        assert other.call("POST", f"/sandboxes/{first}/checkpoint", {"name": "a"})["tool_executed"] is True
        assert 120_000 <= used(other)["checkpoint_bytes"] < 200_000
        refused = other.call("POST", f"/sandboxes/{second}/checkpoint", {"name": "b"})
        assert (refused["code"], "tenant" in refused["error"]) == ("store_full", True)
        other.call("DELETE", f"/sandboxes/{first}", status=204)
        assert used(other)["checkpoint_bytes"] == 0
        assert other.call("POST", f"/sandboxes/{second}/checkpoint", {"name": "b"})["tool_executed"] is True


def test_a_ceiling_that_is_made_lower_holds_for_what_is_there(api: Api, service: ServiceProcess) -> None:
    images = {"images": [IMAGE, "gamebox/*"]}
    with tenant(api, service, ceiling=images) as (ident, other):
        network = {"mode": "allow", "rules": ["a.example.com", "example.org"]}
        sandbox = other.create(image=IMAGE, network=network, time_to_live_seconds=6000)
        low = {**images, "network": "named", "hosts": ["*.example.com"], "most_time_to_live_seconds": 100, "largest": {"cpus": 1}}
        api.call("PATCH", f"/tenants/{ident}", {"ceiling": low})
        found = other.call("GET", f"/sandboxes/{sandbox}")
        assert (found["network"]["rules"], found["time_to_live_seconds"]) == (["a.example.com"], 100)
        assert "example.org" not in found["description"]["network"]
        forbidden = "forbidden_by_operator"
        for change in ({"network": network}, {"time_to_live_seconds": 101}):
            assert other.call("PATCH", f"/sandboxes/{sandbox}", change, status=403)["code"] == forbidden
        (fork,) = other.call("POST", f"/sandboxes/{sandbox}/fork", {}, status=201)["items"]
        assert (fork["limits"]["cpus"], fork["time_to_live_seconds"]) == (1, 100)
        other.call("POST", f"/sandboxes/{sandbox}/pause")
        assert "limits.cpus" in other.call("POST", f"/sandboxes/{sandbox}/resume", status=403)["detail"]
        api.call("PATCH", f"/tenants/{ident}", {"ceiling": {"images": ["gamebox/*"], "network": "none"}})
        assert other.call("POST", f"/sandboxes/{fork['id']}/fork", {}, status=403)["code"] == forbidden
        assert other.call("GET", f"/sandboxes/{fork['id']}")["network"]["mode"] == "none"
        assert other.call("GET", "/quota")["ceiling"]["network"] == "none"
        assert other.call("POST", "/sandboxes", {"image": IMAGE}, status=403)["code"] == forbidden


def test_a_killed_service_knows_what_tenants_have_and_goes_on_deleting_them(place: Path, tmp_path: Path, engine: OwnEngine) -> None:
    before = engine.containers()
    service = ServiceProcess(tmp_path / "data", "--stop-all").start()
    try:
        with Api(service) as api, tenant(api, service, quota={"sandboxes": 3}) as (ident, other):
            running, paused = other.create(image=IMAGE), other.create(image=IMAGE)
            other.call("POST", f"/sandboxes/{paused}/pause")
            other.call("POST", f"/sandboxes/{running}/checkpoint", {"name": "kept"})
            with ThreadPoolExecutor(1) as pool:
                half = pool.submit(other.http.post, "/v1/sandboxes", json={"image": IMAGE, "limits": SMALL})
                assert eventually(lambda: used(other)["sandboxes"] == 3)
                known = used(other)
                service.kill()
                with contextlib.suppress(httpx.HTTPError):
                    half.result()
            service.start()
            half_made = {"state": "creating,deleting"}
            assert eventually(lambda: not other.call("GET", "/sandboxes", params=half_made)["items"], 30)
            items = other.call("GET", "/sandboxes", params={"state": "running,paused"})["items"]
            assert used(other)["sandboxes"] == len(items)
            now = used(other)
            assert now["checkpoint_bytes"] == known["checkpoint_bytes"] > 0
            assert now["memory_bytes"] == len(items) * MEMORY
            assert now["cpus"] == 2.0 * (len(items) - 1), "the paused one has none"
            with ThreadPoolExecutor(1) as pool:
                gone = pool.submit(api.http.delete, f"/v1/tenants/{ident}")
                assert eventually(lambda: other.http.get("/v1/whoami").status_code == 401)
                service.kill()
                with contextlib.suppress(httpx.HTTPError):
                    gone.result()
            service.start()
            assert eventually(lambda: api.http.get(f"/v1/tenants/{ident}").status_code == 404, 30)
            assert eventually(lambda: engine.containers() == before)
    finally:
        service.stop()
