"""Ctrl-C in a call leaves the sandbox alive and usable (trials, D18)."""

from __future__ import annotations

import _weakrefset
import asyncio
import contextlib
import gc
import itertools
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from sandbox import LocalEnvironment
from sandbox.docker.container.stream import AttachStream
from sandbox.docker.engine.events import EngineEvents
from sandbox.errors import SandboxError, SandboxUnavailableError
from sandbox.guest.protocol import wire
from sandbox.guest.protocol.wire import Kind
from sandbox.interrupts import Shield, interrupt_on_termination, reraise_interrupts
from sandbox.local import ProcessStream
from sandbox.network.forward import Forward
from sandbox.network.streams import Streams
from sandbox.pipe.feeding import Feeder
from sandbox.pipe.incoming.reader import pipe_reader
from sandbox.pipe.pending_request import PendingRequest
from sandbox.pipe.sender import FrameSender
from sandbox.pipe.transport import Transport
from sandbox.testing.scripted_guest import GuestRequest, ScriptedGuest


@pytest.fixture(autouse=True)
def _default_sigint() -> Iterator[None]:
    """Started in the background (``nohup make test &``) SIGINT is ignored, and no handler is installed."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_shield_puts_a_signal_off_until_its_end() -> None:
    done: list[bool] = []

    def block() -> None:
        with Shield() as shield:
            signal.raise_signal(signal.SIGINT)
            done.append(shield.struck)

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == [True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_shield_in_a_shield_hands_the_signal_on() -> None:
    done: list[str] = []

    def block() -> None:
        with Shield():
            with Shield():
                signal.raise_signal(signal.SIGINT)
            done.append("after the inner one")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done


def test_every_handler_is_called_though_one_of_them_raises() -> None:
    called: list[int] = []

    def block() -> None:
        with Shield():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda number, _frame: called.append(number))
    try:
        with pytest.raises(KeyboardInterrupt):
            block()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert called == [signal.SIGTERM]


def test_a_signal_between_writing_and_noting_it_does_not_break_the_pipe() -> None:
    """The bytes were sent twice before, and the guest ended over it."""

    class Interrupted:
        """Takes a few bytes at a time; a signal comes behind each."""

        def __init__(self) -> None:
            self.taken = b""

        def send(self, data: memoryview, _timeout_seconds: float) -> int:
            self.taken += bytes(data[:10])
            signal.raise_signal(signal.SIGINT)
            return min(10, len(data))

        def has_room(self, _timeout_seconds: float) -> bool:
            return True

    sink = Interrupted()
    sender = FrameSender(sink, b"12345678")
    for number in range(5):
        with pytest.raises(KeyboardInterrupt):
            sender.send(Kind.PING, number, b"payload", time.monotonic() + 5)
    assert [(kind, channel, bytes(payload)) for kind, channel, payload in wire.Decoder(b"12345678").feed(sink.taken)] == [
        (Kind.PING, number, b"payload") for number in range(5)
    ]


def _fill(sender: FrameSender, struck_after: float) -> None:
    threading.Timer(struck_after, os.kill, (os.getpid(), signal.SIGINT)).start()
    while True:
        sender.send(Kind.DATA, 1, bytes(wire.MAX_PAYLOAD), time.monotonic() + 60)


def test_ctrl_c_is_heard_while_the_pipe_is_full() -> None:
    near, far = socket.socketpair()
    with near, far:
        sender = FrameSender(AttachStream(near), b"12345678")
        with pytest.raises(KeyboardInterrupt):
            _fill(sender, 0.2)


def test_a_signal_whose_handler_returns_does_not_fail_a_send_into_a_full_pipe() -> None:
    """The sandbox was reported as silent before its time: ``no_answer`` after any SIGALRM or SIGTERM of the application."""
    near, far = socket.socketpair()
    taken: list[int] = []

    def drain(_number: int, _frame: object) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                taken.append(len(far.recv(1 << 20, socket.MSG_DONTWAIT)))

    with near, far:
        sender = FrameSender(AttachStream(near), b"12345678")
        while sender.send(Kind.DATA, 1, bytes(wire.MAX_PAYLOAD), time.monotonic()):
            pass
        signal.signal(signal.SIGINT, drain)
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        assert sender.send(Kind.PING, 2, b"", time.monotonic() + 60)
    assert taken


class _StruckWhenTaken(threading.Condition):
    """A signal comes when the lock was just taken: the moment at which a Ctrl-C leaves an Event's lock taken for good."""

    def __enter__(self) -> bool:
        entered = super().__enter__()
        signal.raise_signal(signal.SIGINT)
        return entered


