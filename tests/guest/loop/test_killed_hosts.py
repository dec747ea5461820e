"""Hosts that go past the engine to a kept guest, and are killed at any byte, replaced, or come back too late."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.docker.container.stream import AttachStream
from sandbox.errors import SandboxUnavailableError
from sandbox.guest.protocol.reattach import NO_NONCE, OWNER_DEAD, TAKE_OVER, Call, time_of_call
from sandbox.pipe import reattaching
from sandbox.pipe.incoming.reader import pipe_reader
from sandbox.pipe.reattaching import NoAnswerError
from tests.guest.doomed_hosts import DoomedHosts
from tests.guest.switchboard import WHERE, Host, Switchboard

STEP = 12  # every byte takes two minutes
MOST_BYTES = 5000


@pytest.fixture
def board() -> Iterator[Switchboard]:
    with Switchboard(framed=True) as made:
        yield made


@pytest.fixture
def doomed(board: Switchboard) -> Iterator[DoomedHosts]:
    with DoomedHosts(board) as made:
        yield made


@pytest.fixture
def one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host calls once, however late the answer is: a second answer would cut what the first one has begun."""
    monkeypatch.setattr(reattaching, "CALL_AGAIN_SECONDS", 60.0)


def eventually(holds: object, seconds: float = 20.0) -> bool:
    until = time.monotonic() + seconds
    while not holds():  # type: ignore[operator]
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def ran(board: Switchboard) -> list[str]:
    return (Path(board._folder.name) / "ran").read_text().splitlines()


def goes_past(host: Host) -> bool:
    assert host.run("true", args={"session": None})[0]["result"]["exit_code"] == 0
    stream: object = host._reading.stream
    return isinstance(stream, AttachStream) and stream._input is not None and stream._output is not None


def opened(board: Switchboard, what: str) -> int:
    """How many descriptors the guest has of that kind: "pipe:", or of that name."""
    folder, count = f"/proc/{board.guest.pid}/fd", 0
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):  # closed meanwhile
            count += what in os.readlink(f"{folder}/{name}")
    return count


@pytest.mark.usefixtures("one_call")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("least", range(1, STEP + 1, 6))
def test_killed_after_any_byte_it_leaves_a_guest_that_does_each_request_once(
    board: Switchboard, doomed: DoomedHosts, least: int
) -> None:
    first = board.first_host()
    assert goes_past(first)
    first.close(detach=True)
    for count in range(least, MOST_BYTES, STEP):
        command = f"echo {count} >> ran; echo {count}"
        once: dict[str, Any] = {"request_id": f"id{count}", "args": {"session": None}}
        lived = doomed.live(command, up=count, **once)
        later = board.another_host(flags=OWNER_DEAD)
        assert later.run(command, **once)[1] == f"{count}\n".encode()
        assert later.resumed == 0
        later.close(detach=True)
        if lived:
            break
    assert count > 500, "a request has more bytes"
    assert ran(board) == [str(n) for n in range(least, count + 1, STEP)]


@pytest.mark.parametrize("down", [1, 24, 5000, 100_000, 3_000_000])
def test_killed_in_the_middle_of_an_answer_it_blocks_nothing(
    board: Switchboard, doomed: DoomedHosts, down: int
) -> None:
    """Nobody attaches: the guest notices by itself, and the command whose output was being watched goes on."""
    board.first_host().close(detach=True)
    before = opened(board, "pipe:")
    assert not doomed.live("seq 2000000; echo end >> ran", down=down, watched=True, args={"session": None})
    assert eventually(lambda: (Path(board._folder.name) / "ran").exists())
    assert eventually(lambda: opened(board, "pipe:") <= before), "its pipes stay"
    later = board.another_host(where=b"another1")  # which knows nothing of the host before
    big = later.run("seq 100000", args={"session": None})[1]
    assert big == b"".join(b"%d\n" % n for n in range(1, 100_001))
    assert later.resumed == 0
    later.close()


def test_killed_in_the_middle_of_a_download_it_blocks_no_worker(board: Switchboard, doomed: DoomedHosts) -> None:
    board.first_host().close(detach=True)
    (Path(board._folder.name) / "big").write_bytes(bytes(20 << 20))
    for down in (1, 100_000, 5_000_000):
        assert not doomed.live(down=down, download="big")
    assert eventually(lambda: not opened(board, "/big")), "a worker waits for a dead host to read on"


def test_its_whole_answer_is_asked_for_again_by_the_next(board: Switchboard, doomed: DoomedHosts) -> None:
    board.first_host().close(detach=True)
    command = "echo x >> ran; seq 100000"
    once: dict[str, Any] = {"request_id": "once", "args": {"session": None}}
    for down in (1, 30, 70_000, 300_000):
        assert not doomed.live(command, down=down, **once)
    later = board.another_host()
    assert later.run(command, **once)[1].endswith(b"\n100000\n")
    assert ran(board) == ["x"]
    later.close()


