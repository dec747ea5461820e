"""Sandboxes over HTTP: created once, listed, changed, paused, forked and ended."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.observing import eventually
from tests.integration.own_engine import IMAGE, OwnEngine
from tests.servers.gamebox_service import ServiceProcess

from .api import SMALL, Api

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]


def test_the_first_start_makes_a_folder_and_a_key_for_the_owner_alone(service: ServiceProcess, api: Api) -> None:
    assert service.folder.stat().st_mode & 0o777 == 0o700
    assert (service.folder / "admin.key").stat().st_mode & 0o777 == 0o600
    assert re.fullmatch(r"e2b_[0-9a-f]{40}", service.key)
    assert service.key.encode() not in b"".join(path.read_bytes() for path in service.folder.glob("service.db*"))
    assert api.call("GET", "/whoami")["tenant"] == "default"
    assert f"The first key is in {service.folder / 'admin.key'}" in (service.folder.parent / "service.log").read_text()


def test_health_needs_no_key_and_nothing_else_goes_without(service: ServiceProcess) -> None:
    with httpx.Client(base_url=service.url, trust_env=False) as http:
        assert http.get("/healthz").json() == {"status": "ok"}
        assert http.get("/readyz").json() == {"status": "ready"}
        for path in ("/v1/sandboxes", "/v1/whoami", "/v1/events", "/v1/keys"):
            answer = http.get(path)
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")


def test_a_sandbox_says_how_long_it_lives(api: Api) -> None:
    made = api.call("POST", "/sandboxes", {"image": IMAGE, "limits": SMALL, "metadata": {"job": "7"}}, status=201)
    ident = made["id"]
    try:
        assert re.fullmatch(r"[a-z][a-z0-9]{19}", ident)
        assert (made["state"], made["time_to_live_seconds"], made["idle_seconds"]) == ("running", 3600, 900)
        assert made["limits"]["memory_bytes"] == SMALL["memory_bytes"]
        assert made["network"] == {"mode": "none", "rules": [], "denied": [], "exempt": []}
        assert made["metadata"] == {"job": "7"}
        found = api.call("GET", f"/sandboxes/{ident}")
        assert {name: found[name] for name in made if name != "description"} == {
            name: made[name] for name in made if name != "description"
        }
        assert set(found["description"]) == {*made["description"], "left"}
    finally:
        api.call("DELETE", f"/sandboxes/{ident}", status=204)
    assert api.call("GET", f"/sandboxes/{ident}", status=404)["code"] == "sandbox_not_found"


def test_the_list_is_filtered_and_comes_in_pages(api: Api) -> None:
    made = [api.create(image=IMAGE, metadata={"batch": "a", "n": str(n)}) for n in range(3)]
    try:
        listed, cursor, pages = [], None, 0
        while pages == 0 or cursor is not None:
            query = {"limit": "2", "metadata.batch": "a", **({} if cursor is None else {"cursor": cursor})}
            page = api.call("GET", "/sandboxes", params=query)
            listed += [each["id"] for each in page["items"]]
            cursor, pages = page["next_cursor"], pages + 1
        assert (listed, pages) == (made[::-1], 2)
        one = api.call("GET", "/sandboxes", params={"metadata.batch": "a", "metadata.n": "1"})
        assert [each["id"] for each in one["items"]] == [made[1]]
        assert api.call("GET", "/sandboxes", params={"state": "paused", "metadata.batch": "a"})["items"] == []
    finally:
        for ident in made:
            api.call("DELETE", f"/sandboxes/{ident}", status=204)
    for query in ({"limit": "0"}, {"state": "asleep"}, {"cursor": "?"}):
        assert api.call("GET", "/sandboxes", params=query, status=422)["code"] == "invalid_query"


def test_the_same_idempotency_key_makes_one_sandbox(api: Api, engine: OwnEngine) -> None:
    body = {"image": IMAGE, "limits": SMALL, "metadata": {"job": "once"}}
    headers = {"Idempotency-Key": "once"}

    def create(_: int) -> httpx.Response:
        return api.http.post("/v1/sandboxes", json=body, headers=headers)

    before = len(engine.containers())
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(create, range(4)))
    made = {answer.json()["id"] for answer in answers if answer.status_code == 201}
    assert len(made) == 1
    for answer in answers:
        assert answer.status_code == 201 or answer.json()["code"] == "creation_in_progress"
    try:
        assert create(0).json()["id"] in made
        assert len(engine.containers()) == before + 1
        other = {**body, "metadata": {"job": "other"}}
        assert api.call("POST", "/sandboxes", other, headers=headers, status=422)["code"] == "idempotency_key_reused"
    finally:
        api.call("DELETE", f"/sandboxes/{made.pop()}", status=204)


def test_a_creation_that_failed_leaves_nothing_and_may_be_tried_again(api: Api, engine: OwnEngine) -> None:
    before = engine.containers()
    body = {"image": "gamebox/none-such", "limits": SMALL}
    for _ in range(2):
        problem = api.call("POST", "/sandboxes", body, headers={"Idempotency-Key": "fails"}, status=422)
        assert problem["code"] == "image_not_found"
    assert engine.containers() == before
    assert api.call("GET", "/sandboxes", params={"state": "creating"})["items"] == []


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"workspace": "/etc"}, 422, "invalid_body"),
        ({"ca_bundle": "/etc/passwd"}, 422, "invalid_body"),
        ({"keep": True}, 422, "invalid_body"),
        ({"services": [{"kind": "SideService", "name": "db", "image": "postgres"}]}, 422, "invalid_body"),
        ({"pull": True}, 422, "invalid_body"),
        ({"runtime": "runc"}, 403, "forbidden_by_operator"),
        ({"network": {"mode": "bridge"}}, 422, "invalid_body"),
        ({"network": {"mode": "allow", "rules": [{"rule": "a.example", "private": True}]}}, 422, "invalid_body"),
        ({"limits": {"lease_seconds": 1}}, 422, "invalid_body"),
        ({"limits": {"memory_bytes": 1}}, 422, "invalid_limits"),
        ({"image": "debian"}, 403, "forbidden_by_operator"),
        ({"image": "sha256:" + "0" * 64}, 403, "forbidden_by_operator"),
        ({"time_to_live_seconds": 1e9}, 403, "forbidden_by_operator"),
        ([], 400, "invalid_json"),
    ],
)  # fmt: skip
def test_what_only_a_host_may_ask_for_is_refused(api: Api, body: Any, status: int, code: str) -> None:
    assert api.call("POST", "/sandboxes", body, status=status)["code"] == code


def test_time_and_metadata_change_and_a_sandbox_ends_when_its_time_is_over(api: Api, engine: OwnEngine) -> None:
    before = len(engine.containers())
    ident = api.create(image=IMAGE, time_to_live_seconds=600)
    changed = api.call("PATCH", f"/sandboxes/{ident}", {"metadata": {"a": "b"}, "time_to_live_seconds": 1})
    assert (changed["metadata"], changed["time_to_live_seconds"]) == ({"a": "b"}, 1)
    assert eventually(lambda: api.state(ident) == "ended")
    found = api.call("GET", f"/sandboxes/{ident}")
    assert found["reason"] == "lifetime_over"
    assert found["ended_at"] is not None
    answer = api.run(ident, "true")
    assert (answer["code"], answer["reason"]) == ("sandbox_unavailable", "lifetime_over")
    assert eventually(lambda: len(engine.containers()) == before)
    api.call("DELETE", f"/sandboxes/{ident}", status=204)
    api.call("GET", f"/sandboxes/{ident}", status=404)


def test_rules_of_the_network_change(api: Api, sandbox: str) -> None:
    wanted = {"mode": "allow", "rules": ["example.com"], "denied": ["bad.example"]}
    changed = api.call("PATCH", f"/sandboxes/{sandbox}", {"network": wanted})["network"]
    assert (changed["mode"], len(changed["rules"]), len(changed["denied"])) == ("allow", 1, 1)
    assert "example.com" in api.call("GET", f"/sandboxes/{sandbox}")["description"]["network"]
    api.call("PATCH", f"/sandboxes/{sandbox}", {"network": {"mode": "none"}})
    assert "No network" in api.call("GET", f"/sandboxes/{sandbox}")["description"]["network"]


def test_nothing_runs_in_a_paused_sandbox(api: Api, sandbox: str) -> None:
    for _ in range(2):
        assert api.call("POST", f"/sandboxes/{sandbox}/pause")["state"] == "paused"
    assert api.run(sandbox, "true")["code"] == "sandbox_paused"
    for _ in range(2):
        assert api.call("POST", f"/sandboxes/{sandbox}/resume")["state"] == "running"
    assert api.run(sandbox, "echo on")["result"]["output"] == "on\n"


def test_forks_have_the_files_and_variables_and_outlive_the_first(api: Api) -> None:
    first = api.create(image=IMAGE, env={"COLOUR": "red"}, metadata={"kind": "first"})
    api.run(first, "echo text > a")
    kept = api.call("POST", f"/sandboxes/{first}/checkpoint", {"name": "before"})
    assert kept["result"]["id"] == "before"
    api.run(first, "echo other > a")
    headers = {"Idempotency-Key": "forks"}
    made = api.call("POST", f"/sandboxes/{first}/fork", {"count": 2}, headers=headers, status=201)["items"]
    again = api.call("POST", f"/sandboxes/{first}/fork", {"count": 2}, headers=headers, status=201)["items"]
    assert [each["id"] for each in again] == [each["id"] for each in made]
    body = {"checkpoint": "before", "metadata": {"kind": "third"}}
    made += api.call("POST", f"/sandboxes/{first}/fork", body, status=201)["items"]
    assert [each["metadata"]["kind"] for each in made] == ["first", "first", "third"]
    api.call("DELETE", f"/sandboxes/{first}", status=204)
    texts = [api.run(each["id"], "cat a; echo $COLOUR")["result"]["output"] for each in made]
    assert texts == ["other\nred\n", "other\nred\n", "text\nred\n"]
    for each in made:
        api.call("DELETE", f"/sandboxes/{each['id']}", status=204)


def test_a_fork_of_what_is_not_there_leaves_nothing(api: Api, sandbox: str, engine: OwnEngine) -> None:
    before = engine.containers()
    problem = api.call("POST", f"/sandboxes/{sandbox}/fork", {"count": 2, "checkpoint": "none"}, status=404)
    assert problem["code"] == "checkpoint_not_found"
    assert engine.containers() == before


def test_events_tell_what_becomes_of_a_sandbox_and_can_be_resumed(api: Api) -> None:
    ident = api.create(image=IMAGE)
    with api.events(f"/sandboxes/{ident}/events", after=0, method="GET") as events:
        first = next(events)
        assert first.data == {"sandbox_id": ident, "state": "running", "reason": None}
        assert first.id is not None
        api.call("POST", f"/sandboxes/{ident}/pause")
        assert next(events).data["state"] == "paused"
    api.call("POST", f"/sandboxes/{ident}/resume")
    api.call("DELETE", f"/sandboxes/{ident}", status=204)
    with api.events("/events", after=first.id, method="GET") as events:
        states: list[str] = []
        while not states or states[-1] != "deleted":
            found = next(events)
            if found.data["sandbox_id"] == ident:
                states.append(found.data["state"])
    assert states == ["paused", "running", "deleting", "deleted"]
    headers = {"Last-Event-ID": "999999999"}
    assert api.call("GET", "/events", headers=headers, status=410)["code"] == "events_gone"


def test_two_services_do_not_use_one_folder(service: ServiceProcess) -> None:
    second = ServiceProcess(service.folder)
    with pytest.raises(AssertionError, match="Another service uses the folder"):
        second.start()
    assert second.process is not None
    assert second.process.wait(20) != 0
    assert second.output is not None
    second.output.close()


def test_it_listens_beyond_this_host_only_with_tls_or_behind_a_proxy(place: Path) -> None:
    open_to_all = ServiceProcess(place / "open", "--host", "0.0.0.0")
    with pytest.raises(AssertionError, match="not a loopback address"):
        open_to_all.start()
    assert open_to_all.process is not None
    assert open_to_all.process.wait(20) != 0
    assert open_to_all.output is not None
    open_to_all.output.close()


def test_a_creation_that_gets_no_turn_says_so(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAMEBOX_SERVICE_ENGINE_CALLS", "1")
    monkeypatch.setenv("GAMEBOX_SERVICE_CREATE_WAIT_SECONDS", "0.02")
    crowded = ServiceProcess(tmp_path / "data", "--stop-all").start()
    try:
        with Api(crowded) as api, ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(lambda _: api.http.post("/v1/sandboxes", json={"image": IMAGE}), range(6)))
            assert {each.status_code for each in answers} == {201, 503}
            for refused in (each for each in answers if each.status_code == 503):
                assert (refused.json()["code"], refused.json()["retryable"]) == ("capacity", True)
                assert refused.headers["retry-after"]
            listed = api.call("GET", "/sandboxes")["items"]
            assert len(listed) == sum(each.status_code == 201 for each in answers)
    finally:
        crowded.stop()
