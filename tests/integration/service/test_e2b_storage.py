"""What outlives sandboxes on the wire of E2B: snapshots, forks, pauses without memory, volumes; whose it is, what a kill leaves."""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sandbox.docker.container.disks.volumes import FILES, MOUNTED
from sandbox.docker.engine.client import connect
from sandbox.docker.images.snapshots import REPOSITORY
from tests.integration.observing import eventually
from tests.servers.gamebox_service import ServiceProcess

from .api import SMALL, Api
from .test_e2b import Client

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]

ROOT = {"Authorization": f"Basic {base64.b64encode(b'root:').decode()}"}


# While there is a file "held" beside the service's data, a snapshot whose image is made gets no further.
HELD = """
import os, sys, time
from sandbox.docker.images import snapshots
commit = snapshots.commit
def held(*args):
    made = commit(*args)
    while os.path.exists({!r}):
        time.sleep(0.01)
    return made
snapshots.commit = held
from agent.cli.app import main
main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def service(place: Path) -> Iterator[ServiceProcess]:
    """A service whose snapshots a test can hold up."""
    made = ServiceProcess(place / "data", "--stop-all", program=HELD.format(str(place / "held"))).start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def first(service: ServiceProcess, api: Api) -> Iterator[Client]:
    """A sandbox with files in its home and in the system; nothing is left on the engine after the tests."""
    tenant = api.call("GET", "/whoami")["tenant"]
    api.call("PATCH", f"/tenants/{tenant}", {"ceiling": {"largest": {"memory_bytes": SMALL["memory_bytes"]}}})
    with httpx.Client(base_url=service.url, timeout=60, trust_env=False) as http:
        made = _create(Client(http, service.key, {}))
        made.run("echo mine > notes; chmod 600 notes; ln -s notes link")
        assert made.run("echo all > /opt-file", headers=ROOT)[2]["exitCode"] == 0
        yield made
        for each in made.api("GET", "/v2/sandboxes").json():
            made.api("DELETE", f"/sandboxes/{each['sandboxID']}")
        for each in made.api("GET", "/snapshots").json():
            made.api("DELETE", f"/templates/{each['snapshotID']}")
        assert eventually(lambda: not _images()), "the images are gone"
        assert _on_engine() == [], "nothing is left of a volume that was deleted"


def test_a_snapshot_holds_home_and_system(first: Client) -> None:
    answer = first.api("POST", f"/sandboxes/{first.id}/snapshots", {"memory": True})
    assert answer.status_code == 400
    assert "files and no memory" in answer.json()["message"]
    assert first.api("POST", f"/sandboxes/{first.id}/snapshots", {"name": "../x"}).status_code == 400
    assert first.api("POST", f"/sandboxes/{first.id}/snapshots", {"name": "base"}).status_code == 400
    unnamed = _snapshot(first)
    named = _snapshot(first, name="app:v2")
    assert (unnamed["names"], named) == ([], {"snapshotID": "app:v2", "names": ["app:v2"]})

    new = _create(first, templateID="app:v2")
    assert new.run("cat notes link /opt-file; stat -c %a notes")[0] == b"mine\nmine\nall\n600\n"
    assert first.api("GET", f"/sandboxes/{new.id}").json()["templateID"] == "app:v2"
    new.run("echo other > notes")
    assert first.run("cat notes")[0] == b"mine\n"

    def listed(**query: Any) -> list[str]:
        return [each["snapshotID"] for each in first.api("GET", "/snapshots", params=query).json()]

    assert listed() == ["app:v2", unnamed["snapshotID"]]
    assert listed(name="app") == listed(name="app:v2") == ["app:v2"]
    assert listed(name="app:v1") == listed(sandboxID=new.id) == []
    page = first.api("GET", "/snapshots", params={"limit": 1})
    assert listed(nextToken=page.headers["X-Next-Token"]) == [unnamed["snapshotID"]]
    assert first.api("DELETE", f"/templates/{unnamed['snapshotID']}").status_code == 204
    assert first.api("DELETE", f"/templates/{unnamed['snapshotID']}").status_code == 404
    assert first.api("POST", "/v2/sandboxes", {"templateID": unnamed["snapshotID"]}).status_code == 404

    image = f"{REPOSITORY}:{_images()[0]}"
    answer = first.http.post("/v1/sandboxes", headers={"Authorization": f"Bearer {first.key}"}, json={"image": image})
    assert answer.status_code == 403, "images of snapshots are for those who have the snapshot"


def test_they_are_a_tenants_own_and_count(first: Client, api: Api, service: ServiceProcess) -> None:
    api.call("POST", "/tenants", {"id": "others", "quota": {"checkpoint_bytes": 10}}, status=201)
    key = api.call("POST", "/tenants/others/keys", {"scope": "manage"}, status=201)["key"]
    other = Client(first.http, key, {})
    _snapshot(first, name="app:v2")
    assert other.api("GET", "/snapshots").json() == []
    assert other.api("POST", "/v2/sandboxes", {"templateID": "app:v2"}).status_code == 404
    assert other.api("DELETE", "/templates/app:v2").status_code == 404
    theirs = _create(other)
    theirs.run("echo 12345678901 > notes")
    answer = theirs.api("POST", f"/sandboxes/{theirs.id}/snapshots", {})
    assert answer.status_code == 403, answer.text
    assert theirs.api("POST", f"/sandboxes/{theirs.id}/pause", {"memory": False}).status_code == 403
    assert theirs.run("cat notes")[0] == b"12345678901\n", "it runs on"
    before = api.call("GET", "/quota")["used"]["checkpoint_bytes"]
    assert before > 0
    api.call("DELETE", "/tenants/others", status=204)


def test_forks(first: Client, api: Api) -> None:
    assert first.api("POST", f"/sandboxes/{first.id}/fork", {"count": 21}).status_code == 400
    assert first.api("POST", "/sandboxes/none/fork", {}).status_code == 404
    tenant, used = api.call("GET", "/whoami")["tenant"], api.call("GET", "/quota")["used"]["sandboxes"]
    api.call("PATCH", f"/tenants/{tenant}", {"quota": {"sandboxes": used + 1}})
    answer = first.api("POST", f"/sandboxes/{first.id}/fork", {"count": 2, "timeout": 60})
    api.call("PATCH", f"/tenants/{tenant}", {"quota": {}})
    assert answer.status_code == 201, answer.text
    (made,) = [each["sandbox"] for each in answer.json() if "sandbox" in each]
    (error,) = [each["error"] for each in answer.json() if "error" in each]
    assert error["code"] == 429
    fork = Client(first.http, first.key, made)
    assert fork.run("cat notes /opt-file; echo $COLOUR")[0] == b"mine\nall\nred\n"
    assert first.api("DELETE", f"/sandboxes/{fork.id}").status_code == 204
    assert first.api("POST", f"/sandboxes/{fork.id}/fork", {}).status_code == 404


def test_several_sandboxes_share_one(first: Client) -> None:
    for name in ("", "../x", "a/b", "x" * 129):
        assert first.api("POST", "/volumes", {"name": name}).status_code == 400
    volume = first.api("POST", "/volumes", {"name": "data"}).json()
    assert first.api("POST", "/volumes", {"name": "data"}).status_code == 409
    assert first.api("GET", "/volumes").json() == [{"volumeID": volume["volumeID"], "name": "data"}]
    assert first.api("GET", f"/volumes/{volume['volumeID']}").json() == volume
    for path in ("/", "/proc/x", "/workspace", "/.gamebox/x", "/home", "data", "/mnt/../etc", "/etc", "/mnt/a\nb", "/tmp/x"):
        answer = first.api("POST", "/v2/sandboxes", _asked(volumeMounts=[{"name": "data", "path": path}]))
        assert answer.status_code == 400, path
    assert first.api("POST", "/v2/sandboxes", _asked(volumeMounts=[{"name": "none", "path": "/mnt"}])).status_code == 400

    mounts = [{"name": "data", "path": "/mnt/data"}]
    one, two = (_create(first, volumeMounts=mounts) for _ in range(2))
    assert first.api("GET", f"/sandboxes/{one.id}").json()["volumeMounts"] == mounts
    flags = one.run("grep ' /mnt/data ' /proc/mounts")[0].split()[3].split(b",")
    assert {b"rw", b"nosuid", b"nodev"} <= {*flags}
    one.run("echo one > /mnt/data/a; ln -s /etc /mnt/data/out; ln -s /etc/passwd /mnt/data/users")
    assert two.run("cat /mnt/data/a")[0] == b"one\n"
    answer = first.api("DELETE", f"/volumes/{volume['volumeID']}")
    assert (answer.status_code, answer.json()["code"]) == (409, 409)

    content = Content(first, volume)
    assert content.ask("GET", "file", "a").content == b"one\n"
    assert content.ask("GET", "file", "/none").status_code == 404
    for path in ("/out/passwd", "/users", "/../../etc/passwd"):
        assert content.ask("GET", "file", path).status_code in (403, 404), "links that lead out are not followed"
    assert content.ask("PUT", "file", "/out/new", content=b"x").status_code in (403, 409)
    assert content.ask("PUT", "file", "/d/b", content=b"two").status_code == 404
    made = content.ask("PUT", "file", "/d/b", content=b"two", force="true", mode="384")
    assert (made.status_code, made.json()["mode"], made.json()["uid"], made.json()["size"]) == (201, 0o600, 1000, 3)
    assert two.run("cat /mnt/data/d/b")[0] == b"two"
    assert content.ask("PUT", "file", "/d/b", content=b"three").status_code == 409
    assert content.ask("PUT", "file", "/d", content=b"three", force="true").status_code == 409
    assert content.ask("POST", "dir", "/d").status_code == 409
    assert content.ask("PATCH", "path", "/d/b", json={"uid": 7, "mode": 0o640}).json()["uid"] == 7
    listed = {each["path"]: each["type"] for each in content.ask("GET", "dir", "/", depth="2").json()}
    assert listed == {"/a": "file", "/d": "directory", "/d/b": "file", "/out": "symlink", "/users": "symlink"}
    assert [content.ask("DELETE", "path", path).status_code for path in ("/d", "/d", "/", "/out")] == [204, 404, 404, 204]
    assert one.run("cat /etc/hosts >/dev/null; ls /mnt/data")[0] == b"a\nusers\n"

    for token, status in (("gbv_x_y_" + "a" * 43, 401), (volume["token"][:-1] + "_", 401), (first.key, 401)):
        answer = Content(first, {**volume, "token": token}).ask("GET", "path", "/")
        assert (answer.status_code, answer.json()["code"]) == (status, str(status))

    for each in (one, two):
        assert first.api("DELETE", f"/sandboxes/{each.id}").status_code == 204
    assert first.api("DELETE", f"/volumes/{volume['volumeID']}").status_code == 204
    assert first.api("DELETE", f"/volumes/{volume['volumeID']}").status_code == 404
    assert content.ask("GET", "path", "/").status_code == 404


def test_volumes_are_a_tenants_own_and_count(first: Client, api: Api) -> None:
    api.call("POST", "/tenants", {"id": "others", "quota": {"volumes": 1, "volume_bytes": 10}}, status=201)
    key = api.call("POST", "/tenants/others/keys", {"scope": "manage"}, status=201)["key"]
    other = Client(first.http, key, {})
    mine = first.api("POST", "/volumes", {"name": "data"}).json()
    theirs = other.api("POST", "/volumes", {"name": "data"}).json()
    assert [each["volumeID"] for each in other.api("GET", "/volumes").json()] == [theirs["volumeID"]]
    assert other.api("GET", f"/volumes/{mine['volumeID']}").status_code == 404
    assert other.api("DELETE", f"/volumes/{mine['volumeID']}").status_code == 404
    assert Content(other, {**mine, "token": theirs["token"]}).ask("GET", "path", "/").status_code == 401
    assert other.api("POST", "/volumes", {"name": "more"}).status_code == 429
    content = Content(other, theirs)
    written = content.ask("PUT", "file", "/a", content=b"12345678901")
    assert written.status_code == 201, written.text
    assert "disk_usage" not in _programs(theirs), "the service counts: the guest would end the command that sets the owner"
    assert eventually(lambda: content.ask("PUT", "file", "/b", content=b"1", force="true").status_code == 429)
    body = _asked(volumeMounts=[{"name": "data", "path": "/mnt/data"}])
    assert other.api("POST", "/v2/sandboxes", body).status_code == 429
    api.call("DELETE", "/tenants/others", status=204)
    assert _on_engine(theirs["volumeID"]) == []
    assert first.api("DELETE", f"/volumes/{mine['volumeID']}").status_code == 204


def test_a_pause_without_memory_survives_a_kill_which_leaves_nothing_half(first: Client, service: ServiceProcess) -> None:
    made = _create(first, autoPause=True, autoPauseMemory=False)
    made.run("echo stays > notes")
    next(made.start("sleep 600"))
    assert first.api("POST", f"/sandboxes/{made.id}/pause", {"memory": False}).status_code == 204
    found = first.api("GET", f"/sandboxes/{made.id}").json()
    assert (found["state"], found["pauseMode"]) == ("paused", "filesystem")
    assert first.api("POST", f"/sandboxes/{made.id}/pause", {"memory": False}).status_code == 409
    assert made.envd("GET", "/health").status_code == 502
    containers = len(connect().containers.list())

    kept = _snapshot(first)["snapshotID"].partition(":")[0]
    files, images = {*os.listdir(service.folder / "snapshots")}, {*_images()}
    held = service.folder.parent / "held"
    asking = threading.Thread(target=_ask, args=(first,))
    held.touch()
    try:
        asking.start()
        assert eventually(lambda: {*_images()} > images), "a snapshot is being made"
        assert {*os.listdir(service.folder / "snapshots")} > files
        service.kill()
    finally:
        held.unlink()
    asking.join()
    service.start()
    assert {*os.listdir(service.folder / "snapshots")} == files, "nothing of it is left"
    assert eventually(lambda: {*_images()} <= images), "nor of its image"
    assert kept in _images()

    answer = first.api("POST", f"/v2/sandboxes/{made.id}/connect", {"timeout": 60})
    assert answer.status_code == 201, answer.text
    assert len(connect().containers.list()) == containers + 1
    assert answer.json()["envdAccessToken"] == made.made["envdAccessToken"]
    assert made.run("cat notes; ps | grep -c 'sleep 60[0]'")[0].split()[:1] == [b"stays"]
    assert made.call("process.Process/List").get("processes", []) == []

    assert first.api("POST", f"/sandboxes/{made.id}/timeout", {"timeout": 0}).status_code == 204
    assert eventually(lambda: first.api("GET", f"/sandboxes/{made.id}").json()["state"] == "paused"), "it is paused at its end"
    assert first.api("GET", f"/sandboxes/{made.id}").json()["pauseMode"] == "filesystem"
    assert first.api("DELETE", f"/sandboxes/{made.id}").status_code == 204


def _ask(client: Client) -> None:
    with pytest.raises(httpx.HTTPError):
        client.api("POST", f"/sandboxes/{client.id}/snapshots", {})


def _create(client: Client, **body: Any) -> Client:
    answer = client.api("POST", "/v2/sandboxes", _asked(envVars={"COLOUR": "red"}, **body))
    assert answer.status_code == 201, answer.text
    return Client(client.http, client.key, answer.json())


def _snapshot(client: Client, **body: Any) -> dict[str, Any]:
    answer = client.api("POST", f"/sandboxes/{client.id}/snapshots", body)
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def _programs(volume: dict[str, Any]) -> str:
    """Return the command lines in the sandbox that a volume's content is written through."""
    mounted = MOUNTED + volume["volumeID"]
    (found,) = [
        each for each in connect().containers.list() if any(mount.get("Name") == mounted for mount in each.attrs["Mounts"])
    ]
    return "\n".join(" ".join(row) for row in found.top(ps_args="-ww -eo pid,args")["Processes"])


