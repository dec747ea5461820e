"""Signing in to MCP servers, with an authorization server on loopback and a browser that follows its redirect."""

from __future__ import annotations

import json
import os
import stat
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent.mcp.http import HttpWire
from agent.mcp.oauth import SignIn, sign_in
from agent.mcp.server import Server
from agent.mcp.token_file import token_file
from agent.mcp.token_store import TokenStore
from sandbox.errors import ErrorCode, OperationError, SandboxError
from tests.servers.mcp_oauth import Authority, Protected


@pytest.fixture
def authority() -> Iterator[Authority]:
    with Authority() as authority:
        yield authority


@pytest.fixture
def protected(authority: Authority) -> Iterator[Protected]:
    with Protected(authority) as protected:
        yield protected


class Browser:
    """Opens the address of a sign-in as a user's browser does, in the background, and keeps what the last page says."""

    def __init__(self, *before: str) -> None:
        self.addresses: list[str] = []
        self.page = ""
        self._before = before

    def __call__(self, address: str) -> None:
        self.addresses.append(address)
        threading.Thread(target=self._browse, args=(address,), daemon=True).start()

    def _browse(self, address: str) -> None:
        back = urllib.parse.parse_qs(urllib.parse.urlsplit(address).query)["redirect_uri"][0]
        for query in self._before:  # what somebody else on this host sends
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(f"{back}?{query}")
        with urllib.request.urlopen(address) as answer:
            self.page = answer.read().decode()


def signed_in(folder: Path, protected: Protected, browser: Browser | None = None) -> Browser:
    browser = browser or Browser()
    sign_in(folder, protected.url, browser=browser, agree=lambda origin: origin == protected.authority.origin)
    return browser


def use(folder: Path, protected: Protected) -> str:
    server = Server("p", lambda: HttpWire(protected.url, sign_in=SignIn(folder, protected.url)), seconds=10)
    try:
        server.start()
        return str(server.call("token", {}))
    finally:
        server.close()


def test_a_user_signs_in_once(tmp_path: Path, protected: Protected) -> None:
    browser = signed_in(tmp_path, protected)
    assert "code_challenge_method=S256" in browser.addresses[0]
    deadline = time.monotonic() + 10
    while not browser.page and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "You are signed in" in browser.page
    file = token_file(tmp_path, protected.url)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    [token] = protected.authority.tokens
    shown = use(tmp_path, protected)
    assert shown.startswith("called with Bearer **")
    assert token not in shown
    assert protected.authority.granted == ["authorization_code"]


def test_calls_at_the_same_time_do_not_wait_for_each_other(tmp_path: Path, protected: Protected) -> None:
    signed_in(tmp_path, protected)
    server = Server("p", lambda: HttpWire(protected.url, sign_in=SignIn(tmp_path, protected.url)), seconds=30)
    try:
        server.start()
        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(lambda _: server.call("pair", {}), range(2)))
        assert all("**" in str(answer) for answer in answers)
    finally:
        server.close()


def test_an_expired_token_is_refreshed_at_the_authorization_server(tmp_path: Path, protected: Protected) -> None:
    protected.authority.lifetime = 0
    signed_in(tmp_path, protected)
    protected.authority.refresh_tokens.clear()
    with pytest.raises(OperationError, match="asks the user to sign in"):
        use(tmp_path, protected)
    protected.authority.lifetime = 1
    signed_in(tmp_path, protected)
    time.sleep(1.1)
    protected.authority.lifetime = 3600
    assert "**" in use(tmp_path, protected)
    assert protected.authority.granted[-1] == "refresh_token"
    assert "POST /token" not in protected.requests, "a refresh token goes to the authorization server alone"
    assert "**" in use(tmp_path, protected), "the new tokens are stored"


def test_nobody_is_asked_to_sign_in_within_a_run(tmp_path: Path, protected: Protected) -> None:
    with pytest.raises(OperationError, match="401") as caught:
        Server("p", lambda: HttpWire(protected.url), seconds=5).start()
    assert f"gamebox mcp login {protected.url}" in caught.value.hint
    signed_in(tmp_path, protected)
    protected.authority.tokens.clear()
    with pytest.raises(OperationError, match="asks the user to sign in") as caught:
        use(tmp_path, protected)
    assert "gamebox mcp login" in caught.value.hint


def test_an_authorization_server_is_called_only_if_the_user_agrees(tmp_path: Path, protected: Protected) -> None:
    """Otherwise a server could make this host call any address of its network."""
    asked: list[str] = []

    def refuse(origin: str) -> bool:
        asked.append(origin)
        return False

    with pytest.raises(OperationError, match="has not named") as caught:
        sign_in(tmp_path, protected.url, browser=Browser(), agree=refuse)
    assert asked == [protected.authority.origin]
    assert caught.value.code is ErrorCode.invalid_configuration
    assert f"--authorization-server {protected.authority.origin}" in caught.value.hint
    assert protected.authority.requests == []
    sign_in(tmp_path, protected.url, browser=Browser(), agree=lambda _: False, origins=[protected.authority.origin])
    assert "**" in use(tmp_path, protected)


def test_only_the_browser_of_this_sign_in_ends_it(tmp_path: Path, protected: Protected) -> None:
    signed_in(tmp_path, protected, Browser("code=stolen&state=guessed", "code=stolen", ""))
    assert "**" in use(tmp_path, protected)


def test_what_is_read_of_an_answer_is_bounded(tmp_path: Path, protected: Protected) -> None:
    protected.floods = True
    with pytest.raises(OperationError, match="more than 1 MiB"):
        signed_in(tmp_path, protected)


def test_a_refused_sign_in_is_a_failure(tmp_path: Path, protected: Protected) -> None:
    protected.authority.denies = True
    with pytest.raises(OperationError, match="access_denied"):
        signed_in(tmp_path, protected)
    assert not TokenStore(tmp_path, protected.url).signed_in


def test_a_token_does_not_travel_without_encryption(tmp_path: Path) -> None:
    with pytest.raises(OperationError, match="not an https address"):
        sign_in(tmp_path, "http://mcp.example.com/mcp", browser=Browser(), agree=lambda _: True)


@pytest.mark.parametrize("spoil", ["readable", "link", "text", "folder", "other"])
def test_a_file_of_tokens_that_cannot_be_trusted_is_not_used(tmp_path: Path, protected: Protected, spoil: str) -> None:
    signed_in(tmp_path, protected)
    file = token_file(tmp_path, protected.url)
    if spoil == "readable":
        file.chmod(0o644)
    elif spoil == "link":
        os.rename(file, tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    elif spoil == "folder":
        file.unlink()
        file.mkdir()
    elif spoil == "text":
        file.write_text("{")
    else:
        file.write_text(json.dumps({**json.loads(file.read_text()), "url": "https://example.com/"}))
    with pytest.raises(SandboxError, match="is not used") as caught:
        TokenStore(tmp_path, protected.url)
    assert caught.value.code is ErrorCode.invalid_configuration
