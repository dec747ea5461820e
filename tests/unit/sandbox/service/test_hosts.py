"""Names of the service and of ports; what of headers goes into a sandbox and comes out; tokens for ports."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandbox.errors import SandboxError
from sandbox.service.http.hosts import Host, Hosts, PortName, is_own_page, parse_host, parse_port_name
from sandbox.service.ports import tokens
from sandbox.service.ports.headers import Headers, key_in, request_headers, response_headers, tokens_in, without_token
from sandbox.service.settings import read_settings

KEY = "e2b_" + "ab" * 20
ID = "abcdefghij0123456789"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAMEBOX_SERVICE_DATA", str(tmp_path))


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("Example.COM:8080", Host("example.com", 8080)),
        ("example.com.", Host("example.com")),
        ("[::1]:80", Host("::1", 80)),
        ("127.0.0.1", Host("127.0.0.1")),
        ("", None),
        ("a b", None),
        ("a,b", None),
        ("a/../b", None),
        ("a:0", None),
        ("a:99999", None),
        ("[::g]", None),
        ("a\t", Host("a")),
        ("user@a", None),
        ("ä.example.com", None),
    ],
)
def test_what_a_host_header_says(text: str, host: Host | None) -> None:
    assert parse_host(text) == host


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (f"8000-{ID}.localhost", PortName(8000, ID)),
        (f"8000-{ID}.evil.localhost", None),
        (f"x.8000-{ID}.localhost", None),
        (f"8000-{ID}", None),
        (f"8000-{ID}.example.com", None),
        (f"8000{ID}.localhost", None),
        (f"-{ID}.localhost", None),
        ("localhost", None),
    ],
)
def test_the_name_of_a_port(name: str, found: PortName | None) -> None:
    assert parse_port_name(name, "localhost") == found


def test_a_service_knows_its_own_names() -> None:
    hosts = Hosts(read_settings({"allowed_hosts": "gamebox.example.com,*.inner.example.com"}))
    for own in ("localhost", "127.0.0.1", "127.8.8.8", "[::1]", "gamebox.example.com", "a.b.inner.example.com"):
        assert hosts.is_own(parse_host(own) or Host(""), "192.0.2.7"), own
    assert hosts.is_own(Host("192.0.2.7"), "192.0.2.7")
    for other in ("192.0.2.8", "example.com", "inner.example.com", "evilinner.example.com", "localhost.evil.com", "0.0.0.0"):
        assert not hosts.is_own(Host(other), "192.0.2.7"), other


def test_a_service_on_all_addresses_knows_the_one_that_was_used() -> None:
    hosts = Hosts(read_settings({"host": "0.0.0.0", "behind_proxy": "192.0.2.1"}))
    assert hosts.is_own(Host("192.0.2.7"), "192.0.2.7")
    assert hosts.is_own(Host("192.0.2.7"), "::ffff:192.0.2.7")
    assert hosts.is_own(Host("2001:db8::1"), "2001:db8:0::1")
    assert not hosts.is_own(Host("0.0.0.0"), "127.0.0.1")
    assert not hosts.is_own(Host("192.0.2.8"), "192.0.2.7")


@pytest.mark.parametrize(
    ("domain", "allowed"),
    [
        ("example.com", "example.com"),
        ("boxes.example.com", "example.com"),
        ("example.com", "gamebox.example.com"),
        ("example.com", "*.example.com"),
        ("example.com", "a,*.below.example.com"),
    ],
)
def test_pages_of_sandboxes_share_nothing_with_the_service(domain: str, allowed: str) -> None:
    with pytest.raises(SandboxError, match="belong together"):
        read_settings({"domain": domain, "allowed_hosts": allowed})
    with pytest.raises(SandboxError, match="belong together"):
        read_settings({"domain": domain, "host": allowed.rpartition(",")[2].removeprefix("*."), "behind_proxy": "192.0.2.1"})


@pytest.mark.parametrize(
    ("domain", "allowed"),
    [("boxes.example.com", "gamebox.example.com"), ("localhost", "localhost"), ("example.net", "example.com,192.0.2.1,::1")],
)
def test_other_names_are_taken(domain: str, allowed: str) -> None:
    assert read_settings({"domain": domain, "allowed_hosts": allowed}).domain == domain


@pytest.mark.parametrize("domain", ["", "192.0.2.1", "a b", ".example.com", "example.com.", "example.com:80", "EXAMPLE.com"])
def test_a_domain_is_a_name(domain: str) -> None:
    with pytest.raises(SandboxError, match="domain"):
        read_settings({"domain": domain})


@pytest.mark.parametrize("allowed", ["https://a.example.com", "a.example.com:80", "*", "a/b"])
def test_an_allowed_host_is_a_name(allowed: str) -> None:
    with pytest.raises(SandboxError, match="allowed_hosts"):
        read_settings({"allowed_hosts": allowed})


def test_pages_of_the_same_host_alone_open_websockets() -> None:
    hosts = Hosts(read_settings({"allowed_origins": "https://dash.example.com"}))
    host = Host("gamebox.example.com", 8080)
    for origin in ("http://gamebox.example.com:8080", "https://gamebox.example.com:8080", "https://dash.example.com:443"):
        assert hosts.is_allowed_origin(origin, host, "ws"), origin
    others = ("null", "", "http://gamebox.example.com", "http://dash.example.com", "https://a@dash.example.com", "file:///x",
              "https://dash.example.com.evil.com", "https://[", "https://gamebox.example.com:x")  # fmt: skip
    for origin in others:
        assert not hosts.is_allowed_origin(origin, host, "ws"), origin
    assert hosts.is_allowed_origin("https://gamebox.example.com", Host("gamebox.example.com"), "wss")


def test_a_cookie_is_for_pages_of_its_host() -> None:
    host = Host("8000-x.localhost", 80)
    assert is_own_page(None, "", "", "POST", host, "http")  # no browser
    assert is_own_page(None, "same-origin", "cors", "GET", host, "http")
    assert is_own_page(None, "cross-site", "navigate", "GET", host, "http")  # somebody follows a link
    assert is_own_page("http://8000-x.localhost", "same-origin", "cors", "POST", host, "http")
    for origin, site, mode, method in (
        (None, "same-site", "no-cors", "GET"),
        (None, "cross-site", "navigate", "POST"),
        ("http://8000-y.localhost", "same-site", "navigate", "POST"),
        ("null", "cross-site", "cors", "GET"),
    ):
        assert not is_own_page(origin, site, mode, method, host, "http")


def test_no_key_cookie_or_token_goes_into_a_sandbox() -> None:
    sent: Headers = [
        (b"host", b"8000-x.localhost"),
        (b"authorization", f"bearer  {KEY}".encode()),
        (b"x-api-key", KEY.upper().encode()),
        (b"x-gamebox-token", b"gbp_x"),
        (b"cookie", b"a=1; gamebox_port=gbp_x;b=2"),
        (b"connection", b"keep-alive, X-Hop, Host"),
        (b"x-hop", b"1"),
        (b"keep-alive", b"5"),
        (b"te", b"trailers"),
        (b"proxy-authorization", b"Basic eA=="),
        (b"upgrade", b"h2c"),
        (b"x-forwarded-for", b"6.6.6.6"),
        (b"forwarded", b"for=6.6.6.6"),
        (b"x-real-ip", b"6.6.6.6"),
        (b"accept", b"*/*"),
    ]
    assert key_in(sent) == KEY
    assert request_headers(sent, client="192.0.2.9", scheme="https", host="8000-x.localhost") == [
        (b"host", b"8000-x.localhost"),
        (b"cookie", b"a=1;b=2"),
        (b"accept", b"*/*"),
        (b"connection", b"close"),
        (b"x-forwarded-for", b"192.0.2.9"),
        (b"x-forwarded-host", b"8000-x.localhost"),
        (b"x-forwarded-proto", b"https"),
        (b"x-forwarded-port", b"443"),
    ]
    odd: Headers = [
        (b"authorization", f"Bearer\t{KEY}".encode()),
        (b"x_api_key", KEY.encode()),
        (b"x-api-key", f"key={KEY}".encode()),
        (b"x_forwarded_for", b"6.6.6.6"),
        (b"x_gamebox_token", b"gbp_x"),
        (b"referer", b"http://8000-x.localhost/?gamebox_token=gbp_x"),
    ]
    assert [name for name, _ in request_headers(odd, client="192.0.2.9", scheme="http", host="h")] == [
        *(b"connection", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-forwarded-port")
    ]
    own: Headers = [(b"authorization", b"Bearer of the server"), (b"x-api-key", b"its-own"), (b"cookie", b"gamebox_port=gbp_x")]
    assert key_in(own) is None
    assert request_headers(own, client="", scheme="http", host="h")[:2] == own[:2]
    assert not any(name == b"cookie" for name, _ in request_headers(own, client="", scheme="http", host="h"))


def test_a_body_has_one_length() -> None:
    sent: Headers = [(b"content-length", b"5"), (b"transfer-encoding", b"gzip, chunked")]
    found = request_headers(sent, client="", scheme="http", host="h")
    assert [each for each in found if each[0] in (b"content-length", b"transfer-encoding")] == [(b"transfer-encoding", b"chunked")]


def test_cookies_of_a_server_stay_on_its_name() -> None:
    answered: Headers = [
        (b"set-cookie", b"a=b; Path=/; domain = .localhost; Secure"),
        (b"set-cookie", b"gamebox_port=evil; Path=/"),
        (b"connection", b"X-Hop, Set-Cookie"),
        (b"x-hop", b"1"),
        (b"transfer-encoding", b"chunked"),
        (b"server", b"x"),
    ]
    assert response_headers(answered) == [(b"set-cookie", b"a=b; Path=/; Secure"), (b"server", b"x")]


def test_where_tokens_are() -> None:
    headers: Headers = [(b"x-gamebox-token", b"1"), (b"cookie", b"gamebox_port=3; x=y"), (b"cookie", b"gamebox_port=4")]
    found = list(tokens_in(headers, b"a=b&gamebox%5Ftoken=2&c"))
    assert found == [("header", "1"), ("query", "2"), ("cookie", "3"), ("cookie", "4")]
    assert without_token(b"a=b&gamebox%5Ftoken=2&c&gamebox_token=x") == b"a=b&c"
    assert without_token(b"a=%20b&&c") == b"a=%20b&&c"
    assert list(tokens_in([], b"&" * 5000)) == []


def test_a_token_is_for_one_port_and_some_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tokens.PortTokens(tmp_path)
    token = made.make("s1", 80, "k0a", 1000.9)
    monkeypatch.setattr(tokens, "now", lambda: 999.0)
    assert made.key_of(token, "s1", 80) == "k0a"
    assert tokens.PortTokens(tmp_path).key_of(token, "s1", 80) == "k0a"  # a service after this one
    assert made.key_of(token, "s2", 80) is made.key_of(token, "s1", 81) is None
    for changed in (token.replace("k0a", "k0b"), token.replace("_1000_", "_2000_"), token[:-1] + "!", token + "x", ""):
        assert made.key_of(changed, "s1", 80) is None
    assert (tmp_path / "ports.key").stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr(tokens, "now", lambda: 1000.0)
    assert made.key_of(token, "s1", 80) is None
    (tmp_path / "ports.key").write_bytes(b"cut")  # killed while it wrote
    assert tokens.PortTokens(tmp_path).key_of(token, "s1", 80) is None