def _images() -> list[str]:
    found = connect().api.images(REPOSITORY)
    return [str(tag).rpartition(":")[2] for each in found for tag in each.get("RepoTags") or ()]


class Content:
    """Requests for the content of a volume."""

    def __init__(self, client: Client, volume: dict[str, Any]) -> None:
        self.http, self.volume = client.http, volume

    def ask(
        self, method: str, what: str, path: str, json: Any = None, content: bytes | None = None, **query: str
    ) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.volume['token']}"}
        address = f"/volumecontent/{self.volume['volumeID']}/{what}"
        asked = {"path": path, **query}
        return self.http.request(method, address, params=asked, headers=headers, content=_bytes(json, content))


def _bytes(data: Any, content: bytes | None) -> bytes | None:
    return content if data is None else json.dumps(data).encode()


def _asked(**body: Any) -> dict[str, Any]:
    return {"templateID": "base", "timeout": 300, **body}


def _on_engine(part: str = "") -> list[str]:
    """The volumes with ``part`` in their names that are left in the end."""

    def names() -> list[str]:
        found = connect().api.volumes().get("Volumes") or []
        return [each["Name"] for each in found if each["Name"].startswith((FILES, MOUNTED)) and part in each["Name"]]

    eventually(lambda: not names(), 60)
    return names()
