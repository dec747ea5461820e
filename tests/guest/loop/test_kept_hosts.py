"""A kept guest and its hosts: cuts in the middle of anything, takeovers, the end for lack of a host."""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox import operations as op
from sandbox.errors import SandboxError, SandboxUnavailableError
from sandbox.guest.loop import host_lease as keeping
from sandbox.guest.protocol import wire
from sandbox.guest.protocol.constants import LEASE_OVER
from sandbox.guest.protocol.reattach import CALL_BYTES, NO_NONCE, OWNER_DEAD, TAKE_OVER, Call, CallFinder
from sandbox.pipe import reattaching
from sandbox.pipe.reattaching import NoAnswerError
from sandbox.pipe.watching import CancelToken, Watch
from tests.guest.switchboard import Switchboard

TOKEN = secrets.token_bytes(32)
CALL = Call(b"nonce678", b"before78", b"where678", 2**40, TAKE_OVER)


def found(pieces: list[bytes], token: bytes = TOKEN) -> list[bytes]:
    """Return what a finder yields for these reads: joined bytes, and "CALL" for calls."""
    finder, seen = CallFinder(token), list[bytes]()
    for data in pieces:
        for piece in finder.feed(data):
            if isinstance(piece, Call):
                assert (piece.nonce, piece.replaces, piece.where, piece.made_at, piece.flags) == (
                    b"nonce678",
                    b"before78",
                    b"where678",
                    2**40,
                    TAKE_OVER,
                )
                seen.append(b"CALL")
            elif seen and seen[-1] != b"CALL":
                seen[-1] += piece
            elif piece:
                seen.append(piece)
    return seen


@pytest.mark.parametrize("cut", range(CALL_BYTES + 1))
def test_a_call_is_found_wherever_a_read_ends(cut: int) -> None:
    call = CALL.pack(TOKEN)
    seen = found([b"before" + call[:cut], call[cut:] + b"behind"])
    assert b"CALL" in seen
    assert seen[-1] == b"behind"
    # fewer than 8 bytes of a token at the end of a read pass for ordinary ones: the guest starts anew at the call
    assert seen[0] == b"before" + (call[:cut] if cut < 8 else b"")


def test_a_call_in_single_bytes_and_one_that_was_cut_short() -> None:
    call = CALL.pack(TOKEN)
    assert found([bytes([b]) for b in call + b"x"])[-2:] == [b"CALL", b"x"]
    for length in (32, 40, CALL_BYTES - 1):
        assert found([call[:length] + call + b"x"])[-2:] == [b"CALL", b"x"]
        assert found([call[:length], call, b"x"])[-2:] == [b"CALL", b"x"]
    assert found([call + call]) == [b"CALL", b"CALL"]


def test_a_call_whose_last_byte_is_the_first_of_the_next_was_cut_short() -> None:
    """One token of 256 has such calls; the second one, of a host that is alive, was not found."""
    tokens = (secrets.token_bytes(32) for _ in range(100_000))
    token = next(token for token in tokens if CALL.pack(token)[-1] == token[0])
    call = CALL.pack(token)
    assert found([call[:-1] + call + b"x"], token)[-2:] == [b"CALL", b"x"]
    assert found([call[:-1], call, b"x"], token)[-2:] == [b"CALL", b"x"]


def test_ordinary_bytes_are_not_held_back() -> None:
    finder = CallFinder(TOKEN)
    for data in (b"x", TOKEN[:1], TOKEN[:7], b"y" * 1000):
        assert list(finder.feed(data)) == [data]


@pytest.fixture
def board() -> Iterator[Switchboard]:
    with Switchboard() as made:
        yield made


