"""The host's end of the pipe against a guest that answers late or not at all, and the end of the pipe."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandbox.errors import OperationError, SandboxUnavailableError
from sandbox.guest.protocol import wire
from sandbox.guest.protocol.wire import Kind
from sandbox.pipe import transport
from sandbox.pipe.transport import Transport
from sandbox.testing import GuestRequest, ScriptedGuest

from .talking import GRACE, echo, eventually, explain, fails, pong_and_echo, send_in_pieces, silent, talk

# --- answers ---------------------------------------------------------------------------------------------------------------


def test_request_and_reply() -> None:
    with talk(echo) as (host, _):
        fields, blob = host.request("read", {"path": "é\udcff"}, timeout_seconds=60, blob=b"\0\xff")
        assert (fields["result"], blob) == ({"path": "é?"}, b"\0\xff")  # the guest's own texts are valid Unicode


def test_long_messages_in_parts() -> None:
    blob = bytes(range(256)) * 5000
    with talk(echo) as (host, _):
        assert host.request("write", {"a": "x" * 600_000}, timeout_seconds=60, blob=blob)[1] == blob


def test_a_number_that_json_does_not_have_is_not_sent() -> None:
    with talk(echo) as (host, _):
        with pytest.raises(OperationError) as caught:
            host.request("run", {"cpu_seconds": float("inf")}, timeout_seconds=60)
        assert caught.value.code == "invalid_arguments"
        assert host.request("read", {"path": "x"}, timeout_seconds=60)[0]["result"] == {"path": "x"}


def test_a_request_that_a_full_pipe_takes_in_pieces_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ping behind it went on its own channel, and the answer to that ping broke the protocol."""
    with talk(pong_and_echo) as (host, guest):
        send_in_pieces(guest, monkeypatch)
        assert host.request("read", {"path": "x"}, timeout_seconds=60)[0]["result"] == {"path": "x"}


def test_many_callers_get_their_own_answers() -> None:
    def later(guest: ScriptedGuest, request: GuestRequest) -> None:
        threading.Timer(request.args["n"] % 7 / 100, echo, (guest, request)).start()

    with talk(later) as (host, _), ThreadPoolExecutor(30) as pool:
        answers = pool.map(lambda n: host.request("read", {"n": n}, timeout_seconds=60)[0]["result"]["n"], range(200))
        assert list(answers) == list(range(200))


@given(sizes=st.lists(st.integers(1, 400_000), max_size=6), cuts=st.lists(st.integers(1, 5000), min_size=1, max_size=4))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_streams_in_both_directions(sizes: list[int], cuts: list[int]) -> None:
    sent = [bytes([n % 251]) * size for n, size in enumerate(sizes)]
    taken = bytearray()

    def script(guest: ScriptedGuest, request: GuestRequest) -> None:
        total = b"".join(sent)
        at = 0
        for n in range(10_000):
            if at >= len(total):
                break
            cut = cuts[n % len(cuts)] * 50
            if at + cut > wire.WINDOW // 2:  # well inside the first credit
                break
            guest.frame(Kind.DATA, request.channel, total[at : at + cut])
            at += len(total[at : at + cut])
        guest.reply(request, at)

    with talk(script) as (host, _):
        fields, _blob = host.request("download", {}, timeout_seconds=60, sink=taken.extend)
        assert bytes(taken) == b"".join(sent)[: fields["result"]]


def test_a_body_waits_for_credit() -> None:
    heard: list[int] = []

    def script(guest: ScriptedGuest, request: GuestRequest) -> None:
        threading.Thread(target=take, args=(guest, request), daemon=True).start()

    def take(guest: ScriptedGuest, request: GuestRequest) -> None:
        credited = 0
        while not [1 for kind, _, _ in guest.heard if kind == Kind.END]:
            got = sum(len(payload) for kind, _, payload in list(guest.heard) if kind == Kind.DATA)
            heard.append(got - credited)
            if got > credited:
                guest.frame(Kind.CREDIT, request.channel, (got - credited).to_bytes(4, "big"))
                credited = got
            time.sleep(0.001)
        guest.reply(request, sum(len(payload) for kind, _, payload in guest.heard if kind == Kind.DATA))

    with talk(script) as (host, _):
        body = (bytes(300_000) for _ in range(30))
        assert host.request("upload", {}, timeout_seconds=60, body=body)[0]["result"] == 9_000_000
        assert max(heard) <= wire.WINDOW


