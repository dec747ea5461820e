"""The host that a program names, on its way to the rules, the log and the approver of refused hosts."""

from __future__ import annotations

import contextlib
import resource
import struct

import pytest

from sandbox.network.policy import Network

from .test_tunnels import ends, everything


def socks(host: bytes, port: int) -> bytes:
    return b"\5\1\0\5\1\0\3" + bytes([len(host)]) + host + struct.pack(">H", port)


@pytest.mark.parametrize("host", [b"::%x/0", b"2606:4700::1%\n\x1b[2K\rAllow pypi.example?", b"::1%lo"])
def test_an_address_with_a_zone_is_refused_unasked(host: bytes) -> None:
    asked = []

    def ask(named: str, _port: int) -> str:
        asked.append(named)
        return "session"

    with ends(Network.allow(ask=ask)) as pair:  # type: ignore[arg-type]
        with pair.connect() as sock:
            sock.sendall(socks(host, 443))
            assert everything(sock)[2:4] == b"\5\2"
        assert asked == []
        assert pair.egress.network.rules == ()
        (told,) = pair.log
        assert told.outcome == "denied"
        assert told.host.isprintable()
        assert told.why.isprintable()


def test_one_spelling_is_asked_about_granted_and_reported() -> None:
    asked = []

    def ask(named: str, _port: int) -> str:
        asked.append(named)
        return "session"

    with ends(Network.allow(ask=ask)) as pair:  # type: ignore[arg-type]
        for host in (b"::ffff:127.0.0.1", b"0x7f.1", b"127.0.0.1"):
            with pair.connect() as sock:
                sock.sendall(socks(host, 1))  # nobody listens there
                everything(sock)
        assert asked == ["127.0.0.1"]
        assert [rule.text for rule in pair.egress.network.rules] == ["127.0.0.1:1"]
        assert {told.host for told in pair.log} == {"127.0.0.1"}


def test_silent_clients_take_a_quarter_of_the_descriptors_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (16, 16))
    with ends(Network.none()) as pair, contextlib.ExitStack() as stack:
        socks = [stack.enter_context(pair.connect()) for _ in range(4)]
        with pair.connect() as fifth:
            assert everything(fifth) == b""
        for sock in socks:  # those that came first are served
            sock.sendall(b"CONNECT example.com:443 HTTP/1.1\r\n\r\n")
            assert b" 403 " in everything(sock)