def test_a_second_ctrl_c_while_a_send_is_left_does_not_stop_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was counted as waiting to be sent stayed so, and all connections let it go first for ever."""

    class Full:
        def send(self, _data: memoryview, _timeout_seconds: float) -> int:
            return 0

        def has_room(self, _timeout_seconds: float) -> bool:
            signal.raise_signal(signal.SIGINT)
            return True

    sender = FrameSender(Full(), b"12345678")
    calm = sender._calm
    entered = itertools.count()

    class StruckOnTheWayOut:
        def __enter__(self) -> bool:
            if next(entered) == 1:
                signal.raise_signal(signal.SIGINT)
            return calm.__enter__()

        def __exit__(self, *exc: object) -> None:
            calm.release()

        def notify_all(self) -> None:
            calm.notify_all()

    monkeypatch.setattr(sender, "_calm", StruckOnTheWayOut())
    with pytest.raises(KeyboardInterrupt):
        sender.send(Kind.PING, 1, b"", time.monotonic() + 60)
    assert sender._first == 0


def test_a_handler_that_another_handler_installs_while_signals_are_let_in_stays() -> None:
    heard: list[str] = []

    def first(_number: int, _frame: object) -> None:
        heard.append("first")
        signal.signal(signal.SIGINT, second)

    def second(_number: int, _frame: object) -> None:
        heard.append("second")

    signal.signal(signal.SIGINT, first)
    with Shield() as shield:
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
            assert shield.struck
            shield.deliver()
    assert heard == ["first", "second"]
    assert signal.getsignal(signal.SIGINT) is second


def test_ctrl_c_while_connections_are_closed_ends_their_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop was forgotten before it was stopped: what listened did so until the process ended."""
    streams = Streams(lambda *_: None, lambda *_: asyncio.sleep(0))
    streams.in_loop(lambda: None)
    loop, thread = streams._loop, streams._thread
    assert loop is not None
    assert thread is not None
    wake = loop.call_soon_threadsafe

    def struck(*args: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        wake(*args)

    monkeypatch.setattr(loop, "call_soon_threadsafe", struck)
    with pytest.raises(KeyboardInterrupt):
        streams.close()
    thread.join(60)
    assert not thread.is_alive()


def test_after_ctrl_c_in_close_another_close_ends_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were forgotten first, and what kept the states of the workspace was not closed at all."""
    closed: list[str] = []

    def struck() -> None:
        raise KeyboardInterrupt

    env = LocalEnvironment().start()
    egress = env._network.egress()
    assert egress is not None
    streams = egress.streams
    streams.in_loop(lambda: None)
    thread = streams._thread
    assert thread is not None
    with monkeypatch.context() as patched:
        patched.setattr(streams, "close", struck)
        patched.setattr(type(env.state.history), "close", lambda _: closed.append("history"))
        with pytest.raises(KeyboardInterrupt):
            env.close()
    env.close()
    thread.join(60)
    assert not thread.is_alive()
    assert closed == ["history"]


def test_ctrl_c_in_a_pause_or_close_does_not_stop_connections_for_good() -> None:
    """The thread of the sandbox's connections, and then ``resume`` and ``close``, waited for a lock that nobody held."""
    streams = Streams(lambda *_: None, lambda *_: asyncio.sleep(0))
    for call in (streams.pause_sending, streams.resume_sending, streams.close):
        lock = threading.Lock()
        streams._flowing._cond = _StruckWhenTaken(lock)  # type: ignore[attr-defined]
        with pytest.raises(KeyboardInterrupt):
            call()
        assert not lock.locked()
    assert streams._flowing.is_set()


def test_ctrl_c_while_the_engines_events_are_asked_leaves_them_to_others() -> None:
    """No end of a sandbox was explained after it: the thread that would have done so waited for ever."""
    events = EngineEvents.__new__(EngineEvents)
    events._fates, events.alive, events._changed = OrderedDict(), True, _StruckWhenTaken()
    with pytest.raises(KeyboardInterrupt):
        events.fate("a container", 0)
    found: list[bool] = []

    def ask() -> None:
        found.append(events._changed.acquire(blocking=False))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert found == [True]


def test_ctrl_c_while_the_loop_of_connections_is_woken_does_not_leave_it_asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """In ``forward``, or the end of one: no connection of the sandbox went on after it."""
    streams = Streams(lambda *_: None, lambda *_: asyncio.sleep(0))
    done: queue.SimpleQueue[str] = queue.SimpleQueue()
    try:
        streams.in_loop(lambda: done.put("first"))
        assert done.get(timeout=60) == "first"
        loop = streams._loop
        assert loop is not None
        wake = loop.call_soon_threadsafe

        def struck(*args: Any) -> None:
            signal.raise_signal(signal.SIGINT)
            wake(*args)

        with monkeypatch.context() as patched:
            patched.setattr(loop, "call_soon_threadsafe", struck)
            with pytest.raises(KeyboardInterrupt):
                streams.in_loop(lambda: done.put("struck"))
        streams.in_loop(lambda: done.put("next"))
        assert [done.get(timeout=60), done.get(timeout=60)] == ["struck", "next"]
    finally:
        streams.close()


def assert_listened_no_more(forward: Forward) -> None:
    """The server of a port came to be, and does not serve any more; waits for both."""
    until = time.monotonic() + 60
    while (server := forward._server) is None and time.monotonic() < until:
        time.sleep(0.001)
    while server is not None and server.is_serving() and time.monotonic() < until:
        time.sleep(0.001)
    assert server is not None
    assert not server.is_serving()


def test_ctrl_c_while_a_port_is_forwarded_leaves_nothing_that_listens() -> None:
    streams = Streams(lambda *_: None, lambda *_: asyncio.sleep(0))
    forward = Forward(streams, lambda: 1, 80)
    held: queue.SimpleQueue[None] = queue.SimpleQueue()

    def strike() -> None:
        until = time.monotonic() + 60
        while not streams._calls and time.monotonic() < until:  # the loop is busy, and asked to listen
            time.sleep(0.001)
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    def opened() -> None:
        threading.Thread(target=strike).start()
        forward.open()

    try:
        streams.in_loop(lambda: held.get(timeout=60))
        with pytest.raises(KeyboardInterrupt):
            opened()
        held.put(None)
        assert_listened_no_more(forward)
        assert not streams.servers
    finally:
        streams.close()


@pytest.mark.parametrize("rounds", range(8))
def test_a_port_that_is_forwarded_while_the_sandbox_closes_is_not_left_listening(rounds: int) -> None:
    """It listened for as long as its Forward was held, and took connections that nobody served."""
    streams = Streams(lambda *_: None, lambda *_: asyncio.sleep(0))
    held: queue.SimpleQueue[None] = queue.SimpleQueue()
    streams.in_loop(lambda: held.get(timeout=60))
    thread = streams._thread
    assert thread is not None
    forward = Forward(streams, lambda: 1, 80)

    def opening() -> None:
        with contextlib.suppress(SandboxError):
            forward.open()

    async def close() -> None:
        for _ in range(rounds):
            await asyncio.sleep(0)
        streams.close()

    opener = threading.Thread(target=opening)
    opener.start()
    until = time.monotonic() + 60
    while not streams._calls and time.monotonic() < until:
        time.sleep(0.001)
    streams.spawn(close)
    held.put(None)
    opener.join(60)
    thread.join(60)
    assert not opener.is_alive()
    assert forward._server is None or not forward._server.sockets


def test_a_port_that_is_not_forwarded_in_time_listens_no_more_and_the_sandbox_is_not_called_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sandbox.network.forward.START_SECONDS", 0.1)
    streams = Streams(lambda *_: None, lambda *_: asyncio.sleep(0))
    forward = Forward(streams, lambda: 1, 80)
    held: queue.SimpleQueue[None] = queue.SimpleQueue()
    try:
        streams.in_loop(lambda: held.get(timeout=60))
        with pytest.raises(SandboxUnavailableError, match="stood still"):
            forward.open()
        held.put(None)
        assert_listened_no_more(forward)
        assert not streams.servers
    finally:
        streams.close()


def test_ctrl_c_while_a_source_begins_to_be_read_ends_its_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source was read on, and its thread waited for ever for room that a cancelled command does not give."""
    start = threading.Thread.start

    def struck(thread: threading.Thread) -> None:
        start(thread)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(threading.Thread, "start", struck)
    pending = PendingRequest(10, 1000, None, outgoing=wire.SendWindow(0))

    feeder = Feeder(lambda *_frame: None, pending, itertools.repeat(b"x"))
    with pytest.raises(KeyboardInterrupt), feeder:
        pass
    for thread in threading.enumerate():
        if thread.name == "gamebox-stdin":
            thread.join(60)
            assert not thread.is_alive()


def _first_cancel(transport: Transport, monkeypatch: pytest.MonkeyPatch, happens: Callable[[], bool]) -> None:
    """``happens`` instead of the first CANCEL that ``transport`` sends."""
    send, cancels = transport.sender.send, itertools.count()

    def instead(kind: int, *frame: Any) -> bool:
        return happens() if kind == Kind.CANCEL and next(cancels) == 0 else send(kind, *frame)

    monkeypatch.setattr(transport.sender, "send", instead)


def _strike() -> bool:
    signal.raise_signal(signal.SIGINT)
    return True


@pytest.mark.parametrize("happens", [_strike, lambda: False], ids=["Ctrl-C again", "the pipe is full"])
def test_a_request_that_was_given_up_is_cancelled_before_the_next(
    happens: Callable[[], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """D18: a command that waited for input went on after a second Ctrl-C, and the next one of its session waited for ever."""
    heard: list[list[tuple[int, int, bytes]]] = []

    def answer(guest: ScriptedGuest, request: GuestRequest) -> None:
        if request.operation == "second":
            heard.append(list(guest.heard))
            guest.reply(request)
        else:
            os.kill(os.getpid(), signal.SIGINT)

    with ScriptedGuest(answer) as guest:
        transport = Transport(guest.stream, SandboxUnavailableError)
        transport.open({}, 60)
        _first_cancel(transport, monkeypatch, happens)
        with pytest.raises(KeyboardInterrupt):
            transport.request("first", {}, timeout_seconds=60)
        for _ in range(2):
            transport.request("second", {}, timeout_seconds=60)
        transport.close()
    assert heard == [[(Kind.CANCEL, 1, b"")]] * 2


def test_a_second_ctrl_c_at_any_moment_leaves_no_request_without_its_cancel() -> None:
    """D18: struck where the function that notes it begins, a request was forgotten; its command waited for input for ever."""
    moments, struck, lost = 0, False, False

    def begin(number: int, frame: FrameType | None) -> None:
        nonlocal struck
        struck = True
        signal.default_int_handler(number, frame)

    def strike_at_last(frame: FrameType, event: str, _arg: object) -> None:
        nonlocal moments
        swallowed = frame.f_code.co_filename == _weakrefset.__file__  # what is raised there is lost
        if struck and not swallowed and event in ("call", "c_return"):  # where the interpreter looks for signals
            moments -= 1
            if moments == 0:
                signal.raise_signal(signal.SIGINT)

    def answer(guest: ScriptedGuest, request: GuestRequest) -> None:
        if request.operation == "second":
            guest.reply(request, {"cancelled": [channel for kind, channel, _ in guest.heard if kind == Kind.CANCEL]})
        else:
            os.kill(os.getpid(), signal.SIGINT)

    def profiled_request(transport: Transport) -> None:
        nonlocal lost
        gc.disable()  # nor may it come while garbage is collected
        sys.setprofile(strike_at_last)
        try:
            transport.request("first", {}, timeout_seconds=60)
        finally:
            lost = sys.getprofile() is None  # it has raised
            sys.setprofile(None)
            gc.enable()

    signal.signal(signal.SIGINT, begin)
    with ScriptedGuest(answer) as guest:
        transport = Transport(guest.stream, SandboxUnavailableError)
        transport.open({}, 60)
        moment = 1
        while moments <= 0 or lost:  # else the request was over before
            moments, struck, lost = moment, False, False
            with pytest.raises(KeyboardInterrupt):
                profiled_request(transport)
            first = transport._channel
            fields, _ = transport.request("second", {}, timeout_seconds=60)
            assert first in fields["result"]["cancelled"], moment
            if moments <= 0:  # else the first signal was handled in the profile function, which is not called any more then
                moment += 1
        transport.close()
    assert moment > 30


_SWEEP = """
import contextlib, signal, sys
from sandbox.errors import SandboxUnavailableError
from sandbox.guest.protocol.wire import Kind
from sandbox.testing.scripted_guest import ScriptedGuest
from sandbox.pipe.transport import Transport

def answer(guest, request):
    guest.frame(Kind.DATA, request.channel, b"some output")
    guest.reply(request, {"n": request.args["n"]})

signal.signal(signal.SIGALRM, signal.default_int_handler)
strikes = 0
with ScriptedGuest(answer) as guest:
    transport = Transport(guest.stream, SandboxUnavailableError)
    transport.open({}, 60)

    def request(n):
        body = (b"a piece", b"another")
        return transport.request("upload", {"n": n}, timeout_seconds=60, body=body, sink=lambda _: None)

    for at in range(1, 3000):
        try:
            signal.setitimer(signal.ITIMER_REAL, at % 750 * 1e-6 + 1e-6)
            request(0)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            strikes += 1
        if at % 10 == 0:
            with contextlib.suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0)
            assert request(at)[0]["result"] == {"n": at}, at
    left = len(transport._pending)
    transport.close()
