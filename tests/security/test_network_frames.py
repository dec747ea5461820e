"""A guest that was taken over, against the host's end of connections: forged frames, crowds, and wishes given up."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from sandbox.errors import SandboxUnavailableError
from sandbox.guest.protocol import wire
from sandbox.guest.protocol.wire import Kind
from sandbox.network.connections import ConnectionLog
from sandbox.network.egress import Egress
from sandbox.network.policy import Network
from sandbox.pipe.transport import Transport
from sandbox.testing import GuestRequest, ScriptedGuest
from tests.integration.observing import eventually
from tests.servers.sockets import echo, outlast, tcp_server

OURS = 1 << 31
Forge = Callable[[ScriptedGuest], None]


class Host:
    """A transport with connections on it, and the guest at its far end."""

    def __init__(self, guest: ScriptedGuest, network: Network) -> None:
        self.guest = guest
        self.transport = Transport(guest.stream, lambda reason, detail: SandboxUnavailableError(reason, detail))
        self.log = ConnectionLog()
        self.egress = Egress(network, self.transport.flow, self.log)
        self.transport.carry(self.egress.streams)

    def open(self, channel: int, port: int, host: str = "echo.example.com") -> None:
        """The guest asks for a connection."""
        self.guest.frame(Kind.OPEN, channel, wire.pack_message({"host": host, "port": port}))

    def answers(self, channel: int) -> list[dict[str, object]]:
        """What the guest was told of that channel."""
        return [wire.unpack_message(p)[0] for k, c, p in list(self.guest.heard) if k == Kind.REPLY and c == channel]

    def data(self, channel: int) -> bytes:
        """What it got on that channel."""
        return b"".join(p for k, c, p in list(self.guest.heard) if k == Kind.DATA and c == channel)


def answer(guest: ScriptedGuest, request: GuestRequest) -> None:
    guest.reply(request, {"ok": True})


@contextmanager
def host_with(network: Network) -> Iterator[Host]:
    with ScriptedGuest(answer) as guest:
        host = Host(guest, network)
        try:
            host.transport.open({"place": {}}, 5)
            yield host
        finally:
            host.egress.streams.close()
            host.transport.close()


@pytest.fixture
def port() -> Iterator[int]:
    with tcp_server(echo) as number:
        yield number


def to_echo(port: int) -> Network:
    return Network.allow(f"echo.example.com:{port}", names={"echo.example.com": "127.0.0.1"})


def established(host: Host, channel: int, port: int) -> None:
    host.open(channel, port)
    assert eventually(lambda: host.answers(channel) == [{"open": True}], 10), host.answers(channel)


def test_frames_of_channels_that_are_not_open_reach_nobody(port: int) -> None:
    """Threat: bytes and ends put into connections that the guest did not open, or that are over."""
    with host_with(to_echo(port)) as host:
        established(host, OURS | 1, port)
        for channel in (OURS | 2, OURS | 0x7FFFFFFF):
            for kind, payload in (
                (Kind.DATA, b"forged"),
                (Kind.CREDIT, bytes(4)),
                (Kind.END, b""),
                (Kind.CANCEL, b"why"),
            ):
                host.guest.frame(kind, channel, payload)
        host.guest.frame(Kind.DATA, OURS | 1, b"mine")
        assert eventually(lambda: host.data(OURS | 1) == b"mine", 10)
        host.guest.frame(Kind.CANCEL, OURS | 1)
        assert eventually(lambda: len(host.log.last()) == 1, 10)
        host.guest.frame(Kind.DATA, OURS | 1, b"after the end")
        assert host.transport.request("read", {}, timeout_seconds=5)[0]["result"] == {"ok": True}
        assert host.log.last()[0].sent_bytes == len(b"mine")


def lost(host: Host) -> str | None:
    """Why the pipe ended; None while it stands."""
    try:
        host.transport.request("read", {}, timeout_seconds=5)
    except SandboxUnavailableError as error:
        return error.reason
    return None


@pytest.mark.parametrize(
    "forge",
    [
        pytest.param(
            lambda g: g.frame(Kind.OPEN, 7, wire.pack_message({"host": "x", "port": 1})), id="a-channel-of-the-host"
        ),
        pytest.param(
            lambda g: g.frame(Kind.OPEN, OURS | 1, wire.pack_message({"host": "x", "port": 1})), id="a-channel-twice"
        ),
        pytest.param(lambda g: g.frame(Kind.OPEN, OURS | 5, b"no message"), id="no-message"),
        pytest.param(
            lambda g: g.frame(Kind.OPEN, OURS | 5, wire.pack_message({"host": "x", "port": -1})), id="no-port"
        ),
        pytest.param(
            lambda g: g.frame(Kind.OPEN, OURS | 5, wire.pack_message({"host": "x" * 9000, "port": 1})), id="too-long"
        ),
        pytest.param(
            lambda g: g.frame(Kind.REPLY, OURS | 1, wire.pack_message({"open": True})), id="an-answer-to-itself"
        ),
        pytest.param(lambda g: g.frame(Kind.DATA, OURS | 1, b""), id="no-bytes"),
        pytest.param(lambda g: g.frame(Kind.CREDIT, OURS | 1, b"12345"), id="no-credit"),
        pytest.param(lambda g: g.frame(Kind.REQUEST, OURS | 1, b"{}"), id="a-request"),
        pytest.param(
            lambda g: [g.frame(Kind.DATA, OURS | 1, bytes(1 << 18)) for _ in range(200)], id="beyond-the-credit"
        ),
        pytest.param(
            lambda g: [g.frame(k, OURS | 1, p) for k, p in ((Kind.END, b""), (Kind.DATA, b"x"))], id="after-the-end"
        ),
    ],
)
def test_what_the_protocol_does_not_allow_ends_the_pipe(forge: Forge) -> None:
    """Threat: a guest that breaks the protocol goes on as if nothing was; its connections stay."""
    with tcp_server(outlast) as port, host_with(to_echo(port)) as host:
        established(host, OURS | 1, port)
        forge(host.guest)
        assert eventually(lambda: lost(host) is not None, 10)
        assert lost(host) == "protocol_violation"
        assert eventually(lambda: len(host.log.last()) == 1, 10)
        assert "cut" in host.log.last()[0].why


def test_a_crowd_of_wishes_is_bounded(port: int) -> None:
    """Threat: the host's descriptors and memory, by more connections than the protocol allows."""
    with host_with(to_echo(port)) as host:
        established(host, OURS | 1, port)
        before = len(os.listdir("/proc/self/fd"))
        for number in range(2, 400):
            host.open(OURS | number, port)
        assert eventually(lambda: all(host.answers(OURS | number) for number in range(2, 400)), 30)
        told = [host.answers(OURS | number)[0] for number in range(2, 400)]
        assert sum("open" in one for one in told) == 255
        refused = [str(one["denied"]) for one in told if "denied" in one]
        assert len(refused) == len(told) - 255
        assert all(one.startswith("there are 256 connections already, the most there may be") for one in refused)
        assert len(os.listdir("/proc/self/fd")) <= before + 2 * 255 + 5  # the far ends are in this process too
        for number in range(1, 400):
            host.guest.frame(Kind.CANCEL, OURS | number)
        assert eventually(lambda: len(os.listdir("/proc/self/fd")) <= before + 2, 30)