def _count_body(guest: ScriptedGuest, request: GuestRequest) -> None:
    def count() -> None:
        guest.wait_for(Kind.END, 60)
        guest.reply(request, b"".join(payload for kind, _, payload in guest.heard if kind == Kind.DATA).hex())

    threading.Thread(target=count, daemon=True).start()


@pytest.mark.parametrize("pieces", [(), (b"",), (b"a",), (b"ab", b"", b"c"), (bytes(3800),), (bytes(3999),), (bytes(4000),)])
def test_a_short_body_goes_with_its_request(pieces: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    with talk(_count_body) as (host, guest):
        written: list[int] = []
        send = host.sender._sink.send

        def counting(data: memoryview, timeout_seconds: float) -> int:
            written.append(len(data))
            return send(data, timeout_seconds)

        monkeypatch.setattr(host.sender._sink, "send", counting)
        body = b"".join(pieces)
        assert host.request("upload", {}, timeout_seconds=60, body=pieces)[0]["result"] == body.hex()
        assert (len(written) == 1) == (len(body) < 3900), written
        assert [kind for kind, _, _ in guest.heard][-1] == Kind.END


def test_a_short_body_that_a_full_pipe_takes_in_pieces_arrives_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with talk(_count_body) as (host, guest):
        send_in_pieces(guest, monkeypatch)
        assert host.request("upload", {}, timeout_seconds=60, body=(b"ab", b"c"))[0]["result"] == b"abc".hex()


def test_an_answer_ends_a_body_that_is_not_wanted() -> None:
    def refuse(guest: ScriptedGuest, request: GuestRequest) -> None:
        guest.reply(request, fault={"code": "no_space"})

    with talk(refuse) as (host, _):
        endless = iter(lambda: bytes(100_000), None)
        fields, _ = host.request("upload", {}, timeout_seconds=60, body=endless)
        assert fields["fault"] == {"code": "no_space"}


def test_a_source_that_fails_is_told_to_the_guest() -> None:
    def body() -> Iterator[bytes]:
        yield b"abc"
        raise OSError(5, "Input/output error")

    with talk(silent) as (host, guest):
        with pytest.raises(OSError, match="Input/output error"):
            host.request("upload", {}, timeout_seconds=60, body=body())
        assert guest.wait_for(Kind.END, 60) == [b"the source failed: [Errno 5] Input/output error"]
        assert guest.wait_for(Kind.CANCEL, 60) == [b""]


# --- deadlines -------------------------------------------------------------------------------------------------------------


def test_silence_is_reported_at_the_deadline_and_the_request_cancelled() -> None:
    with talk(silent) as (host, guest):
        started = time.monotonic()
        fails(host, "no_answer", "within 0.3 seconds", timeout_seconds=0.2)
        assert 0.3 <= time.monotonic() - started < 30
        assert guest.wait_for(Kind.CANCEL, 60)


def test_an_answer_that_comes_too_late_is_no_answer_to_another_request() -> None:
    asked: list[GuestRequest] = []

    def script(guest: ScriptedGuest, request: GuestRequest) -> None:
        asked.append(request)
        if len(asked) == 2:
            guest.frame(Kind.PART, asked[0].channel, b"late")
            guest.frame(Kind.DATA, asked[0].channel, b"late")
            guest.reply(asked[0], "late")
            guest.reply(request, "in time")

    with talk(script) as (host, _):
        fails(host, "no_answer", timeout_seconds=0.0)
        assert host.request("read", {}, timeout_seconds=60)[0]["result"] == "in time"


def test_a_request_that_is_queued_waits_without_a_deadline_until_it_is_started() -> None:
    asked: queue.SimpleQueue[GuestRequest] = queue.SimpleQueue()
    with talk(lambda _, request: asked.put(request)) as (host, guest), ThreadPoolExecutor(1) as pool:
        answer = pool.submit(host.request, "run", {}, timeout_seconds=60)
        request = asked.get(timeout=60)
        assert left(host) is not None
        guest.notice(request, "queued")
        assert eventually(lambda: left(host) is None)
        guest.notice(request, "started")
        assert eventually(lambda: left(host) is not None)
        assert 0 < (left(host) or 0) <= 60 + GRACE
        guest.reply(request, "done")
        assert answer.result(60)[0]["result"] == "done"


def test_a_request_that_was_queued_and_is_started_has_its_deadline() -> None:
    def script(guest: ScriptedGuest, request: GuestRequest) -> None:
        guest.notice(request, "queued")
        guest.notice(request, "started")

    with talk(script) as (host, _):
        fails(host, "no_answer", "within 0.2 seconds", timeout_seconds=0.1)


def left(host: Transport) -> float | None:
    """How long the one request under way may wait; None without a deadline."""
    (pending,) = host._pending.values()
    return None if pending.deadline is None else pending.deadline - time.monotonic()


def test_a_long_answer_counts_as_a_sign_of_life() -> None:
    message = wire.pack_message({"result": "x" * 60})
    asked: queue.SimpleQueue[GuestRequest] = queue.SimpleQueue()
    with talk(lambda _, request: asked.put(request)) as (host, guest), ThreadPoolExecutor(1) as pool:
        answer = pool.submit(host.request, "read", {}, timeout_seconds=60)
        channel = asked.get(timeout=60).channel
        (pending,) = host._pending.values()
        for n in range(8):
            due = pending.deadline
            guest.frame(Kind.PART, channel, message[n * 8 : n * 8 + 8])
            assert eventually(lambda due=due: pending.deadline > due)  # type: ignore[misc]
        guest.frame(Kind.REPLY, channel, message[64:])
        assert answer.result(60)[0]["result"] == "x" * 60


def test_silence_is_broken_by_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "PING_SHARE", 0.05 / 120)
    with talk(silent) as (_, guest):
        assert guest.wait_for(Kind.PING, 60)


