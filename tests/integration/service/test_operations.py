"""Operations over HTTP: the envelope as it is, output as it comes, requests by their ids."""

from __future__ import annotations

import itertools
import time

import httpx
import pytest

from tests.contract.checks import seen_until, with_more_time
from tests.integration.observing import eventually

from .api import Api, Event

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]
_ids = (f"t{n}" for n in itertools.count())


def test_what_an_action_could_not_do_is_an_envelope_too(api: Api, sandbox: str) -> None:
    ran = api.run(sandbox, "echo out; echo err >&2; exit 3")
    assert ran["tool_executed"] is True
    assert (ran["result"]["exit_code"], ran["result"]["stdout"], ran["result"]["stderr"]) == (3, "out\n", "err\n")
    missing = api.call("POST", f"/sandboxes/{sandbox}/read", {"path": "none"})
    assert (missing["tool_executed"], missing["code"]) == (False, "path_not_found")
    wrong = api.call("POST", f"/sandboxes/{sandbox}/read", {"way": 1})
    assert (wrong["code"], "properties" in wrong["schema"]) == ("invalid_arguments", True)
    slow = with_more_time(
        lambda seconds: api.run(sandbox, "echo early; sleep 30", timeout_seconds=seconds),
        lambda answer: bool(answer["result"]["output"]), 0.5,
    )  # fmt: skip
    assert (slow["code"], slow["result"]["output"]) == ("timeout", "early\n")


def test_what_the_http_layer_refuses_is_a_problem(api: Api, sandbox: str) -> None:
    path = f"/sandboxes/{sandbox}"
    assert api.call("POST", f"{path}/frobnicate", {}, status=404)["code"] == "unknown_operation"
    assert api.call("POST", f"{path}/upload", {}, status=404)["code"] == "unknown_operation"
    assert api.call("POST", "/sandboxes/none/run", {}, status=404)["code"] == "sandbox_not_found"
    assert api.call("GET", "/nothing", status=404)["code"] == "route_not_found"
    assert api.call("PUT", "/sandboxes", status=405)["code"] == "method_not_allowed"
    for text in ("{", "[]", "NaN", '{"a": Infinity}', "[" * 100_000):
        answer = api.http.post(f"/v1{path}/run", content=text)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_json")
    assert api.call("POST", f"{path}/export_patch", {"to": "/x"}, status=422)["code"] == "invalid_body"


def test_a_body_that_is_too_large_is_not_read(api: Api) -> None:
    sent = 0

    def endless() -> object:
        nonlocal sent
        while sent < 1 << 30:
            sent += 1 << 16
            yield b" " * (1 << 16)

    try:
        answer = api.http.post("/v1/sandboxes", content=endless())  # type: ignore[arg-type]
        assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
    except httpx.TransportError:
        pass  # it was closed before the answer was read
    assert sent < 64 << 20


def test_output_comes_as_it_is_printed_and_the_envelope_last(api: Api, sandbox: str) -> None:
    body = {"command": "echo one; until [ -e go ]; do sleep 0.05; done; rm go; echo two >&2; sleep 0.5; exit 4"}
    with api.events(f"/sandboxes/{sandbox}/run", body) as events:
        first = next(events)
        api.call("POST", f"/sandboxes/{sandbox}/write", {"path": "go", "content": ""})  # else it waits for ever
        rest = list(events)
    assert (first.name, first.data["stream"], first.output, first.data["offset"]) == ("output", "stdout", b"one\n", 0)
    assert first.id == 4
    assert (rest[0].data["stream"], rest[0].output, rest[0].id) == ("stderr", b"two\n", 8)
    assert rest[-1].name == "envelope"
    assert rest[-1].data["result"]["exit_code"] == 4


def test_notices_come_as_events_before_the_envelope(api: Api, sandbox: str) -> None:
    def run(command: str) -> list[Event]:
        with api.events(f"/sandboxes/{sandbox}/run", {"command": command}) as events:
            return list(events)

    # A busy machine may put off the look at the files to a later command.
    commands = itertools.chain(["echo x > seen"], itertools.repeat("sleep 0.5"))
    found = seen_until(lambda: run(next(commands)), lambda events: len(events) > 1)
    assert [each.name for each in found] == ["notice", "envelope"]
    assert found[0].data == found[1].data["notices"][0]


def test_a_stream_that_was_cut_goes_on_where_it_was(api: Api, sandbox: str) -> None:
    body, ident = {"command": "for i in 1 2 3 4 5 6; do echo $i; sleep 0.3; done"}, next(_ids)
    with api.events(f"/sandboxes/{sandbox}/run", body, request_id=ident) as events:
        first = next(events)
    assert first.id is not None
    with api.events(f"/sandboxes/{sandbox}/run", body, request_id=ident, after=first.id) as events:
        rest = list(events)
    output = b"".join(each.output for each in rest if each.name == "output")
    assert first.output + output == b"1\n2\n3\n4\n5\n6\n"
    assert rest[-1].data["result"]["output"] == "1\n2\n3\n4\n5\n6\n"
    path = f"/sandboxes/{sandbox}/requests/{ident}"
    with api.events(path, method="GET", after=6) as events:
        assert b"".join(each.output for each in events if each.name == "output") == b"4\n5\n6\n"
    headers = {"Accept": "text/event-stream", "Last-Event-ID": "1000"}
    assert api.call("GET", path, headers=headers, status=410)["code"] == "output_gone"


