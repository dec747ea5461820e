"""Templates over the wire of E2B: built in sandboxes of the tenant, tagged, started from, and nobody else's."""

from __future__ import annotations

import hashlib
import io
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.integration.observing import eventually
from tests.servers.gamebox_service import ServiceProcess

from .api import SMALL, Api

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]
MEMORY_MB = 128
QUOTA = {"templates": 2, "template_upload_bytes": 10_000, "template_builds": 1}


@dataclass
class Tenant:
    """A tenant's requests, as clients of E2B send them."""

    http: httpx.Client
    name: str
    key: str

    def ask(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        answer = self.http.request(method, path, headers={"X-API-KEY": self.key}, json=body)
        assert answer.status_code == status, (answer.status_code, answer.text[:1000])
        return answer.json() if answer.content else None

    def request(self, name: str, **fields: Any) -> tuple[str, str]:
        made = self.ask("POST", "/v3/templates", {"name": name, "cpuCount": 1, "memoryMB": MEMORY_MB, **fields}, 202)
        return made["templateID"], made["buildID"]

    def start(self, ids: tuple[str, str], *steps: dict[str, Any], status: int = 202, **fields: Any) -> Any:
        body = {"fromTemplate": "base", "steps": steps, **fields}
        return self.ask("POST", f"/v2/templates/{ids[0]}/builds/{ids[1]}", body, status)

    def status(self, ids: tuple[str, str], query: str = "") -> Any:
        return self.ask("GET", f"/templates/{ids[0]}/builds/{ids[1]}/status{query}")

    def ended(self, ids: tuple[str, str]) -> Any:
        until = time.monotonic() + 300
        while (found := self.status(ids))["status"] == "building":
            assert time.monotonic() < until, found
            time.sleep(0.1)
        return found


def run(command: str) -> dict[str, Any]:
    return {"type": "RUN", "args": [command]}


@pytest.fixture(scope="module")
def tenants(service: ServiceProcess, api: Api) -> Iterator[list[Tenant]]:
    """Two tenants; nothing is left of them."""
    with httpx.Client(base_url=service.url, timeout=120, trust_env=False) as http:
        made = []
        for name in ("builders", "others"):
            ceiling = {"largest": {"memory_bytes": 2 * SMALL["memory_bytes"]}}
            api.call("POST", "/tenants", {"id": name, "quota": QUOTA, "ceiling": ceiling}, status=201)
            made.append(Tenant(http, name, api.call("POST", f"/tenants/{name}/keys", {}, status=201)["key"]))
        yield made
        for each in made:
            api.call("DELETE", f"/tenants/{each.name}", status=204)


def archive(**files: str) -> tuple[str, bytes]:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as made:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            made.addfile(member, io.BytesIO(text.encode()))
    data = target.getvalue().rstrip(b"\0") + bytes(1024)
    return hashlib.sha256(data).hexdigest(), data


def test_a_template_is_built_and_started_and_is_nobody_elses(tenants: list[Tenant]) -> None:
    owner, other = tenants
    ids = owner.request("App:v1")
    digest, data = archive(greeting="hello\n")
    place = owner.ask("GET", f"/templates/{ids[0]}/files/{digest}", status=201)
    assert place["present"] is False
    copy = {"type": "COPY", "args": ["greeting", "/srv/", "", ""], "filesHash": digest}
    assert "nothing was uploaded" in owner.start(ids, copy, status=400)["message"]

    # The address is the key: it takes this archive of this tenant alone, whole, and within the quota.
    assert owner.http.put(place["url"][:-1] + "!", content=data).status_code == 401
    assert owner.http.put(place["url"].replace(digest, "0" * 64), content=data).status_code == 401
    assert owner.http.put(place["url"], content=b"no tar").status_code == 400
    assert owner.http.put(place["url"], content=data + bytes(10_000)).json()["error_code"] == "quota_exceeded"
    assert owner.ask("GET", f"/templates/{ids[0]}/files/{digest}", status=201)["present"] is False
    assert owner.http.put(place["url"], content=data).status_code == 200
    assert owner.http.put(place["url"], content=data).status_code == 200, "again"
    assert owner.ask("GET", f"/templates/{ids[0]}/files/{digest}", status=201)["present"] is True

    steps = [copy, {"type": "ENV", "args": ["COLOUR", "red"]}, run("cat /srv/greeting; echo $COLOUR > /srv/colour")]
    owner.start(ids, *steps, {"type": "WORKDIR", "args": ["/srv"]}, startCmd="touch ~/started", readyCmd="test -f ~/started")
    assert owner.ended(ids)["status"] == "ready", owner.status(ids)
    messages = [each["message"] for each in owner.status(ids)["logEntries"]]
    assert "hello" in messages
    assert owner.status(ids, f"?logsOffset={len(messages) - 1}&limit=1")["logs"] == messages[-1:]
    assert owner.start(ids, status=409)["code"] == 409

    assert owner.ask("POST", "/templates/tags", {"target": "app:v1", "tags": ["default", "stable"]}, 201)["buildID"] == ids[1]
    owner.ask("DELETE", "/templates/tags", {"name": "app", "tags": ["stable"]}, 204)
    assert {each["tag"] for each in owner.ask("GET", f"/templates/{owner.name}%2Fapp/tags")} == {"default", "v1"}
    (listed,) = owner.ask("GET", "/templates")
    assert (listed["aliases"], listed["buildStatus"], listed["memoryMB"]) == (["app"], "ready", MEMORY_MB)

    made = owner.ask("POST", "/v2/sandboxes", {"templateID": "app", "timeout": 100}, 201)
    try:
        token = {"X-Access-Token": made["envdAccessToken"]}
        paths = ("/srv/colour", "/home/user/started")
        files = {path: owner.http.get("/files", params={"path": path}, headers=token).text for path in paths}
        assert files == {"/srv/colour": "red\n", "/home/user/started": ""}
        assert (made["templateID"], made["alias"]) == (ids[0], "app")
        image = owner.ask("GET", f"/v1/sandboxes/{made['sandboxID']}")["image"]
    finally:
        owner.ask("DELETE", f"/sandboxes/{made['sandboxID']}", status=204)

    for name in ("app", f"{owner.name}%2Fapp", ids[0]):
        assert other.ask("GET", f"/templates/aliases/{name}", status=404)["code"] == 404
        assert other.ask("DELETE", f"/templates/{name}", status=404)["code"] == 404
    for body in ({"templateID": "app"}, {"templateID": ids[0]}):
        other.ask("POST", "/v2/sandboxes", body, 404)
    answer = other.http.post("/v1/sandboxes", headers={"X-API-KEY": other.key}, json={"image": image, "limits": SMALL})
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden_by_operator")
    theirs = other.request("mine")
    other.start(theirs, fromTemplate=f"{owner.name}/app", status=404)
    other.start(theirs, fromTemplate=None, fromImage=image, status=403)
    other.start(theirs, fromTemplate=None, fromImage="python:3", status=403)
    assert owner.ask("GET", "/templates/aliases/base")["public"] is True
    owner.ask("POST", "/v3/templates", {"name": "base"}, 403)
    owner.ask("DELETE", "/templates/app", status=204)
    owner.ask("GET", "/templates/aliases/app", status=404)


def test_a_build_fails_with_its_step_and_ends_when_its_template_goes(tenants: list[Tenant]) -> None:
    owner = tenants[0]
    failing = owner.request("failing")
    owner.start(failing, run("true"), run("echo oh; exit 3"))
    found = owner.ended(failing)
    assert (found["status"], found["reason"]["step"]) == ("error", "2")
    assert found["reason"]["message"].startswith("Step 2 ")
    owner.start(owner.request("failing"), {"type": "MAGIC", "args": []}, status=400)
    long = owner.request("long")
    owner.start(long, run("sleep 600"))
    owner.start(long, run("sleep 600"), status=409)
    assert owner.start(owner.request("long"), run("true"), status=429)["error_code"] == "quota_exceeded"
    owner.ask("POST", "/v3/templates", {"name": "third"}, 429)
    eventually(lambda: any("sleep 600" in each for each in owner.status(long)["logs"]))
    owner.ask("DELETE", "/templates/long", status=204)
    owner.ask("DELETE", "/templates/failing", status=204)
    assert owner.ask("GET", "/v1/quota")["used"]["sandboxes"] == 0


def test_files_outlive_the_template_of_their_sandbox(tenants: list[Tenant]) -> None:
    """A stopped sandbox and a snapshot lost their image with the template, and could not write where the image had files."""
    owner = tenants[0]
    ids = owner.request("base-of-others")
    owner.start(ids, run("echo old > ~/kept; echo gone > ~/removed"))
    assert owner.ended(ids)["status"] == "ready", owner.status(ids)

    def new(template: str) -> tuple[str, dict[str, str]]:
        made = owner.ask("POST", "/v2/sandboxes", {"templateID": template, "timeout": 100}, 201)
        return made["sandboxID"], {"X-Access-Token": made["envdAccessToken"]}

    def read(token: dict[str, str], name: str) -> tuple[int, str]:
        answer = owner.http.get("/files", params={"path": f"/home/user/{name}"}, headers=token)
        return answer.status_code, answer.text if answer.is_success else ""

    first, token = new(ids[0])
    left = [first]
    try:
        removed = owner.http.post(
            "/filesystem.Filesystem/Remove", headers=token, json={"path": "/home/user/removed"}
        )
        assert removed.status_code == 200, removed.text
        snapshot = owner.ask("POST", f"/sandboxes/{first}/snapshots", {}, 201)["snapshotID"]
        owner.ask("POST", f"/sandboxes/{first}/pause", {"memory": False}, 204)
        owner.ask("DELETE", f"/templates/{ids[0]}", status=204)
        again = owner.ask("POST", f"/v2/sandboxes/{first}/connect", {"timeout": 100}, 201)
        second, other = new(snapshot)
        left.append(second)
        for each in ({"X-Access-Token": again["envdAccessToken"]}, other):
            assert (read(each, "kept"), read(each, "removed")[0]) == ((200, "old\n"), 404)
    finally:
        for ident in left:
            owner.ask("DELETE", f"/sandboxes/{ident}", status=204)
    owner.ask("DELETE", f"/templates/{snapshot}", status=204)