print(strikes, left)
"""


# A child that hangs ends itself and tells where each of its threads stands.
_CHILD_SECONDS = 100
_TELLING = f"import faulthandler; faulthandler.dump_traceback_later({_CHILD_SECONDS}, exit=True)\n"


def _ended(script: str, *args: str) -> list[int]:
    """The numbers that ``script`` prints, run by an interpreter of its own."""
    ended = subprocess.run(
        [sys.executable, "-c", _TELLING + script, *args], capture_output=True, text=True, timeout=_CHILD_SECONDS + 20, check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    return [int(number) for number in ended.stdout.split()]


def test_a_signal_at_any_moment_of_a_request_leaves_the_pipe_whole() -> None:
    """Strikes a microsecond later each time; the request has a body and a stream back."""
    strikes, left = _ended(_SWEEP)
    assert strikes > 300
    assert left < strikes / 10  # what is forgotten about a request that was given up is small


# No lock is shared with the thread that strikes: a Ctrl-C can leave an Event's lock taken for good. What comes too late for its
# call is dropped by the handler, so that it cannot end the script itself.
_ROUGH = """
import os, random, signal, sys, threading, time
from sandbox import LocalEnvironment

sys.setswitchinterval(1e-5)
seed, wanted = int(sys.argv[1]), int(sys.argv[2])
dice, gaps = random.Random(seed), random.Random(seed + 1)
armed, over, strikes = False, False, 0