def test_a_reader_that_was_cut_for_long_reads_all_of_it_later(api: Api, sandbox: str) -> None:
    body, ident, size = {"command": "seq 1000000"}, next(_ids), 6_888_896
    with api.events(f"/sandboxes/{sandbox}/run", body, request_id=ident) as events:
        first = next(events)
    assert first.id is not None
    api.call("GET", f"/sandboxes/{sandbox}/requests/{ident}")
    with api.events(f"/sandboxes/{sandbox}/run", body, request_id=ident, after=first.id) as events:
        found = list(events)
    output = first.output + b"".join(each.output for each in found if each.name == "output")
    assert output == b"".join(b"%d\n" % n for n in range(1, 1_000_001))
    assert (len(output), found[-1].id) == (size, size)


def test_the_same_request_is_carried_out_once(api: Api, sandbox: str) -> None:
    ident = next(_ids)
    first = api.run(sandbox, "echo x >> log; cat log", request_id=ident)
    assert api.run(sandbox, "echo x >> log; cat log", request_id=ident) == first
    assert first["result"]["output"] == "x\n"
    problem = api.call(
        "POST", f"/sandboxes/{sandbox}/run", {"command": "true"}, headers={"X-Request-Id": ident}, status=422
    )
    assert problem["code"] == "request_id_reused"
    with api.running(sandbox, "echo y >> log; sleep 1; wc -l < log", other := next(_ids)) as answers:
        assert api.run(sandbox, "echo y >> log; sleep 1; wc -l < log", request_id=other)["result"]["output"] == "2\n"
    assert answers[0]["result"]["output"] == "2\n"


def test_a_command_goes_on_when_its_client_leaves(api: Api, sandbox: str) -> None:
    with pytest.raises(httpx.ReadTimeout):
        api.http.post(
            f"/v1/sandboxes/{sandbox}/run",
            json={"command": "sleep 2; echo there > after"},
            headers={"X-Request-Id": (ident := next(_ids))},
            timeout=0.5,
        )
    answer = api.call("GET", f"/sandboxes/{sandbox}/requests/{ident}")
    assert answer["result"]["exit_code"] == 0
    assert api.run(sandbox, "cat after")["result"]["output"] == "there\n"


def test_a_request_is_stopped_by_its_id(api: Api, sandbox: str) -> None:
    path = f"/sandboxes/{sandbox}/requests"
    with api.running(sandbox, "echo begun; touch begun; sleep 60", ident := next(_ids)) as answers:
        look = {"path": "begun"}
        assert eventually(lambda: api.http.post(f"/v1/sandboxes/{sandbox}/stat", json=look).json().get("tool_executed"))
        began = time.monotonic()
        api.call("DELETE", f"{path}/{ident}", status=204)
        assert time.monotonic() - began < 50
    assert (answers[0]["code"], answers[0]["result"]["output"]) == ("cancelled", "begun\n")
    assert api.call("DELETE", f"{path}/{ident}", status=404)["code"] == "request_not_found"
    assert "sleep" not in api.run(sandbox, "ps")["result"]["output"]


def test_standard_input_is_streamed_and_a_cut_stops_the_command(api: Api, sandbox: str) -> None:
    path, ident = f"/sandboxes/{sandbox}", next(_ids)
    body = b"line\n" * 500_000

    def pieces() -> object:
        yield from (body[at : at + 50_000] for at in range(0, len(body), 50_000))

    headers = {"X-Gamebox-Stdin": "stream", "X-Request-Id": ident}
    with httpx.Client(base_url=api.http.base_url, headers=api.http.headers, timeout=60, trust_env=False) as other:
        import threading

        thread = threading.Thread(
            target=lambda: other.put(f"/v1{path}/requests/{ident}/stdin", content=pieces())  # type: ignore[arg-type]
        )
        thread.start()  # it may be there before the request itself
        answer = api.call("POST", f"{path}/run", {"command": "wc -l"}, headers=headers)
        thread.join()
    assert answer["result"]["output"].strip() == "500000"


def test_bytes_that_no_text_can_hold_come_beside_it(api: Api, sandbox: str) -> None:
    api.call("POST", f"/sandboxes/{sandbox}/run", {"command": "cat > raw", "stdin": "\udcff\udc00a"[:1] + "a"})
    answer = api.call("POST", f"/sandboxes/{sandbox}/run", {"command": "cat raw"}, headers={"X-Gamebox-Bytes": "base64"})
    assert answer["bytes"]["stdout_bytes"] == "/2E="
    assert "bytes" not in api.run(sandbox, "cat raw")


def test_the_state_of_the_files_is_asked_for_as_operations_are(api: Api, sandbox: str) -> None:
    path = f"/sandboxes/{sandbox}"
    marked = api.call("POST", f"{path}/mark", {"name": "m"})
    assert marked["tool_executed"] is True
    api.run(sandbox, "echo new > made")
    changes = api.call("POST", f"{path}/changes", {"since": "m"})
    assert [each["path"] for each in changes["result"]["changes"]] == ["made"]
    assert api.call("POST", f"{path}/rollback", {"id": "none"})["code"] == "checkpoint_not_found"
    assert api.call("POST", f"{path}/changes", {"way": 1})["code"] == "invalid_arguments"


def test_one_request_does_not_wait_for_another(api: Api, sandbox: str) -> None:
    with api.running(sandbox, "until [ -e end ]; do sleep 0.05; done", next(_ids)) as answers:
        assert api.run(sandbox, "echo quick", session="other")["result"]["output"] == "quick\n"
        assert not answers
        api.call("POST", f"/sandboxes/{sandbox}/write", {"path": "end", "content": ""})
    assert eventually(lambda: bool(answers))
