"""The requests of the proxy's clients: every form, cut anywhere, and what an attacker would try."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.guest.network.handshakes import (
    MOST_HEAD,
    HandshakeError,
    ProxyRequest,
    http_answer,
    parse_http_request,
    parse_socks_methods,
    parse_socks_request,
)
from sandbox.guest.protocol import wire


def test_connect_is_a_tunnel() -> None:
    request = parse_http_request(b"CONNECT example.com:443 HTTP/1.1\r\nHost: other\r\n\r\nearly")
    assert request is not None
    assert (request.host, request.port, request.tunnel, request.first) == ("example.com", 443, True, b"early")


def test_connect_to_an_ipv6_address() -> None:
    request = parse_http_request(b"CONNECT [2001:db8::1]:8080 HTTP/1.1\r\n\r\n")
    assert request is not None
    assert (request.host, request.port) == ("2001:db8::1", 8080)


def test_a_request_is_forwarded_in_the_form_that_servers_accept() -> None:
    request = parse_http_request(
        b"POST http://user:pw@Example.com:8080/a/b?c=d HTTP/1.1\r\nHost: evil.test\r\nProxy-Authorization: Basic xx\r\n"
        b"Proxy-Connection: keep-alive\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\nabc"
    )
    assert request is not None
    assert (request.host, request.port, request.tunnel) == ("Example.com", 8080, False)
    head, _, body = request.first.partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [
        b"POST /a/b?c=d HTTP/1.1",
        b"Host: Example.com:8080",
        b"Connection: close",
        b"Content-Length: 3",
    ]
    assert body == b"abc"


@pytest.mark.parametrize(
    ("target", "line"),
    [(b"http://h", b"GET / HTTP/1.1"), (b"http://h?q", b"GET /?q HTTP/1.1"), (b"HTTP://h/x", b"GET /x HTTP/1.1")],
)
def test_targets_without_a_path(target: bytes, line: bytes) -> None:
    request = parse_http_request(b"GET " + target + b" HTTP/1.1\r\n\r\n")
    assert request is not None
    assert request.port == 80
    assert request.first.startswith(line + b"\r\nHost: h\r\n")


def test_a_websocket_keeps_its_upgrade() -> None:
    request = parse_http_request(b"GET http://h/ws HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
    assert request is not None
    assert b"Connection: Upgrade\r\nUpgrade: websocket" in request.first


@pytest.mark.parametrize("size", [0, 1, 20, 50])
def test_an_incomplete_head_is_waited_for(size: int) -> None:
    assert parse_http_request(b"GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n"[:size]) is None


@pytest.mark.parametrize(
    "head",
    [
        b"GET /local HTTP/1.1",
        b"GET https://h/ HTTP/1.1",
        b"GET ftp://h/ HTTP/1.1",
        b"CONNECT h HTTP/1.1",
        b"CONNECT h:0 HTTP/1.1",
        b"CONNECT h:99999 HTTP/1.1",
        b"CONNECT :443 HTTP/1.1",
        b"CONNECT h:443x HTTP/1.1",
        b"GET http:// HTTP/1.1",
        b"GET  HTTP/1.1",
        b"GET http://h/ HTTP/2",
        b"\x16\x03\x01 x y",
        b"GET http://h/ HTTP/1.1\r\nA\0: b",
        b"GET http://h/ HTTP/1.1\r\nA: b\nX: y",
        b"GET http://h/ HTTP/1.1\r\n folded: x",
        b"GET http://h/ HTTP/1.1\r\nbad header: x",
        b"GET http://h/ HTTP/1.1\r\n: x",
        b"G\rT http://h/ HTTP/1.1",
    ],
)
def test_an_invalid_request_is_answered_with_an_explanation(head: bytes) -> None:
    with pytest.raises(HandshakeError) as caught:
        parse_http_request(head + b"\r\n\r\n")
    assert caught.value.answer.startswith(b"HTTP/1.1 400 ")


def test_an_endless_head_is_refused() -> None:
    with pytest.raises(HandshakeError) as caught:
        parse_http_request(b"GET http://h/ HTTP/1.1\r\nA: " + b"x" * MOST_HEAD)
    assert b" 431 " in caught.value.answer


def test_the_message_of_a_refusal_cannot_add_headers() -> None:
    answer = http_answer(403, "evil\r\nSet-Cookie: x=1\r\n\r\nbody ü")
    head = answer.partition(b"\r\n\r\n")[0]
    assert head.split(b"\r\n")[0] == b"HTTP/1.1 403 evil??Set-Cookie: x=1????body ?"
    assert not any(line.lower().startswith(b"set-cookie") for line in head.split(b"\r\n"))


def test_socks_by_name_address_and_ipv6() -> None:
    assert parse_socks_methods(b"\x05\x01\x00") == (b"\x05\0", 3)
    by_name = parse_socks_request(b"\x05\x01\0\x03\x0bexample.com\x01\xbbrest")
    assert by_name is not None
    assert (by_name.host, by_name.port, by_name.first) == ("example.com", 443, b"rest")
    by_address = parse_socks_request(b"\x05\x01\0\x01\x0a\x01\x02\x03\x15\x38")
    assert by_address is not None
    assert (by_address.host, by_address.port) == ("10.1.2.3", 5432)
    by_ipv6 = parse_socks_request(b"\x05\x01\0\x04" + bytes(15) + b"\x01" + b"\0\x50")
    assert by_ipv6 is not None
    assert by_ipv6.host == "0000:0000:0000:0000:0000:0000:0000:0001"


@pytest.mark.parametrize("data", [b"\x05", b"\x05\x02\0", b"\x05\x03\x01\x02"])
def test_incomplete_socks_methods(data: bytes) -> None:
    assert parse_socks_methods(data) is None


@pytest.mark.parametrize("cut", range(17))
def test_an_incomplete_socks_request(cut: int) -> None:
    assert parse_socks_request(b"\x05\x01\0\x03\x0bexample.com\x01\xbb"[:cut]) is None


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x05\x02\0\x01\x0a\x01\x02\x03\0\x50", 7),
        (b"\x05\x03\0\x01\x0a\x01\x02\x03\0\x50", 7),
        (b"\x05\x01\0\x02\0\0\0", 8),
        (b"\x05\x01\0\x03\0\0\x50", 1),
        (b"\x05\x01\0\x01\x0a\x01\x02\x03\0\0", 1),
        (b"\x04\x01\0\x50\x01", 8),
    ],
)
def test_socks_requests_that_are_not_for_a_connection(data: bytes, code: int) -> None:
    with pytest.raises(HandshakeError) as caught:
        parse_socks_request(data)
    assert caught.value.answer[:2] == bytes((5, code))


def test_socks_without_a_method_of_ours_and_socks4() -> None:
    with pytest.raises(HandshakeError) as caught:
        parse_socks_methods(b"\x05\x01\x02")
    assert caught.value.answer == b"\x05\xff"
    with pytest.raises(HandshakeError) as caught:
        parse_socks_methods(b"\x04\x01\0\x50")
    assert caught.value.answer[:2] == b"\0\x5b"


PARTS = (
    b"CONNECT ",
    b"GET http://",
    b"h",
    b":80",
    b" HTTP/1.1",
    b"\r\n",
    b"\n",
    b"\0",
    b"[",
    b"]",
    b"@",
    b"\xff" * 300,
    b"/",
)
HEADS = st.lists(st.sampled_from(PARTS) | st.binary(max_size=8)).map(b"".join)


@given(HEADS, st.booleans())
def test_any_bytes_are_a_valid_request_or_get_an_answer(data: bytes, whole: bool) -> None:
    """A client's bytes may raise nothing else, which would end the guest; nor may its request break the pipe."""
    readers: tuple[Callable[[bytes], object], ...] = (parse_http_request, parse_socks_request, parse_socks_methods)
    for read in readers:
        try:
            request = read(data + (b"\r\n\r\n" if whole else b""))
        except HandshakeError:
            continue
        if isinstance(request, ProxyRequest):
            assert 0 < request.port < 65536
            assert len(wire.pack_message({"host": request.host, "port": request.port})) < 4096
            assert b"\0" not in request.first.split(b"\r\n\r\n")[0] or request.tunnel