# --- the end of the pipe ---------------------------------------------------------------------------------------------------


def test_a_pipe_can_end_when_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """``close`` joined a thread that had never been started: from Python 3.12 on none can be when the interpreter ends."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with talk(echo) as (host, guest):
        monkeypatch.setattr(threading.Thread, "start", refuse)
        guest.hang_up()
        fails(host, "pipe_broken")
        host.close()


def test_the_end_of_the_pipe_wakes_everybody() -> None:
    began = threading.Barrier(11)

    def script(guest: ScriptedGuest, request: GuestRequest) -> None:
        if request.args["last"]:
            guest.hang_up()

    with talk(script) as (host, _), ThreadPoolExecutor(10) as pool:

        def wait(_: int) -> str:
            began.wait()
            with pytest.raises(SandboxUnavailableError) as caught:
                host.request("run", {"last": False}, timeout_seconds=60)
            return caught.value.reason

        waiting = pool.map(wait, range(10))
        began.wait()
        started = time.monotonic()
        fails_at_once = pytest.raises(SandboxUnavailableError)
        with fails_at_once:
            host.request("run", {"last": True}, timeout_seconds=60)
        assert list(waiting) == ["pipe_broken"] * 10
        assert time.monotonic() - started < 30  # and not 60, the deadline of each
        fails(host, "pipe_broken", "Explained")


def test_closing_wakes_everybody() -> None:
    with talk(silent) as (host, _):
        threading.Timer(0.1, host.close).start()
        fails(host, "closed", timeout_seconds=60)
        fails(host, "closed")
        host.close()


def test_a_body_under_way_is_woken_too() -> None:
    with talk(lambda guest, request: guest.hang_up()) as (host, _):
        fails(host, "pipe_broken", body=iter(lambda: bytes(100_000), None), timeout_seconds=60)


def test_a_guest_of_another_protocol_is_refused() -> None:
    with pytest.raises(SandboxUnavailableError, match="protocol 99"), talk(silent, {"protocol": 99}):
        pass


def test_a_guest_that_does_not_greet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "GRACE_SECONDS", GRACE)
    with ScriptedGuest(silent) as guest:
        guest.frame = lambda *_, **__: None  # type: ignore[method-assign]
        host = Transport(guest.stream, explain)
        with pytest.raises(SandboxUnavailableError) as caught:
            host.open({}, 0.1)
        assert caught.value.reason == "no_answer"
        host.close()
