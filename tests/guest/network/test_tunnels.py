"""Both ends of connections through the pipe, joined by real pipes: the guest's proxy and tunnels, the host's egress."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import select
import socket
import socketserver
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest

from sandbox.guest.loop.link import Link
from sandbox.guest.loop.reactor import Reactor
from sandbox.guest.network import egress as guest_egress
from sandbox.guest.network.proxy import Proxy
from sandbox.guest.network.tunnels import Growth, Tunnel, Tunnels
from sandbox.guest.protocol import wire
from sandbox.limits import Limits
from sandbox.network import dialling
from sandbox.network.allowance import Allowance
from sandbox.network.connections import Connection, ConnectionLog
from sandbox.network.egress import Egress
from sandbox.network.forward import Forward
from sandbox.network.policy import Network
from sandbox.network.relay import Relay
from sandbox.network.streams import Streams

# The proxy has one port: tests that make one must not run side by side.
pytestmark = pytest.mark.xdist_group("proxy port")
NONCE = b"12345678"
Addresses = tuple[tuple[str, int], tuple[str, int]] | None


class Ends:
    """A guest and a host in this process, with a pipe each way."""

    def __init__(self, network: Network) -> None:
        self.from_guest, out = os.pipe()
        into, self._to_guest = os.pipe()
        fcntl.fcntl(out, 1031, 1 << 20)
        self._fds = (self.from_guest, out, into, self._to_guest)
        self.reactor = Reactor()
        link = Link(self.reactor, out, NONCE)
        self.tunnels = Tunnels(self.reactor, link, self._noted)
        self.denied: list[tuple[str, int, str]] = []
        self.notices: list[dict[str, Any]] = []
        self.held: list[Callable[[], None]] | None = None  # what follows a report, where the test is to say when
        self.refusals: list[dict[str, Any]] = []
        descriptor = guest_egress.listen(0)
        assert descriptor is not None
        listener = socket.socket(fileno=descriptor)
        self.port = listener.getsockname()[1]
        self.proxy = Proxy(self.reactor, self.tunnels, self._note, listener)
        decoder = wire.Decoder(NONCE)

        def readable(_: int) -> None:
            for kind, channel, payload in decoder.feed(os.read(into, 1 << 18)):
                if kind == wire.Kind.OPEN:
                    self.tunnels.dial(channel, wire.unpack_message(payload)[0])
                else:
                    self.tunnels.frame(kind, channel, payload)

        self.reactor.watch(into, select.EPOLLIN, readable)
        self._lock = threading.Lock()
        self._sequence = itertools.count()
        self.log: list[Connection] = []
        self.egress = Egress(network, self.send, ConnectionLog(self.log.append))
        self.channels = itertools.count(1)
        self.threads = [threading.Thread(target=self.reactor.run), threading.Thread(target=self._read)]
        for thread in self.threads:
            thread.start()

    def _noted(self, ends: Addresses, notice: dict[str, Any], then: Callable[[], None]) -> None:
        """Report as the guest does, only later: nothing may reach the client before."""
        self.notices.append({**notice, "ends": ends})
        if self.held is None:
            self.reactor.after(0.0, then)
        else:
            self.held.append(then)

    def reset_once_reported(self, sock: socket.socket) -> None:
        """Check that ``sock`` is reset, and not before what is told of it was reported; set ``held`` before."""
        assert self.held is not None
        deadline = time.monotonic() + 120
        while not self.held and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not select.select([sock], [], [], 0.2)[0]
        self.reactor.hand_over(self.held[0])
        with pytest.raises(ConnectionResetError):
            sock.recv(1)

    def _note(self, _ends: Addresses, refusal: dict[str, Any], then: Callable[[], None]) -> None:
        self.denied.append((refusal["host"], refusal["port"], refusal["why"]))
        self.refusals.append(refusal)
        then()

    def send(self, kind: int, channel: int, payload: bytes | memoryview = b"", /) -> None:
        with self._lock:
            data = memoryview(wire.frame(NONCE, next(self._sequence), kind, channel, payload))
            while data:
                data = data[os.write(self._to_guest, data) :]

    def _read(self) -> None:
        decoder = wire.Decoder(NONCE)
        while data := os.read(self.from_guest, 1 << 18):
            for kind, channel, payload in decoder.feed(data):
                self.egress.streams.take(kind, channel, payload)

    def close(self) -> None:
        self.egress.streams.close()
        self.reactor.hand_over(self.reactor.stop)
        self.threads[0].join(60)
        self.proxy.close()
        os.close(self._fds[1])
        self.threads[1].join(60)
        for fd in (self._fds[0], *self._fds[2:]):
            os.close(fd)

    def connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        sock.settimeout(60)
        return sock


@contextlib.contextmanager
def ends(network: Network) -> Iterator[Ends]:
    pair = Ends(network)
    try:
        yield pair
    finally:
        pair.close()


class Server(socketserver.ThreadingTCPServer):
    """A server whose backlog has room for all simultaneous clients: the kernel cuts any others."""

    daemon_threads = True
    request_queue_size = 128


class Echo(socketserver.BaseRequestHandler):
    """A server that sends back what it receives, and a few bytes after the end."""

    def handle(self) -> None:
        while data := self.request.recv(65536):
            self.request.sendall(data)
        self.request.sendall(b"bye")


@pytest.fixture
def echo() -> Iterator[int]:
    with Server(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def everything(sock: socket.socket) -> bytes:
    found = b""
    while data := sock.recv(65536):
        found += data
    return found


def head(sock: socket.socket) -> bytes:
    found = b""
    while b"\r\n\r\n" not in found:
        data = sock.recv(1)
        assert data, found
        found += data
    return found


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_tunnel_carries_both_ways_and_its_halves_end_apart(echo: int) -> None:
    with ends(Network.allow("127.0.0.1:*")) as pair, pair.connect() as sock:
        sock.sendall(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % echo)
        assert head(sock).startswith(b"HTTP/1.1 200 ")
        sent = os.urandom(5 << 20)

        def write() -> None:
            sock.sendall(sent)
            sock.shutdown(socket.SHUT_WR)

        writer = threading.Thread(target=write)
        writer.start()
        assert everything(sock) == sent + b"bye"
        writer.join()
        deadline = time.monotonic() + 120
        while not pair.log and time.monotonic() < deadline:
            time.sleep(0.01)
        ended = pair.log[0]
        assert (ended.outcome, ended.address, ended.rule, ended.why) == ("allowed", "127.0.0.1", "127.0.0.1:*", "")
        assert (ended.sent_bytes, ended.received_bytes) == (len(sent), len(sent) + 3)


def test_a_window_grows_for_a_fast_reader_and_is_given_back(echo: int) -> None:
    with ends(Network.allow("127.0.0.1:*")) as pair, pair.connect() as sock:
        growth = pair.tunnels._growth
        sock.sendall(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % echo)
        assert head(sock).startswith(b"HTTP/1.1 200 ")

        def write() -> None:
            sock.sendall(bytes(8 << 20))
            sock.shutdown(socket.SHUT_WR)

        writer = threading.Thread(target=write)
        writer.start()
        least, got = growth._left, 0
        while data := sock.recv(1 << 16):
            least, got = min(least, growth._left), got + len(data)
        writer.join()
        assert got == (8 << 20) + 3
        most = wire.MOST_TUNNEL_WINDOW - wire.TUNNEL_WINDOW
        assert wire.GROWTH_BYTES - most <= least < wire.GROWTH_BYTES
        sock.close()
        deadline = time.monotonic() + 120
        while growth._left < wire.GROWTH_BYTES and time.monotonic() < deadline:
            time.sleep(0.01)
        assert growth._left == wire.GROWTH_BYTES


def test_what_windows_grow_by_in_all_is_bounded() -> None:
    growth = Growth()
    assert growth.take(wire.GROWTH_BYTES - 1) == wire.GROWTH_BYTES - 1
    assert growth.take(wire.TUNNEL_WINDOW) == 1
    assert growth.take(wire.TUNNEL_WINDOW) == 0
    growth.give_back(10)
    assert growth.take(wire.TUNNEL_WINDOW) == 10


def test_the_client_learns_the_reason_of_a_refusal(echo: int) -> None:
    with ends(Network.allow("example.com")) as pair:
        with pair.connect() as sock:
            sock.sendall(b"CONNECT evil.test:443 HTTP/1.1\r\n\r\n")
            answer = everything(sock)
        assert answer.startswith(b"HTTP/1.1 403 evil.test:443 is refused by the sandbox: no rule opens it\r\n")
        with pair.connect() as sock:
            sock.sendall(b"\x05\x01\0")
            assert sock.recv(2) == b"\x05\0"
            sock.sendall(b"\x05\x01\0\x01\x7f\0\0\x01" + echo.to_bytes(2, "big"))
            assert everything(sock)[:2] == b"\x05\x02"
        assert pair.denied == [("evil.test", 443, "no rule opens it"), ("127.0.0.1", echo, "no rule opens it")]
        assert [one.outcome for one in pair.log] == ["denied", "denied"]


def test_the_kind_of_a_refusal_goes_with_it() -> None:
    rules = Network.allow("a.test", "b.test").without("b.test")
    asked = [("evil.test", rules), ("10.0.0.5", rules.with_rules("*")), ("b.test", rules), ("db", rules)]
    with ends(rules) as pair:
        pair.egress._services = {("db", 5432): None}  # type: ignore[dict-item]
        for host, network in asked:
            pair.egress.change(network)
            with pair.connect() as sock:
                sock.sendall(f"CONNECT {host}:443 HTTP/1.1\r\n\r\n".encode())
                everything(sock)
        assert [(one["host"], one["kind"], one["about"]) for one in pair.refusals] == [
            ("evil.test", "no_rule", ""),
            ("10.0.0.5", "closed_address", "10.0.0.5"),
            ("b.test", "closed_by", "b.test:443"),
            ("db", "service_port", "5432"),
        ]
        pair.egress.allowance = Allowance(Limits(network_bytes=1))
        pair.egress.allowance.sent(1)
        with pair.connect() as sock:
            sock.sendall(b"CONNECT evil.test:443 HTTP/1.1\r\n\r\n")
            everything(sock)
        assert (pair.refusals[-1]["kind"], pair.refusals[-1]["about"]) == ("limit", "network_bytes")


@pytest.mark.parametrize("answer", ["once", "session"])
def test_an_answer_lifts_no_denial_that_came_while_the_question_was_open(
    echo: int, answer: Literal["once", "session"]
) -> None:
    def ask(host: str, port: int) -> Literal["once", "session"]:
        pair.egress.change(pair.egress.network.without(f"{host}:{port}"))
        return answer

    with ends(Network.allow(ask=ask)) as pair, pair.connect() as sock:
        sock.sendall(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % echo)
        assert b" 403 " in head(sock).split(b"\r\n")[0]
        assert [rule.text for rule in pair.egress.network.denied] == [f"127.0.0.1:{echo}"]


def test_a_denial_cuts_what_was_granted_once_by_the_same_words(echo: int) -> None:
    with ends(Network.allow(ask=lambda *_: "once")) as pair, pair.connect() as sock:
        sock.sendall(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % echo)
        assert b" 200 " in head(sock).split(b"\r\n")[0]
        pair.egress.change(pair.egress.network.without("example.com"))  # of another host: it stands
        sock.sendall(b"hello")
        assert sock.recv(5) == b"hello"
        pair.egress.change(pair.egress.network.without(f"127.0.0.1:{echo}"))
        sock.settimeout(60)
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
        deadline = time.monotonic() + 120
        while not pair.log and time.monotonic() < deadline:
            time.sleep(0.01)
        assert "the rules were changed" in pair.log[0].why


def cut_off(pair: Ends, sock: socket.socket, port: int, cut: Callable[[], object]) -> dict[str, Any]:
    """Return the notice of a connection that ``cut`` has cut; it must arrive before the cut is visible."""
    pair.held = []
    sock.sendall(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % port)
    assert b" 200 " in head(sock).split(b"\r\n")[0]
    cut()
    pair.reset_once_reported(sock)
    (told,) = pair.notices
    assert told["ends"][0] == sock.getsockname()
    assert (told["code"], told["host"], told["port"]) == ("network_cut", "127.0.0.1", port)
    return told


def test_a_connection_that_a_denial_cuts_is_reported_with_its_command(echo: int) -> None:
    with ends(Network.allow("127.0.0.1:*")) as pair, pair.connect() as sock:
        denied = pair.egress.network.without(f"127.0.0.1:{echo}")
        told = cut_off(pair, sock, echo, lambda: pair.egress.change(denied))
        assert told["why"] == f"the rules were changed: the rule 127.0.0.1:{echo} closes it"
        assert (told["kind"], told["about"]) == ("closed_by", f"127.0.0.1:{echo}")


def test_a_connection_that_a_limit_cuts_is_reported_with_its_command(echo: int) -> None:
    with ends(Network.allow("127.0.0.1:*")) as pair, pair.connect() as sock:
        pair.egress.allowance = Allowance(Limits(network_bytes=100))
        told = cut_off(pair, sock, echo, lambda: sock.sendall(bytes(200)))
        assert told["why"] == "the 100 bytes that this sandbox may send and receive are used up"
        assert (told["kind"], told["about"]) == ("limit", "network_bytes")


def test_a_silent_connection_that_is_cut_is_reported_with_its_command(echo: int) -> None:
    with ends(Network.allow("127.0.0.1:*")) as pair, pair.connect() as sock:
        pair.egress.allowance = Allowance(Limits(network_silent_seconds=0.5))
        told = cut_off(pair, sock, echo, lambda: None)
        assert (told["why"], told["kind"]) == ("nothing came or went for 0.5 seconds", "silent")


class Source(socketserver.BaseRequestHandler):
    """A server that sends endlessly."""

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self.request.sendall(bytes(1 << 16))


def test_no_byte_beyond_the_limit_is_passed_on_and_each_connection_counts_one_piece_beyond_it_at_most() -> None:
    """The figures of docs/reference/network.md: what passes, and by how much the count may exceed the limit."""
    most, connections = 3_000_000, 8
    with (
        Server(("127.0.0.1", 0), Source) as server,
        ends(Network.allow("127.0.0.1:*")) as pair,
        contextlib.ExitStack() as stack,
    ):
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        pair.egress.allowance = allowance = Allowance(Limits(network_bytes=most))
        got = [0] * connections

        def read(number: int, sock: socket.socket) -> None:
            with contextlib.suppress(ConnectionResetError):
                while data := sock.recv(1 << 16):
                    got[number] += len(data)

        readers = []
        for number in range(connections):
            sock = stack.enter_context(pair.connect())
            sock.sendall(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % server.server_address[1])
            if b" 200 " in head(sock).split(b"\r\n")[0]:
                readers.append(threading.Thread(target=read, args=(number, sock)))
                readers[-1].start()
        for reader in readers:
            reader.join(60)
        server.shutdown()
        assert 0 < sum(got) <= most
        assert most <= allowance.received_bytes + allowance.sent_bytes <= most + connections * wire.MAX_PAYLOAD


def test_what_was_sent_before_an_orderly_end_is_not_lost_on_a_slow_reader(echo: int) -> None:
    """The host ends while the socket in the sandbox is still full."""
    sent = os.urandom(400 << 10)
    with ends(Network.allow("127.0.0.1:*")) as pair, pair.connect() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32768)
        sock.sendall(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % echo)
        head(sock)
        deadline = time.monotonic() + 120
        while not pair.tunnels._open and time.monotonic() < deadline:
            time.sleep(0.01)
        (tunnel,) = pair.tunnels._open.values()
        tunnel.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)  # so that most of it waits in the guest
        sock.sendall(sent)
        sock.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + 120
        while not pair.log and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.3)
        assert everything(sock) == sent + b"bye"


def test_a_denial_holds_for_what_is_just_being_dialled(echo: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from sandbox.network import egress

    async def dial(*args: Any) -> Any:
        found = await dialling.dial(*args)
        pair.egress.change(pair.egress.network.without("127.0.0.1"))
        return found

    monkeypatch.setattr(egress, "dial", dial)
    with ends(Network.allow("127.0.0.1:*")) as pair, pair.connect() as sock:
        sock.sendall(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % echo)
        assert b" 403 " in head(sock).split(b"\r\n")[0]
        assert [one.outcome for one in pair.log] == ["denied"]


def test_a_host_that_is_allowed_and_not_there_is_another_answer() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with ends(Network.allow("127.0.0.1:*")) as pair, pair.connect() as sock:
            sock.sendall(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % port)
            assert everything(sock).startswith(b"HTTP/1.1 502 ")
            assert pair.log[0].outcome == "failed"
            assert not pair.denied


def test_a_stalled_reader_stalls_only_itself(echo: int) -> None:
    with ends(Network.allow("127.0.0.1:*")) as pair, pair.connect() as stalled, pair.connect() as other:
        for sock in (stalled, other):
            sock.sendall(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % echo)
            head(sock)
        stalled.setblocking(False)
        sent = 0
        deadline = time.monotonic() + 120
        quiet = time.monotonic()
        while time.monotonic() < deadline and time.monotonic() - quiet < 0.5:  # until nothing more goes in
            try:
                sent += stalled.send(b"x" * 65536)
                quiet = time.monotonic()
            except BlockingIOError:
                time.sleep(0.01)
        assert sent < 64 << 20  # it was held back, and nothing grew without end
        other.sendall(b"hello")
        assert other.recv(5) == b"hello"


def test_a_client_that_hangs_up_before_the_answer_leaves_nothing(echo: int) -> None:
    held = threading.Event()

    def ask(_host: str, _port: int) -> None:
        held.wait(60)

    with ends(Network.allow(ask=ask)) as pair:
        with pair.connect() as sock:
            sock.sendall(b"CONNECT evil.test:443 HTTP/1.1\r\n\r\n")
            time.sleep(0.1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        held.set()
        deadline = time.monotonic() + 120
        while pair.proxy.clients and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not pair.proxy.clients


def test_what_answers_for_refused_hosts_is_asked_once(echo: int) -> None:
    asked = []

    def ask(host: str, port: int) -> str:
        asked.append((host, port))
        return "session"

    with ends(Network.allow(ask=ask)) as pair:  # type: ignore[arg-type]
        for _ in range(2):
            with pair.connect() as sock:
                sock.sendall(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % echo)
                assert head(sock).startswith(b"HTTP/1.1 200 ")
        assert asked == [("127.0.0.1", echo)]


def test_a_question_that_waits_for_its_answer_delays_only_its_own_connection(echo: int) -> None:
    asked: list[str] = []
    thinking, answered = threading.Event(), threading.Event()

    def ask(host: str, _port: int) -> str | None:
        asked.append(host)
        thinking.set()
        answered.wait(60)
        return None

    network = Network.allow(f"echo.example.com:{echo}", ask=ask, names={"echo.example.com": "127.0.0.1"})  # type: ignore[arg-type]
    with ends(network) as pair, contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(pair.connect()) for _ in range(40)]  # more than there are threads for names
        for number, sock in enumerate(waiting):
            sock.sendall(b"CONNECT other%d.example.com:80 HTTP/1.1\r\n\r\n" % number)
        assert thinking.wait(60)
        with pair.connect() as sock:
            sock.sendall(b"CONNECT echo.example.com:%d HTTP/1.1\r\n\r\n" % echo)
            assert head(sock).startswith(b"HTTP/1.1 200 ")
        assert len(asked) == 1
        answered.set()
        for sock in waiting:
            assert head(sock).startswith(b"HTTP/1.1 403 ")
        assert len(set(asked)) == len(asked) == 40


def test_a_forwarded_port_reaches_a_server_inside(echo: int) -> None:
    with ends(Network.none()) as pair:
        forward = Forward(pair.egress.streams, lambda: next(pair.channels), echo)
        forward.open()
        port = forward.port
        socks = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(20)]
        for number, sock in enumerate(socks):
            sock.sendall(b"%d" % number * 1000)
            sock.shutdown(socket.SHUT_WR)
        for number, sock in enumerate(socks):
            with sock:
                assert everything(sock) == b"%d" % number * 1000 + b"bye"
        forward.close()
        deadline = time.monotonic() + 120
        while is_open(port) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not is_open(port)


@pytest.mark.parametrize("whole", [True, False], ids=["the sandbox", "the port"])
def test_a_connection_that_comes_while_all_is_closed_is_cut(echo: int, whole: bool) -> None:
    """It was accepted, belonged to nothing, and its client waited forever."""
    with ends(Network.none()) as pair, contextlib.ExitStack() as stack:
        streams = pair.egress.streams
        forward = Forward(streams, lambda: next(pair.channels), echo)
        forward.open()
        held, go_on = threading.Event(), threading.Event()

        def hold() -> None:
            held.set()
            go_on.wait(60)

        streams.in_loop(hold)
        assert held.wait(60)
        socks = [
            stack.enter_context(socket.create_connection((forward.host, forward.port), timeout=60)) for _ in range(3)
        ]
        closing = threading.Thread(target=streams.close if whole else forward.close)
        closing.start()
        while not forward.closed:
            time.sleep(0.001)
        time.sleep(0.05)  # the end is asked for, and waits behind what is held
        go_on.set()
        closing.join()
        for sock in socks:
            with contextlib.suppress(ConnectionResetError):
                assert sock.recv(1) == b""


def test_a_forwarded_port_where_nothing_listens_is_cut() -> None:
    with ends(Network.none()) as pair, socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        forward = Forward(pair.egress.streams, lambda: next(pair.channels), unused.getsockname()[1])
        forward.open()
        with (  # it may come before connect() has returned
            pytest.raises(ConnectionResetError),
            socket.create_connection((forward.host, forward.port), timeout=60) as sock,
        ):
            sock.recv(1)


@pytest.mark.parametrize(
    ("kind", "channel", "payload"),
    [
        (wire.Kind.OPEN, 5, wire.pack_message({"host": "h", "port": 1})),
        (wire.Kind.OPEN, 1 << 31 | 1, b"\0"),
        (wire.Kind.OPEN, 1 << 31 | 1, wire.pack_message({"host": "h", "port": True})),
        (wire.Kind.OPEN, 1 << 31 | 1, wire.pack_message({"host": "h", "port": 65536})),
        (wire.Kind.OPEN, 1 << 31 | 1, wire.pack_message({"host": ["h"], "port": 1})),
        (wire.Kind.OPEN, 1 << 31 | 1, wire.pack_message({"host": "h" * 5000, "port": 1})),
    ],
)
def test_a_guest_that_asks_nonsense_breaks_the_protocol(kind: int, channel: int, payload: bytes) -> None:
    egress = Egress(Network.none(), lambda *_: None, ConnectionLog())
    with pytest.raises(wire.WireError):
        egress.streams.take(kind, channel, payload)
    egress.streams.close()


def held(answering: threading.Event) -> Callable[[str, int], None]:
    """An approver that refuses, and only when the test lets it answer."""

    def ask(_host: str, _port: int) -> None:
        answering.wait(60)

    return ask


@pytest.mark.parametrize(
    "frames",
    [
        [(wire.Kind.END, b""), (wire.Kind.END, b"")],
        [(wire.Kind.CREDIT, (1).to_bytes(4, "big"))],
        [(wire.Kind.CREDIT, (wire.MOST_TUNNEL_WINDOW - wire.TUNNEL_WINDOW + 1).to_bytes(4, "big"))],
        [(wire.Kind.CREDIT, b"")],
        [(wire.Kind.DATA, bytes(wire.MAX_PAYLOAD))] * 3,
        [(wire.Kind.END, b""), (wire.Kind.DATA, b"x")],
        [(wire.Kind.REPLY, wire.pack_message({"open": True}))],
        [(wire.Kind.NOTICE, b"")],
    ],
)
def test_a_guest_that_talks_nonsense_on_a_connection_breaks_the_protocol(frames: list[tuple[int, bytes]]) -> None:
    answering = threading.Event()
    egress = Egress(Network.allow(ask=held(answering)), lambda *_: None, ConnectionLog())
    channel = 1 << 31 | 1
    try:
        egress.streams.take(wire.Kind.OPEN, channel, wire.pack_message({"host": "evil.test", "port": 80}))
        *before, (kind, payload) = frames
        for each in before:
            egress.streams.take(each[0], channel, each[1])
        with pytest.raises(wire.WireError):
            egress.streams.take(kind, channel, payload)
    finally:
        answering.set()
        egress.streams.close()


def test_what_waits_for_a_stalled_program_costs_its_bytes_however_they_came() -> None:
    """A server that sends single bytes to a program that reads none."""
    near, far = socket.socketpair()
    with near, far:
        reactor = Reactor()
        read, write = os.pipe()
        tunnel = Tunnel(reactor, Link(reactor, write, NONCE), 1, near, Growth(), lambda: None)
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        tunnel.take(memoryview(bytes(100_000)))
        tracemalloc.start()
        try:
            for number in range(200_000):
                tunnel.take(memoryview(bytes([number % 251])))
            assert tracemalloc.get_traced_memory()[0] < 2 * 200_000
        finally:
            tracemalloc.stop()
        assert not tunnel.closed
        far.settimeout(60)
        came = b""
        while len(came) < 300_000:
            came += far.recv(1 << 16)
            tunnel._write()
        assert came[100_000:] == bytes(number % 251 for number in range(200_000))
        tunnel.cut(tell=False)
    os.close(read)
    os.close(write)


def test_single_bytes_that_wait_in_the_host_cost_their_bytes() -> None:
    """A guest that sends the smallest possible pieces, faster than they are forwarded."""
    sent: list[bytes] = []
    streams = Streams(lambda *_: None, None)  # type: ignore[arg-type]
    held = threading.Event()
    relay = Relay(1, lambda *_: None)
    relay.take = lambda payload: sent.append(bytes(payload))  # type: ignore[method-assign]
    try:
        streams.expect(1, lambda _: None)
        streams._relays[1] = relay
        streams.in_loop(lambda: _ignore(held.wait(60)))
        tracemalloc.start()
        for number in range(200_000):
            streams.take(wire.Kind.DATA, 1, bytes([number % 251]))
        assert tracemalloc.get_traced_memory()[0] < 2 * 200_000
        tracemalloc.stop()
        held.set()
        deadline = time.monotonic() + 120
        while sum(map(len, sent)) < 200_000 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert b"".join(sent) == bytes(number % 251 for number in range(200_000))
    finally:
        tracemalloc.stop()
        held.set()
        streams._relays.clear()
        streams.close()


def _ignore(_: object) -> None:
    """Do nothing."""


def test_connections_that_are_asked_for_and_given_up_again_and_again_are_bounded() -> None:
    answering = threading.Event()
    egress = Egress(Network.allow(ask=held(answering)), lambda *_: None, ConnectionLog())
    wish = wire.pack_message({"host": "evil.test", "port": 80})
    most = 0
    try:
        with contextlib.suppress(wire.WireError):  # where the host cannot refuse them as fast as they come
            for channel in range(1 << 31, (1 << 31) + 20_000):
                egress.streams.take(wire.Kind.OPEN, channel, wish)
                egress.streams.take(wire.Kind.CANCEL, channel, b"")
                most = max(most, len(egress.streams._tasks))
        assert most <= 1100
    finally:
        answering.set()
        egress.streams.close()