@pytest.fixture
def one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host calls once, however late the answer is: a second answer would cut what the first one has begun."""
    monkeypatch.setattr(reattaching, "CALL_AGAIN_SECONDS", 60.0)


def in_thread(work: Any) -> tuple[threading.Thread, list[Any]]:
    answers: list[Any] = []

    def call() -> None:
        try:
            answers.append(work())
        except SandboxError as error:
            answers.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    return thread, answers


def ran(board: Switchboard) -> int:
    """Return how many times the command of a test was carried out."""
    file = Path(board._folder.name) / "ran"
    return len(file.read_text().splitlines()) if file.exists() else 0


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert condition()


@pytest.mark.usefixtures("one_call")
@pytest.mark.parametrize("count", [1, 23, 24, 100, 5000, 300_000])
def test_output_cut_anywhere_is_asked_for_again_and_done_once(board: Switchboard, count: int) -> None:
    host = board.first_host()
    board.pass_down = count
    fields, blob = host.run("echo x >> ran; seq 200000", timeout_seconds=60)
    assert fields["result"]["exit_code"] == 0
    assert len(blob) == 1 << 20
    assert blob.endswith(b"200000\n")
    assert ran(board) == 1
    assert host.resumed == 1
    assert [n["code"] for n in fields["notices"] if n["code"] != "output_cut"] == ["reconnected"]
    assert host.run("echo on")[0].get("notices") == []
    host.close()


@pytest.mark.parametrize("count", [1, 24, 100, 262_200, 700_000])
def test_a_request_cut_anywhere_is_carried_out_once(board: Switchboard, count: int) -> None:
    host = board.first_host()
    board.pass_up = count
    stdin = b"line\n" * 200_000
    fields, _ = host.run("echo x >> ran; wc -l", blob=stdin, blob_for="stdin")
    assert fields["result"]["output_bytes"] == len(b"200000\n")
    assert ran(board) == 1
    host.close()


def test_cut_again_and_again_under_many_requests(board: Switchboard) -> None:
    host = board.first_host()
    runs = [
        in_thread(lambda n=n: host.run(f"echo x >> ran; sleep 1; echo {n}", args={"session": None})) for n in range(10)
    ]
    for _ in range(5):
        time.sleep(0.25)
        before = host.resumed
        board.cut()
        wait_until(lambda before=before: host.resumed > before and host.connected)  # type: ignore[misc]
    for thread, _ in runs:
        thread.join(60)
    assert [answers[0][1].strip() for _, answers in runs] == [str(n).encode() for n in range(10)]
    assert ran(board) == 10
    host.close()


def test_a_run_that_waits_for_its_session_is_still_in_the_queue_after_a_cut(board: Switchboard) -> None:
    host = board.first_host()
    first, one = in_thread(lambda: host.run("sleep 3; echo one", timeout_seconds=60))
    time.sleep(0.3)
    second, two = in_thread(lambda: host.run("echo two", timeout_seconds=60))
    time.sleep(0.2)
    board.cut()
    first.join(60)
    second.join(60)
    assert (one[0][1], two[0][1]) == (b"one\n", b"two\n")
    host.close()


def test_cancel_reaches_a_command_across_a_cut(board: Switchboard) -> None:
    host, token = board.first_host(), CancelToken()
    thread, answers = in_thread(lambda: host.run("sleep 600", timeout_seconds=600, watch=Watch(cancel=token)))
    time.sleep(0.3)
    board.cut()
    time.sleep(0.3)
    token.cancel()
    thread.join(60)
    assert answers[0][0]["fault"]["code"] == "cancelled"
    host.close()


def test_transfers_under_way_fail_and_can_be_repeated(board: Switchboard) -> None:
    host = board.first_host()
    board.pass_up = 600_000

    def body() -> Iterator[bytes]:
        yield from [bytes(65536)] * 32

    def upload() -> Any:
        args = {"path": "big", "kind": "file", "mode": 0o644}
        return host.request("upload", args, timeout_seconds=60, body=body())

    with pytest.raises(SandboxError) as caught:
        upload()
    assert caught.value.code == "transfer_incomplete"
    assert caught.value.retryable
    assert upload()[0]["result"]["size_bytes"] == 32 * 65536
    board.pass_down = 600_000
    with pytest.raises(SandboxError) as caught:
        host.request("download", {"path": "big"}, timeout_seconds=60, sink=lambda _: None)
    assert caught.value.code == "transfer_incomplete"
    assert host.run("true")[0]["result"]["exit_code"] == 0
    host.close()


def test_streamed_input_that_is_cut_is_not_taken_as_complete(board: Switchboard) -> None:
    """A cut in the middle of stdin: the command is stopped without an end of its input, and nothing is sent twice."""
    host = board.first_host()
    board.pass_up = 600_000
    read = 0

    def source() -> Iterator[bytes]:
        nonlocal read
        for _ in range(64):
            read += 65536
            yield bytes(65536)

    with pytest.raises(SandboxError) as caught:
        host.run("echo $$ > pid; wc -c > counted; echo whole >> ran", feed=source())
    assert (caught.value.code, caught.value.effects, caught.value.retryable) == (
        "transfer_incomplete",
        "unknown",
        False,
    )
    assert read <= 64 * 65536
    gone = "for i in $(seq 600); do kill -0 $(cat pid) 2>/dev/null || break; sleep 0.05; done; echo $i"
    assert int(host.run(gone)[1]) < 600, "the command still runs"
    assert host.run("cat counted ran 2>/dev/null; echo end")[1] == b"end\n"
    assert host.run("wc -c", feed=iter([b"abc"]))[1] == b"3\n"
    host.close()


def test_watched_output_ends_at_a_cut_and_the_command_goes_on(board: Switchboard) -> None:
    host, seen = board.first_host(), list[bytes]()
    watch = Watch(on_bytes=lambda _, data: seen.append(data))
    board.pass_down = 4_000_000
    fields, blob = host.run("seq 2000000; echo x >> ran", timeout_seconds=60, watch=watch)
    assert blob.endswith(b"2000000\n")
    assert 0 < len(b"".join(seen)) < 14_888_896
    assert {"code": "reconnected", "streamed": True}.items() <= fields["notices"][-1].items()
    assert ran(board) == 1
    host.close()


def test_a_later_host_finds_what_an_earlier_one_left(board: Switchboard) -> None:
    host = board.first_host()
    host.run("export MARK=left; cd /tmp")
    in_background = host.run("sleep 1; echo late", args={"background": True})[0]["result"]["id"]
    command = "echo x >> ran; until [ -e go ]; do sleep 0.05; done; echo fore; echo x >> ran"
    thread, answers = in_thread(lambda: host.run(command, args={"session": None}))
    wait_until(lambda: ran(board) == 1)
    host.close(detach=True)
    thread.join(60)
    assert answers[0].reason == "closed"
    (Path(board._folder.name) / "go").touch()
    wait_until(lambda: ran(board) == 2)
    later, ended = board.another_host(), dict[str, int]()

    def are_told() -> bool:
        fields, blob = later.run("echo $MARK $PWD")
        assert blob == b"left /tmp\n"
        ended.update({n["id"]: n["exit_code"] for n in fields.get("notices", ()) if n["code"] == "command_ended"})
        return len(ended) == 2

    wait_until(are_told)
    assert ended.pop(in_background) == 0
    (foreground,) = ended
    for ident, said in ((in_background, b"late\n"), (foreground, b"fore\n")):
        args = op.Logs.model_validate({"id": ident}).model_dump(mode="json")
        assert later.request("logs", args, timeout_seconds=60)[1] == said
    later.close()


@pytest.mark.usefixtures("one_call")
def test_one_host_at_a_time(board: Switchboard) -> None:
    host = board.first_host()
    with pytest.raises(NoAnswerError):
        board.another_host(seconds=0.5)
    with pytest.raises(NoAnswerError):
        board.another_host(flags=OWNER_DEAD, where=b"otherone", seconds=0.5)
    assert host.run("echo mine")[1] == b"mine\n", "a refused call is no harm to the conversation"
    assert host.resumed == 0
    taker = board.another_host(flags=TAKE_OVER)
    with pytest.raises(SandboxUnavailableError) as caught:
        host.run("echo mine")
    assert caught.value.reason == "taken_over"
    assert taker.run("echo taken")[1] == b"taken\n"
    taker.close()
    last = board.another_host(flags=OWNER_DEAD)
    assert last.run("echo last")[1] == b"last\n"
    last.close()


@pytest.mark.usefixtures("one_call")
def test_a_host_that_lost_its_sandbox_to_another_does_not_take_it_back(board: Switchboard) -> None:
    host = board.first_host()
    host.give_up_seconds = 1.0
    taker = board.another_host(flags=TAKE_OVER)
    board.attached[0].close()
    with pytest.raises(SandboxUnavailableError):
        host.run("true")
    assert taker.run("echo taken")[1] == b"taken\n"
    assert taker.resumed == 0
    taker.close()


def test_a_guest_in_the_middle_of_a_write_to_a_host_that_does_not_read(board: Switchboard) -> None:
    host = board.first_host()
    board.attached.clear()  # what the guest says is read no more
    thread, answers = in_thread(lambda: host.run("seq 300000", timeout_seconds=1))
    time.sleep(1)
    later = board.another_host(flags=TAKE_OVER)
    assert later.run("echo later")[1] == b"later\n"
    host.close()
    thread.join(60)
    assert answers[0].reason in {"closed", "no_answer"}
    later.close()


def test_nonsense_from_a_host_is_dropped_until_it_calls(board: Switchboard) -> None:
    host = board.first_host()
    for junk in (b"nonsense" * 20, secrets.token_bytes(100_000), board.token * 3):
        assert board.guest.stdin is not None
        board.guest.stdin.write(junk)
        assert host.run("echo here")[1] == b"here\n"
    host.close()


@pytest.mark.usefixtures("one_call")
@pytest.mark.parametrize("size", [1, 8, 23, 24, 60, 124])
def test_bytes_of_a_dead_host_that_arrive_late_are_skipped(board: Switchboard, size: int) -> None:
    """An engine that is busy hands them over when the next host was answered already."""
    dead = board.first_host()
    late = wire.frame(dead.nonce, 1, wire.Kind.REQUEST, 1, bytes(100))[:size]
    host = board.another_host(flags=OWNER_DEAD)
    assert board.guest.stdin is not None
    for end in (b"", host.nonce[:1], host.nonce[:7]):
        board.guest.stdin.write(late + end)
        assert host.run("echo here")[1] == b"here\n"
    assert host.resumed == 0
    host.close()
    dead.close()


def test_the_guest_ends_when_no_host_comes() -> None:
    with Switchboard(keep_seconds=3.0) as board:
        host = board.first_host()
        time.sleep(3.5)  # it pings
        assert host.run("echo there")[1] == b"there\n"
        began = time.monotonic()
        host.close(detach=True)
        assert board.guest.wait(60) == LEASE_OVER
        assert 2.0 < time.monotonic() - began < 30


def test_a_lease_waits_for_what_came_while_the_guest_was_stopped() -> None:
    with Switchboard(keep_seconds=3.0) as board:
        host = board.first_host()
        os.kill(board.guest.pid, signal.SIGSTOP)
        time.sleep(6)
        os.kill(board.guest.pid, signal.SIGCONT)
        assert host.run("echo awake")[1] == b"awake\n"
        host.close()


def test_the_time_of_a_pause_is_given_back() -> None:
    with Switchboard() as board:
        host = board.first_host()
        thread, answers = in_thread(lambda: host.run("echo x >> ran; sleep 1; echo done", timeout_seconds=2.5))
        wait_until(lambda: ran(board) == 1)
        host.pause_deadlines()
        began = time.monotonic()
        os.kill(board.guest.pid, signal.SIGSTOP)  # its commands go on, unlike those of a paused container
        time.sleep(4)
        args = {"seconds": time.monotonic() - began}
        host.request(
            "resumed", args, timeout_seconds=60, on_sent=lambda: os.kill(board.guest.pid, signal.SIGCONT)
        )
        host.resume_deadlines()
        thread.join(60)
        assert answers[0][1] == b"done\n", answers
        host.close()


def test_requests_whose_replies_are_too_large_to_store_are_not_carried_out_twice(board: Switchboard) -> None:
    host = board.first_host()
    args = {"keep_output_bytes": 20 << 20}
    board.pass_down = 300_000
    thread, answers = in_thread(lambda: host.run("echo x >> ran; head -c 20000000 /dev/zero", args=args))
    thread.join(60)
    assert answers[0][0]["fault"]["code"] == "transfer_incomplete"
    assert ran(board) == 1
    host.close()


def test_which_host_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    keeper = keeping.KeptLease(TOKEN, 3600.0, b"present8", b"this8888")

    def asks(replaces: bytes = NO_NONCE, where: bytes = b"that8888", made_at: int = 9, flags: int = 0) -> bool:
        return keeper.accepts(Call(b"newnonce", replaces, where, made_at, flags))

    assert not asks()
    assert not asks(where=b"this8888")
    assert not asks(flags=OWNER_DEAD)
    assert asks(where=b"this8888", flags=OWNER_DEAD)
    assert asks(flags=TAKE_OVER)
    assert asks(replaces=b"present8")
    now[0] += 74
    assert not asks()
    now[0] += 2
    assert asks()
    assert not asks(replaces=b"other888"), "it has lost the sandbox to another"
    next_one = Call(b"nextone8", NO_NONCE, b"this8888", 5, 0)
    keeper.accept(next_one)
    assert keeper.accepts(next_one), "its answer may be late"
    assert not keeper.accepts(next_one, answered=True), "the call is late"
    assert not keeper.accepts(Call(b"present8", NO_NONCE, b"this8888", 9, TAKE_OVER)), "it was read late"
    assert not asks()
    assert asks(where=b"this8888", flags=OWNER_DEAD)
    assert asks(where=b"this8888", flags=TAKE_OVER)
    for flags in (OWNER_DEAD, TAKE_OVER):
        assert not asks(where=b"this8888", made_at=4, flags=flags), "it was made before that of the present host"
    assert asks(made_at=4, flags=TAKE_OVER), "the clocks of two machines tell nothing"
    keeper.vacate()
    assert not asks(where=b"this8888", made_at=4)
    assert asks()
