"""The pool behind ``create``: a creation takes what stands by, and nothing is lost or left over when the service dies meanwhile."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from sandbox.docker.engine.client import connect
from sandbox.docker.kept import inventory
from sandbox.guest.protocol.constants import PROXY_PORT
from tests.integration.observing import eventually
from tests.integration.own_engine import IMAGE, OwnEngine
from tests.programs import run_gamebox
from tests.servers.gamebox_service import ServiceProcess

from .api import SMALL, Api

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]
KILLS = 3


@pytest.fixture(scope="module")
def pooled(place: Path, engine: OwnEngine) -> Iterator[ServiceProcess]:
    """A service with one small sandbox that stands by."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("GAMEBOX_SERVICE_POOLS", json.dumps([{"size": 1, "image": IMAGE, "limits": SMALL}]))
        made = ServiceProcess(place / "pooled", "--stop-all").start()
        yield made
        if made.process is None:
            made.start()
        made.stop()
    assert engine.nothing_is_left()


def _containers() -> set[str]:
    return {each["Id"] for each in connect().api.containers(all=True)}


def _waiting() -> list[inventory.Listed]:
    return [each for each in inventory.sandboxes(connect()) if each.state == "waiting"]


def test_a_creation_that_fits_takes_what_stands_by(pooled: ServiceProcess) -> None:
    assert eventually(_waiting)
    assert "waits in its pool" in run_gamebox("ls").stdout
    before = _containers()
    body = {"image": IMAGE, "limits": SMALL, "env": {"COLOUR": "red"}, "metadata": {"job": "1"}, "time_to_live_seconds": 100}
    body |= {"secrets": {"TOKEN": "deploy"}, "network": {"mode": "open", "rules": ["0.0.0.0/0:*"]}}
    with Api(pooled) as api:
        api.call("PUT", "/secrets/deploy", {"value": "sw0rdfish-of-pools"}, status=201)
        for _ in range(2):  # the second is answered with the first, and takes nothing
            made = api.call("POST", "/sandboxes", body, status=201, headers={"Idempotency-Key": "one"})
        ident = made["id"]
        assert len(api.call("GET", "/sandboxes")["items"]) == 1
        assert (made["env"], made["metadata"], made["time_to_live_seconds"]) == (["COLOUR"], {"job": "1"}, 100)
        assert "2 minutes after its start" in made["description"]["limits"]
        assert api.run(ident, "echo $COLOUR; pwd")["result"]["output"] == "red\n/workspace\n"
        # What the service gives a sandbox beside its spec holds for one that stood by.
        assert api.run(ident, "echo $TOKEN")["result"]["output"] == "***TOKEN***\n"
        asked = f"printf 'CONNECT 127.0.0.1:{pooled.port} HTTP/1.1\\r\\n\\r\\n' | busybox nc 127.0.0.1 {PROXY_PORT}"
        assert "the operator opens public addresses only" in api.run(ident, asked)["result"]["output"]
        assert eventually(lambda: len(_containers()) == 2)
        assert before < _containers(), "it has the container that was there"
        assert eventually(_waiting)
        other = api.create(image=IMAGE, limits={**SMALL, "pids": 99})
        assert len(_containers()) == 3, "the pool has none like this"
        assert len(_waiting()) == 1
        # A member that dies is replaced, and a creation of that moment is carried out all the same.
        (member,) = _waiting()
        connect().api.kill(member.id)
        third = api.create(image=IMAGE)
        assert api.run(third, "echo on")["result"]["output"] == "on\n"
        for each in (ident, other, third):
            api.call("DELETE", f"/sandboxes/{each}", status=204)


def test_a_kill_at_any_moment_leaves_sandboxes_that_were_answered_and_nothing_else(pooled: ServiceProcess) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    answered: list[str] = []
    for _ in range(KILLS):
        assert eventually(_waiting)

        def create() -> None:
            with Api(pooled) as api, contextlib.suppress(httpx.HTTPError):  # it is cut
                answered.append(api.create(image=IMAGE, env={"COLOUR": "red"}, time_to_live_seconds=3000))

        thread = threading.Thread(target=create)
        thread.start()
        time.sleep(chance.uniform(0.0, 0.06))
        pooled.kill()
        thread.join()
        pooled.start()

        def agrees() -> bool:
            with Api(pooled) as api:
                listed = [each["id"] for each in api.call("GET", "/sandboxes")["items"]]
            waiting = len(_waiting())
            return set(answered) <= set(listed) and waiting == 1 and len(_containers()) == len(listed) + waiting

        assert eventually(agrees)
    with Api(pooled) as api:
        for each in api.call("GET", "/sandboxes")["items"]:
            found = api.call("GET", f"/sandboxes/{each['id']}")
            assert (found["state"], "50 minutes after its start" in found["description"]["limits"]) == ("running", True)
            assert api.run(each["id"], "echo $COLOUR")["result"]["output"] == "red\n"
            api.call("DELETE", f"/sandboxes/{each['id']}", status=204)


def test_sigterm_removes_what_nobody_took(pooled: ServiceProcess) -> None:
    assert eventually(_waiting)
    pooled.stop()
    assert _containers() == set()
