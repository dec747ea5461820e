"""Secrets of a tenant over HTTP: given, used by name in sandboxes, masked in every answer, and nowhere in the clear."""

from __future__ import annotations

import base64
import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sandbox import RemoteEnvironment
from tests.integration.observing import eventually
from tests.integration.own_engine import IMAGE, OwnEngine
from tests.servers.gamebox_service import ServiceProcess

from .api import SMALL, Api

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]

VALUE, NEXT, PLAIN = "sw0rdfish-of-tests", "marl1n-of-tests", "plain-variable-of-tests"


class Upstream(BaseHTTPRequestHandler):
    """Answers with the Authorization header that it got, as careless servers do."""

    def do_GET(self) -> None:
        body = f"you are {self.headers['Authorization']} at {self.headers['Host']}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def upstream() -> Iterator[int]:
    """The port of a server on this host's loopback, which the operator has opened to tenants."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Upstream) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def keeper(engine: OwnEngine, place: Path, tmp_path_factory: pytest.TempPathFactory, upstream: int) -> Iterator[ServiceProcess]:
    """A service that can be killed."""
    folder = tmp_path_factory.mktemp("keeper")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("GAMEBOX_SERVICE_OPEN_NETWORKS", f"127.0.0.1:{upstream}")
        made = ServiceProcess(folder / "data", "--stop-all").start()
        yield made
        if made.process is None:
            made.start()
        made.stop()


def everywhere(service: ServiceProcess) -> bytes:
    """All bytes that a service has written: its store, spilled output and log."""
    files = [path for path in service.folder.rglob("*") if path.is_file() and "checkpoints" not in path.parts]
    return b"".join(path.read_bytes() for path in [*files, service.folder.parent / "service.log"])


def test_a_secret_is_written_and_never_read(keeper: ServiceProcess) -> None:
    with Api(keeper) as api:
        made = api.call("PUT", "/secrets/first", {"value": VALUE}, status=201)
        assert (made["name"], made["version"]) == ("first", 1)
        assert api.call("PUT", "/secrets/first", {"value": VALUE})["version"] == 2
        listed = api.call("GET", "/secrets")
        assert [set(each) for each in listed["items"]] == [{"name", "created_at", "updated_at", "version"}]
        for name, body, status in (
            ("x", {"value": "short"}, 422), ("x", {"value": VALUE, "name": "y"}, 422), ("x", {"value": 7}, 422), ("x", {}, 422),
            (".x", {"value": VALUE}, 422), ("a%20b", {"value": VALUE}, 422), ("x", {"value": "x" * 70_000}, 422),
            ("x", {"value": "ü" * 40_000}, 422), ("x", {"value": "a\0bcdefgh"}, 422), ("x", {"value": "\ud800bcdefgh"}, 422),
            ("x", {"value": "a         "}, 422),
        ):  # fmt: skip
            answer = api.call("PUT", f"/secrets/{name}", body, status=status)
            assert VALUE not in json.dumps(answer)
        assert api.call("DELETE", "/secrets/none", status=404)["code"] == "secret_not_found"
        assert api.call("POST", "/sandboxes", {"secrets": {"A": "none"}}, status=422)["code"] == "secret_not_found"
        reader = api.call("POST", "/keys", {"scope": "use", "name": "u"}, status=201)["key"]
    with Api(keeper, reader) as other:
        assert other.call("PUT", "/secrets/first", {"value": NEXT}, status=403)["code"] == "forbidden"
        assert other.call("DELETE", "/secrets/first", status=403)["code"] == "forbidden"


def test_values_reach_commands_and_upstreams_and_no_answer_also_after_a_kill(keeper: ServiceProcess, upstream: int) -> None:
    body = {
        "image": IMAGE, "limits": SMALL, "env": {"PLAIN": PLAIN}, "metadata": {"job": "secret"},
        "secrets": {"TOKEN": "deploy", "RARE": {"secret": "rare", "always": False}},
        "services": [{"name": "api", "upstream": f"http://127.0.0.1:{upstream}", "paths": ["/v1/*"],
                      "headers": {"Authorization": {"secret": "deploy", "prefix": "Bearer "}}}],
    }  # fmt: skip
    proof = f'test "$TOKEN" = "{VALUE[:4]}""{VALUE[4:]}" && echo same; echo "$TOKEN-$RARE."; echo $PLAIN'
    with Api(keeper) as api:
        api.call("PUT", "/secrets/deploy", {"value": VALUE}, status=201)
        api.call("PUT", "/secrets/rare", {"value": NEXT}, status=201)
        short = api.create(image=IMAGE, secrets={"TOKEN": "deploy"}, time_to_live_seconds=2)
        key = {"Idempotency-Key": "one"}
        made = api.call("POST", "/sandboxes", body, status=201, headers=key)
        assert api.call("POST", "/sandboxes", body, status=201, headers=key) == made
        ident = made["id"]
        assert made["secrets"]["TOKEN"] == {"secret": "deploy", "always": True}
        assert [service["name"] for service in made["services"]] == ["api"]
        answers = [made, check(api, ident, proof)]
        answers.append(whoami(api, ident))
        rare = api.run(ident, 'echo "$RARE"', secrets=["RARE"])
        assert rare["result"]["output"] == "***RARE***\n"
        with api.events(f"/sandboxes/{ident}/run", {"command": 'echo "$TOKEN"'}) as events:
            found = list(events)
        assert b"".join(each.output for each in found if each.name == "output") == b"***TOKEN***\n"
        as_bytes = {"X-Gamebox-Bytes": "base64"}
        raw = api.call("POST", f"/sandboxes/{ident}/run", {"command": 'printf "\\377$TOKEN"'}, headers=as_bytes)
        assert VALUE.encode() not in base64.b64decode(raw["bytes"]["stdout_bytes"])
        with RemoteEnvironment.attach(ident, url=keeper.url, api_key=keeper.key) as env:
            assert env.run('echo "$RARE"', secrets=["RARE"]).unwrap().output == "***RARE***\n"
        # It is deleted and replaced: what runs keeps its value, and so does a fork of it.
        api.call("DELETE", "/secrets/deploy", status=204)
        api.call("PUT", "/secrets/rare", {"value": f"{NEXT}-2"})
        keeper.kill()
    keeper.start()
    with Api(keeper) as api:
        answers.append(check(api, ident, proof))
        fork = api.call("POST", f"/sandboxes/{ident}/fork", {}, status=201)["items"][0]["id"]
        answers.append(check(api, fork, proof))
        answers.append(whoami(api, fork))
        for path in (f"/sandboxes/{ident}", "/sandboxes", "/secrets", f"/sandboxes/{ident}/requests"):
            answers.append(api.call("GET", path))
        assert api.call("POST", "/sandboxes", body, status=422)["code"] == "secret_not_found"
        assert api.call("POST", "/sandboxes", body, status=201, headers=key) == made
        assert eventually(lambda: api.state(short) == "ended")
        with closing(sqlite3.connect(keeper.folder / "service.db")) as store:
            sealed = dict(store.execute("SELECT id, length(sealed) FROM sandboxes").fetchall())
        assert sealed[ident] > 0
        assert sealed[short] == 0, "what has ended needs no secrets"
        for each in (ident, fork):
            api.call("DELETE", f"/sandboxes/{each}", status=204)
        told = [api.http.get("/metrics").text, json.dumps(api.call("GET", "/audit"))]
    assert "secrets.put_secret" in told[1]
    seen = json.dumps(answers) + repr(found) + json.dumps(raw) + "".join(told)
    for value in (VALUE, NEXT):
        assert value not in seen
        assert value.encode() not in everywhere(keeper)
    assert PLAIN.encode() not in everywhere(keeper)
    assert (keeper.folder / "secret.key").stat().st_mode & 0o777 == 0o600


def whoami(api: Api, ident: str) -> dict[str, object]:
    """Ask the service with credentials who it takes us for."""
    answer = api.call("POST", f"/sandboxes/{ident}/browse", {"url": "http://api.internal/v1/me", "raw": True})
    assert answer["result"]["text"].startswith("you are ****"), answer
    return dict(answer)


def check(api: Api, ident: str, proof: str) -> dict[str, object]:
    """Run ``proof``: the command has the value, and its answer does not."""
    answer = api.run(ident, proof)
    same, masked, plain = answer["result"]["output"].splitlines()
    assert (same, masked, plain) == ("same", "***TOKEN***-.", PLAIN)
    answer["result"]["output"] = ""  # the plain variable
    return answer