def struck(number, frame):
    if armed:
        signal.default_int_handler(number, frame)

def strike():
    while not over:
        time.sleep(gaps.expovariate(300))
        if armed:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, struck)
with LocalEnvironment() as env:
    env.write("kept.txt", "still here").unwrap()
    folder = os.path.join(env.workspace, "..", "up")
    os.mkdir(folder)
    for n in range(30):
        with open(os.path.join(folder, str(n)), "wb") as file:
            file.write(bytes(3000))
    threading.Thread(target=strike, daemon=True).start()
    calls = [
        lambda: env.run("echo x"),
        lambda: env.run("cat | wc -c", stdin="y" * 200_000),
        lambda: env.run("cat | wc -c", stdin=(b"y" * 5000 for _ in range(20))),
        lambda: env.run("sleep 0.02; echo z", on_output=lambda *_: None),
        lambda: env.search("here"),
        lambda: env.write("other.txt", "z" * 300_000),
        lambda: env.read("kept.txt"),
        lambda: env.upload(folder, f"copy{dice.random()}"),
        lambda: env.download("other.txt"),
        lambda: env.usage(),
    ]
    while strikes < wanted:
        call = dice.choice(calls)
        try:
            try:
                armed = True
                call()
            finally:
                armed = False
        except KeyboardInterrupt:
            armed = False
            strikes += 1
        assert env.read("kept.txt").unwrap().content == "still here"
    over = True
    last = env.run("cat kept.txt").unwrap()
    assert last.stdout == "still here", last
    while any(command.running for command in env.processes().unwrap().commands):
        time.sleep(0.01)  # they end by themselves, too
    print(strikes)