@pytest.mark.usefixtures("one_call")
def test_the_later_of_two_hosts_wins_while_the_former_sends(board: Switchboard) -> None:
    former = board.first_host()
    assert goes_past(former)
    reasons: list[str] = []

    def send() -> None:
        try:
            former.run("cat > /dev/null", feed=(bytes(65536) for _ in range(1 << 20)), timeout_seconds=60)
        except SandboxUnavailableError as error:
            reasons.append(error.reason)

    sending = threading.Thread(target=send)
    sending.start()
    time.sleep(0.2)
    later = board.another_host(flags=TAKE_OVER)
    for n in range(20):
        assert later.run(f"echo {n}", args={"session": None})[1] == f"{n}\n".encode()
    sending.join(60)
    assert reasons == ["taken_over"]
    with pytest.raises(SandboxUnavailableError) as caught:
        former.run("true")
    assert caught.value.reason == "taken_over"
    assert former.resumed == later.resumed == 0
    former.close(detach=True)
    assert goes_past(later), "what the former says at its end is no harm"
    assert later.resumed == 0
    later.close()


@pytest.mark.usefixtures("one_call")
def test_a_call_that_comes_late_does_not_win(board: Switchboard) -> None:
    """A host calls again while its answer is on the way: that call may be read after another host has taken over."""
    board.first_host().close(detach=True)
    nonce = secrets.token_bytes(8)
    call = Call(nonce, NO_NONCE, WHERE, time_of_call(), OWNER_DEAD | TAKE_OVER).pack(board.token)
    assert board.guest.stdin is not None
    board.guest.stdin.write(call)
    later = board.another_host(flags=TAKE_OVER)
    assert goes_past(later)
    board.guest.stdin.write(call * 3)
    assert later.run("echo mine", args={"session": None})[1] == b"mine\n"
    assert later.resumed == 0
    later.close()


@pytest.mark.parametrize("flags", [OWNER_DEAD, TAKE_OVER])
def test_the_call_of_a_killed_host_that_comes_behind_that_of_the_next_does_not_win(board: Switchboard, flags: int) -> None:
    """The engine passes on what each of two hosts has sent, in any order."""
    board.first_host().close(detach=True)
    of_killed = Call(secrets.token_bytes(8), NO_NONCE, WHERE, time_of_call(), flags).pack(board.token)
    later = board.another_host(flags=OWNER_DEAD)
    assert board.guest.stdin is not None
    board.guest.stdin.write(of_killed)
    assert goes_past(later)
    assert later.run("echo mine", args={"session": None})[1] == b"mine\n"
    assert later.resumed == 0
    later.close(detach=True)
    board.guest.stdin.write(of_killed)
    last = board.another_host()
    assert last.run("echo last")[1] == b"last\n"
    last.close()


@pytest.mark.usefixtures("one_call")
def test_a_call_that_is_repeated_late_does_not_disturb_its_host(board: Switchboard) -> None:
    """As by the door, while the engine still holds what was written to standard input."""
    board.first_host().close(detach=True)
    host = board.another_host(flags=OWNER_DEAD)
    assert goes_past(host)
    assert board.guest.stdin is not None
    board.guest.stdin.write(Call(host.nonce, NO_NONCE, WHERE, time_of_call(), TAKE_OVER).pack(board.token))
    assert goes_past(host)
    assert host.run("seq 50000", args={"session": None})[1].endswith(b"\n50000\n")
    assert host.resumed == 0
    host.close()


def test_who_lost_it_while_cut_off_does_not_get_it_back_when_the_other_has_left(
    board: Switchboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    former, may_call = board.first_host(), threading.Event()
    former.give_up_seconds = 1.0
    resume = former.resume

    def resume_late(*args: object) -> object:
        may_call.wait(60)
        return resume(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(former, "resume", resume_late)
    former._reading.stream.close()
    later = board.another_host(flags=TAKE_OVER)
    assert later.run("echo later")[1] == b"later\n"
    later.close(detach=True)
    may_call.set()
    with pytest.raises(SandboxUnavailableError):
        former.run("true")
    last = board.another_host()
    assert last.run("echo last")[1] == b"last\n"
    last.close()


def test_a_host_behind_the_engine_and_one_past_it_take_turns(board: Switchboard, monkeypatch: pytest.MonkeyPatch) -> None:
    host = board.first_host()
    for n in range(6):
        monkeypatch.setattr(Host, "goes_past", n % 2 == 1)
        host.close(detach=True)
        host = board.another_host()
        assert goes_past(host) is (n % 2 == 1)
        assert host.run("seq 50000", args={"session": None})[1].endswith(b"\n50000\n")
    host.close()


def test_the_end_of_the_engines_stream_is_not_its_end(board: Switchboard) -> None:
    host = board.first_host()
    assert goes_past(host)
    board.cut()
    assert host.run("seq 50000", args={"session": None})[1].endswith(b"\n50000\n")
    assert host.resumed == 0
    host.close(detach=True)
    assert host._reading not in pipe_reader()._pipes
    later = board.another_host()
    assert later.run("echo later")[1] == b"later\n"
    later.close()


def test_a_refused_call_is_no_harm_to_a_conversation_past_the_engine(board: Switchboard) -> None:
    host = board.first_host()
    assert goes_past(host)
    with pytest.raises(NoAnswerError):
        board.another_host(seconds=0.5)
    assert goes_past(host)
    assert host.resumed == 0
    host.close()
