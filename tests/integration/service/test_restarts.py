"""A service that was killed or stopped finds its sandboxes again: commands go on, and nothing is left over."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from sandbox.docker.engine.client import connect
from tests.contract.checks import seen_until
from tests.integration.observing import eventually
from tests.integration.own_engine import IMAGE, OwnEngine
from tests.programs import run_gamebox
from tests.servers.gamebox_service import ServiceProcess

from .api import SMALL, Api

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]


@pytest.fixture
def mortal(place: Path, tmp_path: Path) -> Iterator[ServiceProcess]:
    """A service that leaves its sandboxes when it ends; at the very end they are removed."""
    made = ServiceProcess(tmp_path / "data").start()
    yield made
    if made.process is None:
        made.start()
    with Api(made) as api:
        for each in api.call("GET", "/sandboxes")["items"]:
            api.call("DELETE", f"/sandboxes/{each['id']}", status=204)
    made.stop()


def test_commands_go_on_while_the_service_is_dead(mortal: ServiceProcess) -> None:
    with Api(mortal) as api:
        ident = api.create(image=IMAGE, env={"COLOUR": "red"}, metadata={"job": "1"})
        before = api.call("GET", f"/sandboxes/{ident}")
        api.run(ident, "cd /tmp; export MARK=left")
        late = api.run(ident, "for i in 1 2 3 4 5 6 7 8; do echo line $i; sleep 0.5; done", background=True)["result"]["id"]
        with api.running(ident, "echo x >> /workspace/n; sleep 3; wc -l < /workspace/n", "across") as answers:
            mortal.kill()
        assert "cut" in answers[0]
    mortal.start()
    with Api(mortal) as api:
        began = time.monotonic()
        again = api.run(ident, "echo x >> /workspace/n; sleep 3; wc -l < /workspace/n", request_id="across")
        assert again["result"]["output"].strip() == "1", "it was carried out once"
        assert time.monotonic() - began < 60
        after = api.call("GET", f"/sandboxes/{ident}")
        same = ("id", "state", "created_at", "ends_at", "metadata", "limits", "network", "env")
        assert [after[name] for name in same] == [before[name] for name in same]
        assert api.run(ident, "pwd; echo $MARK $COLOUR")["result"]["output"] == "/tmp\nleft red\n"
        ended = api.call("POST", f"/sandboxes/{ident}/wait_for", {"id": late, "exit": True})
        assert ended["tool_executed"] is True
        logs = api.call("POST", f"/sandboxes/{ident}/logs", {"id": late})["result"]["content"]
        assert logs == "".join(f"line {n}\n" for n in range(1, 9))
        forked = api.call("POST", f"/sandboxes/{ident}/fork", {}, status=201)["items"][0]["id"]
        assert api.run(forked, "cat /workspace/n; echo $COLOUR")["result"]["output"] == "x\nred\n"


def test_a_stream_goes_on_where_a_kill_has_cut_it_off(mortal: ServiceProcess) -> None:
    """What was printed while no service was there comes from the sandbox, with the stream that it went to."""
    body = {"command": "echo one; sleep 4; echo two >&2; sleep 2; echo three"}
    with Api(mortal) as api:
        ident = api.create(image=IMAGE)
        with api.events(f"/sandboxes/{ident}/run", body, request_id="stream") as events:
            first = next(events)
            mortal.kill()
            with pytest.raises(httpx.TransportError):
                list(events)
    assert (first.output, first.id) == (b"one\n", 4)
    mortal.start()
    with Api(mortal) as api:
        with api.events(f"/sandboxes/{ident}/run", body, request_id="stream", after=4) as events:
            *pieces, last = [each for each in events if each.name != "notice"]
        assert (pieces[0].data["offset"], pieces[-1].id) == (4, 14)
        assert [(each.data["stream"], each.output) for each in pieces] == [("stderr", b"two\n"), ("stdout", b"three\n")]
        assert (last.name, last.data["result"]["stdout"]) == ("envelope", "one\nthree\n")
        with api.events(f"/sandboxes/{ident}/run", body, request_id="stream") as events:
            assert b"".join(each.output for each in events if each.name == "output") == b"one\ntwo\nthree\n"


def test_a_paused_sandbox_stays_paused(mortal: ServiceProcess, engine: OwnEngine) -> None:
    with Api(mortal) as api:
        ident = api.create(image=IMAGE)
        api.run(ident, "echo here > mark")
        api.call("POST", f"/sandboxes/{ident}/pause")
    for end in (mortal.kill, mortal.stop):
        end()
        assert [each["State"] for each in connect().api.containers()] == ["paused"]
        mortal.start()
        with Api(mortal) as api:
            assert api.state(ident) == "paused"
            assert api.run(ident, "true")["code"] == "sandbox_paused"
            assert [each["State"] for each in connect().api.containers()] == ["paused"]
    with Api(mortal) as api:
        api.call("POST", f"/sandboxes/{ident}/resume")
        assert api.run(ident, "cat mark")["result"]["output"] == "here\n"


def test_sigterm_lets_requests_end_and_leaves_sandboxes_running(mortal: ServiceProcess) -> None:
    with Api(mortal) as api:
        ident = api.create(image=IMAGE)
        with api.running(ident, "sleep 2; echo done", "drained") as answers:
            mortal.stop()
        assert answers[0]["result"]["output"] == "done\n"
    mortal.start()
    with Api(mortal) as api:
        assert api.run(ident, "echo again")["result"]["output"] == "again\n"


def test_sigterm_ends_streams_of_events_at_once(mortal: ServiceProcess) -> None:
    with Api(mortal) as api, api.events("/events", after=0, method="GET") as events:
        began = time.monotonic()
        mortal.stop()
        assert list(events) == []
        assert time.monotonic() - began < 30


def test_what_ended_while_nobody_looked_is_lost_with_a_reason(mortal: ServiceProcess) -> None:
    with Api(mortal) as api:
        gone, stays = api.create(image=IMAGE, metadata={"n": "gone"}), api.create(image=IMAGE, metadata={"n": "stays"})
    mortal.kill()
    client = connect()
    client.api.remove_container(client.api.containers()[1]["Id"], force=True, v=True)  # the first that was made
    mortal.start()
    with Api(mortal) as api:
        assert eventually(lambda: api.state(gone) == "lost")
        found = api.call("GET", f"/sandboxes/{gone}")
        assert (found["reason"], found["metadata"]) == ("removed", {"n": "gone"})
        assert "service was not running" in found["post_mortem"]
        answer = api.run(gone, "true")
        assert (answer["code"], answer["reason"]) == ("sandbox_unavailable", "removed")
        listed = api.call("GET", "/sandboxes", params={"state": "lost"})["items"]
        assert [each["id"] for each in listed] == [gone]
        assert api.run(stays, "echo on")["result"]["output"] == "on\n"
        assert api.call("PATCH", f"/sandboxes/{gone}", {"metadata": {}}, status=410)["reason"] == "removed"


def test_paused_ones_that_somebody_removes_are_lost(mortal: ServiceProcess, engine: OwnEngine) -> None:
    """One whose service paused it, and one that was paused before its service was killed."""
    with Api(mortal) as api:
        first, second = api.create(image=IMAGE), api.create(image=IMAGE)
        api.call("POST", f"/sandboxes/{first}/pause")
        containers = connect().api.containers
        (paused,) = containers(filters={"status": "paused"})
        connect().api.remove_container(paused["Id"], force=True, v=True)
        assert eventually(lambda: api.state(first) == "lost", 40)
        api.call("POST", f"/sandboxes/{second}/pause")
        mortal.kill()
        connect().api.remove_container(containers()[0]["Id"], force=True, v=True)
    mortal.start()
    with Api(mortal) as api:
        assert eventually(lambda: api.state(second) == "lost", 40)
        for ident in (first, second):
            assert api.call("POST", f"/sandboxes/{ident}/resume", status=410)["code"] == "sandbox_unavailable"
    assert engine.nothing_is_left()


def test_one_that_dies_is_lost_with_its_post_mortem(mortal: ServiceProcess, engine: OwnEngine) -> None:
    with Api(mortal) as api:
        ident = api.create(image=IMAGE)
        with api.events(f"/sandboxes/{ident}/events", method="GET") as events:
            connect().api.kill(connect().api.containers()[0]["Id"])
            assert next(events).data["state"] == "lost"
        found = api.call("GET", f"/sandboxes/{ident}")
        assert found["reason"] in ("killed", "removed")
        assert api.run(ident, "true")["reason"] == found["reason"]
        assert eventually(lambda: engine.containers() == [])


@pytest.mark.parametrize("seconds", [0.05, 0.3, 0.8])
def test_a_kill_during_a_creation_leaves_one_sandbox_or_none(
    mortal: ServiceProcess, engine: OwnEngine, seconds: float
) -> None:
    body, headers = {"image": IMAGE, "limits": SMALL}, {"Idempotency-Key": "killed"}
    with Api(mortal) as api:

        def create() -> None:
            try:
                api.http.post("/v1/sandboxes", json=body, headers=headers)
            except Exception:  # noqa: BLE001  # it is cut
                return

        thread = threading.Thread(target=create)
        thread.start()
        time.sleep(seconds)
        mortal.kill()
        thread.join()
    mortal.start()
    with Api(mortal) as api:

        def created() -> str | None:
            answer = api.http.post("/v1/sandboxes", json=body, headers=headers)
            return answer.json()["id"] if answer.status_code == 201 else None

        ident = eventually(created)
        assert api.run(ident, "echo on")["result"]["output"] == "on\n"
        assert eventually(lambda: len(engine.containers()) == 1)
        # What the killed service had begun is removed beside this.
        assert eventually(lambda: [each["id"] for each in api.call("GET", "/sandboxes")["items"]] == [ident])


def test_one_that_nobody_uses_ends_as_it_was_asked_to(mortal: ServiceProcess) -> None:
    with Api(mortal) as api:
        ident = api.create(image=IMAGE, idle_seconds=2)
        assert eventually(lambda: api.state(ident) == "ended", 40)
        found = api.call("GET", f"/sandboxes/{ident}")
        assert (found["reason"], found["idle_seconds"]) == ("idle", 2)


def test_one_that_nobody_uses_ends_though_no_service_is_there(mortal: ServiceProcess, engine: OwnEngine) -> None:
    with Api(mortal) as api:
        works = api.create(image=IMAGE, idle_seconds=4)
        api.run(works, "sleep 600", background=True)
        ident = api.create(image=IMAGE, idle_seconds=4)
        mortal.kill()
        assert eventually(lambda: len(engine.containers()) == 1, 30)
    mortal.start()
    with Api(mortal) as api:
        assert eventually(lambda: api.state(ident) == "lost")
        assert api.run(works, "echo on")["result"]["output"] == "on\n"


def test_a_sandbox_ends_in_time_though_no_service_is_there(mortal: ServiceProcess, engine: OwnEngine) -> None:
    with Api(mortal) as api:
        ends, goes_on = api.create(image=IMAGE, time_to_live_seconds=600), api.create(image=IMAGE, time_to_live_seconds=6)
        for ident, seconds in ((ends, 4), (goes_on, 600)):
            api.call("PATCH", f"/sandboxes/{ident}", {"time_to_live_seconds": seconds})
        assert "10 min" in api.call("GET", f"/sandboxes/{goes_on}")["description"]["left"]
        mortal.kill()
    assert eventually(lambda: len(engine.containers()) == 1, 20)
    time.sleep(4)
    mortal.start()
    with Api(mortal) as api:
        assert eventually(lambda: api.state(ends) == "ended")
        assert api.run(goes_on, "echo on")["result"]["output"] == "on\n"


def test_checkpoints_survive_and_leave_nothing_when_they_are_deleted(mortal: ServiceProcess) -> None:
    folder = mortal.folder / "checkpoints"
    with Api(mortal) as api:
        ident = api.create(image=IMAGE)
        path = f"/sandboxes/{ident}"
        for name in ("one", "two/../&", "three"):
            api.run(ident, f"echo '{name}' > a")
            assert api.call("POST", f"{path}/checkpoint", {"name": name})["result"]["id"] == name
        assert api.call("POST", f"{path}/checkpoint", {"name": "one"})["code"] == "invalid_arguments"
        assert api.call("POST", f"{path}/delete_checkpoint", {"id": "three"})["tool_executed"] is True
        assert len(list(folder.glob("*/*"))) == 2
    mortal.kill()
    (folder / ident / "half").write_text("a service was killed while it wrote this")
    mortal.start()
    with Api(mortal) as api:
        listed = api.call("POST", f"{path}/checkpoints", {})["result"]["checkpoints"]
        assert [each["id"] for each in listed] == ["one", "two/../&"]
        assert len(list(folder.glob("*/*"))) == 2
        assert api.call("POST", f"{path}/rollback", {"id": "one"})["tool_executed"] is True
        assert api.run(ident, "cat a")["result"]["output"] == "one\n"
        mortal.kill()
    mortal.start()
    with Api(mortal) as api:
        fork = api.call("POST", f"{path}/fork", {"checkpoint": "two/../&"}, status=201)["items"][0]["id"]
        assert api.run(fork, "cat a")["result"]["output"] == "two/../&\n"
        api.call("DELETE", path, status=204)
        assert list(folder.glob("*/*")) == []


def test_stop_all_ends_them(place: Path, tmp_path: Path, engine: OwnEngine) -> None:
    made = ServiceProcess(tmp_path / "data", "--stop-all").start()
    with Api(made) as api:
        running, paused = api.create(image=IMAGE), api.create(image=IMAGE)
        api.call("POST", f"/sandboxes/{paused}/pause")
        assert api.state(running) == "running"
    made.stop()
    assert engine.nothing_is_left()


def test_others_leave_a_services_sandboxes_alone_also_while_it_is_dead(mortal: ServiceProcess) -> None:
    with Api(mortal) as api:
        ident = api.create(image=IMAGE)
    mortal.kill()
    (listed,) = json.loads(run_gamebox("ls", "--json").stdout)
    assert (listed["state"], listed["service"]) == ("detached", True)
    assert "of a service" in run_gamebox("ls").stdout
    for words in (["--detached"], ["--all-mine"]):
        assert run_gamebox("rm", *words).stdout == ""
    refused = run_gamebox("rm", listed["id"])
    assert (refused.returncode, "belongs to a service" in refused.stderr) == (2, True)
    used = run_gamebox("run", "--in", listed["id"], "--", "true")
    assert (used.returncode, "belongs to a service" in used.stderr) == (125, True)
    mortal.start()
    with Api(mortal) as api:
        assert api.run(ident, "echo on")["result"]["output"] == "on\n"
        taken = run_gamebox("run", "--in", listed["id"], "--take-over", "--", "echo", "mine")
        assert taken.stdout == "mine\n"
        assert eventually(lambda: api.state(ident) == "lost")
        assert api.call("GET", f"/sandboxes/{ident}")["reason"] == "taken_over"
    assert run_gamebox("rm", "--force", listed["id"]).returncode == 0


def test_a_request_that_comes_while_the_service_ends_may_be_sent_again(mortal: ServiceProcess) -> None:
    with Api(mortal) as api, Api(mortal) as other:
        ident = api.create(image=IMAGE)
        assert other.state(ident) == "running"  # its connection is open
        container = max(connect().containers.list(), key=lambda each: str(each.attrs["Created"]))
        end = Path(f"/proc/{container.attrs['State']['Pid']}/root/workspace/end")
        with api.running(ident, "until [ -e end ]; do sleep 0.05; done; echo done", "last") as answers:
            process = mortal.process
            assert process is not None
            process.send_signal(signal.SIGTERM)
            answer = seen_until(lambda: other.http.get("/v1/sandboxes"), lambda each: each.status_code == 503)
            end.touch()
            assert (answer.status_code, answer.json()["code"]) == (503, "draining")
            assert answer.headers["retry-after"] == "1"
        assert answers[0]["result"]["output"] == "done\n"
        mortal.stop()


@pytest.mark.parametrize("seconds", [0.01, 0.1])
def test_a_kill_during_changes_leaves_what_the_api_says(mortal: ServiceProcess, engine: OwnEngine, seconds: float) -> None:
    """Each is done or not done, and nothing in between, whatever the engine had come to."""
    with Api(mortal) as api:
        ids = {action: api.create(image=IMAGE) for action in ("pause", "resume", "fork", "delete")}
        for ident in ids.values():
            api.run(ident, "echo here > mark")
        api.call("POST", f"/sandboxes/{ids['resume']}/pause")

        def change(action: str) -> None:
            path = f"/v1/sandboxes/{ids[action]}"
            with contextlib.suppress(httpx.HTTPError):  # it is cut
                api.http.delete(path) if action == "delete" else api.http.post(f"{path}/{action}")

        threads = [threading.Thread(target=change, args=(action,)) for action in ids]
        for each in threads:
            each.start()
        time.sleep(seconds)
        mortal.kill()
        for each in threads:
            each.join()
    mortal.start()
    states = {"running": "running", "paused": "paused"}

    def agrees() -> bool:
        with Api(mortal) as api:
            listed = api.call("GET", "/sandboxes")["items"]
        found = sorted(each["State"] for each in connect().api.containers(all=True))
        return found == sorted(states.get(each["state"], each["state"]) for each in listed)

    assert eventually(agrees)
    time.sleep(1)
    assert agrees()
    with Api(mortal) as api:
        listed = api.call("GET", "/sandboxes")["items"]
        assert len(listed) <= len(ids) + 1
        assert {ident for action, ident in ids.items() if action != "delete"} <= {each["id"] for each in listed}
        for each in listed:
            if each["state"] == "paused":
                api.call("POST", f"/sandboxes/{each['id']}/resume")
            assert api.run(each["id"], "cat mark")["result"]["output"] == "here\n"