"""


def test_many_signals_at_random_moments_leave_the_sandbox_alive() -> None:
    """D18: 1 to 3 of 25 lost the sandbox with all its files."""
    assert _ended(_ROUGH, "7", "150") == [150]


def test_a_start_that_fails_leaves_no_reader() -> None:
    """After a Ctrl-C in ``start`` it read on where a descriptor of that number came next: in the pipe of another sandbox."""
    near, far = socket.socketpair()
    with near, far:
        transport = Transport(AttachStream(near), lambda *_: SandboxUnavailableError("pipe_broken", "It is gone."))
        with pytest.raises(SandboxUnavailableError):
            transport.open({}, 0.01)
        assert transport._reading not in pipe_reader()._pipes


def test_a_descriptor_is_not_closed_while_it_is_read() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        stream = ProcessStream(process)
        reader = threading.Thread(target=stream.receive, args=(60,))
        reader.start()
        while not stream._reading.locked():
            time.sleep(0.001)
        stream.release()
        os.fstat(stream._out)
        stream.close()  # cat ends, and what is read with it
        reader.join(60)
        assert process.stdout.closed
        assert stream.receive(60) == b""


# --- Ctrl-C in a library that drops it: UX 6 ------------------------------------------------------------------
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("made_of_it", [None, OSError("the library's own")])
def test_ux6_what_a_library_swallows_is_raised_at_the_end(number: signal.Signals, made_of_it: Exception | None) -> None:
    done: list[str] = []

    def library() -> None:
        for _ in range(2):  # a second Ctrl-C raises again
            try:
                signal.raise_signal(number)
            except KeyboardInterrupt:
                done.append("swallowed")
        if made_of_it is not None:
            raise made_of_it

    with pytest.raises(KeyboardInterrupt) as caught, interrupt_on_termination(), reraise_interrupts():
        library()
    assert done == ["swallowed"] * 2
    assert caught.value.__cause__ is made_of_it
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ux6_without_a_signal_nothing_changes() -> None:
    with reraise_interrupts():
        pass
    with pytest.raises(OSError, match="own"), reraise_interrupts():
        raise OSError("own")
    ended: list[bool] = []

    def elsewhere() -> None:
        with reraise_interrupts():
            ended.append(True)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert ended
