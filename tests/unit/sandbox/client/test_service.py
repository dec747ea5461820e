"""Requests to a service that is slow, busy, cut off or not there, over real connections."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from sandbox.client.http import service as module
from sandbox.client.http.codes import ProblemCode
from sandbox.client.http.service import Call, Service
from sandbox.errors import ErrorCode, SandboxError, SandboxUnavailableError
from tests.integration.observing import eventually
from tests.servers.scripted_service import KEY, Answer, Handler, Scripted, hangs_up, says, scripted


@pytest.fixture
def server() -> Iterator[Scripted]:
    with scripted() as made:
        yield made


@pytest.fixture
def service(server: Scripted) -> Iterator[Service]:
    made = Service(server.url, KEY)
    yield made
    made.close()


def test_the_key_goes_along(server: Scripted, service: Service) -> None:
    server.answers = [says(200, {"a": 1})]
    assert service.json(Call("POST", "/v1/x", b"{}", params={"path": "a b"})) == {"a": 1}
    method, path, headers, body = server.seen[0]
    assert (method, path, body) == ("POST", "/v1/x?path=a+b", b"{}")
    assert (headers["Authorization"], headers["Content-Type"]) == (f"Bearer {KEY}", "application/json")
    assert KEY not in repr(service)


def test_what_may_be_repeated_is_sent_again_after_a_cut(server: Scripted, service: Service) -> None:
    server.answers = [hangs_up, hangs_up, says(200, "there")]
    assert service.json(Call("POST", "/v1/x", b"{}", repeatable=True)) == "there"
    assert [seen[3] for seen in server.seen] == [b"{}"] * 3


def test_what_may_not_be_repeated_is_not(server: Scripted, service: Service) -> None:
    server.answers = [hangs_up]
    with pytest.raises(SandboxUnavailableError, match="does not answer") as caught:
        service.json(Call("POST", "/v1/x"))
    assert (caught.value.reason, caught.value.effects, len(server.seen)) == ("service_unreachable", "unknown", 1)


def test_a_busy_service_is_asked_again_when_it_says(server: Scripted, service: Service) -> None:
    server.answers = [says(503, {"detail": "Full.", "code": "capacity"}, Retry_After="3"), says(200, "there")]
    began = time.monotonic()
    assert service.json(Call("POST", "/v1/x")) == "there"
    assert time.monotonic() - began >= 3


def test_a_service_that_stays_busy(server: Scripted, service: Service) -> None:
    server.answers = [says(429, {"detail": "Too many.", "code": "capacity", "hint": "Wait.", "retryable": True}, Retry_After="60")]
    with pytest.raises(SandboxError) as caught:
        service.json(Call("POST", "/v1/x"))
    assert (caught.value.code, caught.value.retryable, len(server.seen)) == (ErrorCode.capacity, True, 1)


def test_a_creation_that_is_under_way_is_waited_for(server: Scripted, service: Service) -> None:
    begun = {"detail": "It is being made.", "code": "creation_in_progress"}
    server.answers = [says(409, begun), says(409, begun), says(201, {"id": "a"})]
    assert service.json(Call("POST", "/v1/sandboxes", b"{}")) == {"id": "a"}


@pytest.mark.parametrize(
    ("status", "problem", "code"),
    [
        (401, {"detail": "The key is not valid.", "code": "unauthorized", "hint": "Send one."}, ProblemCode.unauthorized),
        (404, {"detail": "No such.", "code": "sandbox_not_found"}, ErrorCode.sandbox_not_found),
        (418, {"detail": "A later code.", "code": "teapot"}, ProblemCode.internal_error),
        (410, {"detail": "Gone.", "code": "sandbox_unavailable", "reason": "killed"}, ErrorCode.sandbox_unavailable),
        (500, "no problem", ErrorCode.sandbox_unavailable),
    ],
)
def test_problems_become_errors(server: Scripted, service: Service, status: int, problem: Any, code: object) -> None:
    server.answers = [says(status, problem)]
    with pytest.raises(SandboxError) as caught:
        service.json(Call("GET", "/v1/x"))
    assert caught.value.code == code
    if status == 410:
        assert isinstance(caught.value, SandboxUnavailableError)
        assert caught.value.reason == "killed"


def test_an_answer_that_is_no_json(server: Scripted, service: Service) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "5")
        handler.end_headers()
        handler.wfile.write(b"<html")

    server.answers = [answer]
    with pytest.raises(SandboxUnavailableError, match="is not what its API specifies"):
        service.json(Call("GET", "/v1/x"))


def test_a_long_request_goes_on_while_the_service_lives(server: Scripted, service: Service) -> None:
    """Its connection may have been lost on the way; asked again with its id, it joins the one under way."""
    server.answers = [lambda _: time.sleep(2.3), says(200, "alive"), says(200, "there")]
    call = Call("POST", "/v1/x", read_seconds=2, repeatable=True, joins=True, patience_seconds=0)
    assert service.json(call) == "there"
    assert [seen[1] for seen in server.seen] == ["/v1/x", "/healthz", "/v1/x"]


def waits_for(event: threading.Event) -> Answer:
    def answer(_: BaseHTTPRequestHandler) -> None:
        event.wait(60)

    return answer


async def awaited(service: Service, call: Call) -> Any:
    async with service.asynchronous() as client:
        return await service.json_awaited(call, client)


def test_in_a_loop_requests_are_sent_again_as_well(server: Scripted, service: Service) -> None:
    server.answers = [hangs_up, says(503, {"detail": "Full."}, Retry_After="1"), says(200, "there")]
    assert asyncio.run(awaited(service, Call("POST", "/v1/x", b"{}", repeatable=True))) == "there"
    assert [seen[2]["Authorization"] for seen in server.seen] == [f"Bearer {KEY}"] * 3
    server.answers = [lambda _: time.sleep(2.3), says(200, "alive"), says(200, "there")]
    long = Call("POST", "/v1/x", read_seconds=2, repeatable=True, joins=True, patience_seconds=0)
    assert asyncio.run(awaited(service, long)) == "there"


def test_in_a_loop_errors_are_the_same(server: Scripted, service: Service) -> None:
    server.answers = [hangs_up, says(401, {"detail": "No.", "code": "unauthorized"})]
    with pytest.raises(SandboxUnavailableError, match="does not answer"):
        asyncio.run(awaited(service, Call("POST", "/v1/x")))
    with pytest.raises(SandboxError) as caught:
        asyncio.run(awaited(service, Call("POST", "/v1/x")))
    assert caught.value.code is ProblemCode.unauthorized


def test_a_service_that_is_not_there_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    began = time.monotonic()
    with pytest.raises(SandboxUnavailableError) as caught:
        Service(url, KEY).json(Call("POST", "/v1/x", repeatable=True))
    assert url in caught.value.message
    assert (caught.value.effects, time.monotonic() - began < 30) == ("none", True)


def test_a_service_that_restarts_is_waited_for(server: Scripted, service: Service) -> None:
    server.answers = [says(200, "before")]
    assert service.json(Call("GET", "/v1/x")) == "before"
    port = server.server_address[1]
    server.shutdown()
    server.server_close()
    service.close()  # its connections ended with the server
    service.reopen()

    class Again(Scripted):
        allow_reuse_address = True

        def __init__(self) -> None:
            ThreadingHTTPServer.__init__(self, ("127.0.0.1", port), Handler)
            self.answers, self.seen = [says(200, "after")], []

    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(service.json(Call("POST", "/v1/x"))))
    asking.start()
    time.sleep(0.5)
    later = Again()
    threading.Thread(target=later.serve_forever, daemon=True).start()
    asking.join(60)
    later.shutdown()
    later.server_close()
    assert answers == ["after"]


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:8000", "ftp://host", "http://", "http://host:port", "http://u:p@host", "http://host/?q=1", "http://[::1"]
)
def test_addresses_that_are_none(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GAMEBOX_URL", raising=False)
    with pytest.raises(SandboxError) as caught:
        Service(url, KEY)
    assert caught.value.code is ErrorCode.invalid_configuration
    assert "GAMEBOX_URL" in caught.value.hint


@pytest.mark.parametrize("key", ["", "  ", "a\nb", "ключ"])
def test_keys_that_are_none(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GAMEBOX_API_KEY", raising=False)
    with pytest.raises(SandboxError) as caught:
        Service("http://127.0.0.1:1", key)
    assert caught.value.code is ErrorCode.invalid_configuration
    assert "GAMEBOX_API_KEY" in caught.value.hint


def test_a_key_in_the_clear_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    for url in ("http://127.0.0.1:1", "http://localhost:1", "https://example.com", "http://[::1]:1"):
        Service(url, KEY)
    assert not caplog.records
    Service("http://example.com", KEY)
    assert "in the clear" in caplog.text
    assert KEY not in caplog.text


def test_address_and_key_of_the_environment(server: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAMEBOX_URL", f"{server.url}/")
    monkeypatch.setenv("GAMEBOX_API_KEY", f" {KEY}\n")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")  # no way to this host
    server.answers = [says(200, 1)]
    service = Service()
    assert service.json(Call("GET", "/v1/x")) == 1
    assert server.seen[0][2]["Authorization"] == f"Bearer {KEY}"
    service.close()


def test_what_another_thread_closes_before_it_is_sent_has_no_effects(
    server: Scripted, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = module._sent

    def interrupted(call: Call) -> Any:
        service.close()
        return make(call)

    monkeypatch.setattr(module, "_sent", interrupted)
    for _ in range(2):
        with pytest.raises(SandboxUnavailableError) as caught:
            service.json(Call("POST", "/v1/x"))
        assert (caught.value.reason, caught.value.effects, server.seen) == ("closed", "none", [])
    monkeypatch.undo()
    service.reopen()
    server.answers = [says(200, {"a": 1})]
    assert service.json(Call("POST", "/v1/x")) == {"a": 1}


def test_a_thread_that_waits_for_an_answer_notices_the_end(server: Scripted, service: Service) -> None:
    raised: list[SandboxUnavailableError] = []
    over = threading.Event()
    server.answers = [waits_for(over)]

    def ask() -> None:
        with pytest.raises(SandboxUnavailableError) as caught:
            service.json(Call("POST", "/v1/x", repeatable=True, read_seconds=50))
        raised.append(caught.value)

    asking = threading.Thread(target=ask)
    asking.start()
    assert eventually(lambda: server.seen)
    service.close()
    asking.join(30)
    over.set()
    assert [(each.reason, each.effects) for each in raised] == [("closed", "unknown")]
    assert len(server.seen) == 1


def test_in_a_loop_what_another_task_closes_fails_in_our_words(server: Scripted, service: Service) -> None:
    over = threading.Event()
    server.answers = [waits_for(over)]

    async def ask() -> tuple[str, str]:
        client = service.asynchronous()
        asking = asyncio.create_task(service.json_awaited(Call("POST", "/v1/x", repeatable=True), client))
        await asyncio.to_thread(eventually, lambda: server.seen)
        await client.aclose()
        results = await asyncio.gather(asking, service.json_awaited(Call("POST", "/v1/x"), client), return_exceptions=True)
        return tuple(str(getattr(each, "reason", each)) for each in results)  # type: ignore[return-value]

    assert asyncio.run(ask()) == ("closed", "closed")
    over.set()