def test_wishes_that_are_given_up_at_once_leave_nothing() -> None:
    """Threat: connections that are opened and cancelled while the host still dials stay with the host, or keep others out."""
    with socket.socket() as full:  # takes no connection: dialling it takes until the deadline
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        number = full.getsockname()[1]
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", number))
            fillers.append(filler)
        try:
            with host_with(to_echo(number)) as host:
                assert host.transport.request("read", {}, timeout_seconds=5)
                before = len(os.listdir("/proc/self/fd"))
                for channel in range(1, 900):
                    host.open(OURS | channel, number)
                    host.guest.frame(Kind.CANCEL, OURS | channel)
                assert eventually(lambda: len(host.log.last()) >= 899, 5)  # sooner than dialling would end
                assert {one.outcome for one in host.log.last()} <= {"failed", "denied"}
                assert eventually(lambda: len(os.listdir("/proc/self/fd")) <= before + 5, 5)
        finally:
            for filler in fillers:
                filler.close()


def test_one_guest_does_not_reach_the_connections_of_another(port: int) -> None:
    """Threat: two sandboxes use the same numbers for their channels; what one says of its own must not touch the other's."""
    with host_with(to_echo(port)) as one, host_with(to_echo(port)) as other:
        for host in (one, other):
            established(host, OURS | 1, port)
        one.guest.frame(Kind.DATA, OURS | 1, b"of one")
        one.guest.frame(Kind.CANCEL, OURS | 1)
        other.guest.frame(Kind.DATA, OURS | 1, b"of the other")
        assert eventually(lambda: other.data(OURS | 1) == b"of the other", 10)
        assert len(other.log.last()) == 0
