"""Servers of every version of the protocol, each strict about its own, on standard streams and over HTTP."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.mcp.client import Wire
from agent.mcp.http import HttpWire
from agent.mcp.server import Server
from agent.mcp.stdio import SandboxWire
from sandbox import LocalEnvironment
from sandbox.errors import ErrorCode, OperationError

SERVER = Path(__file__).parents[3] / "servers/mcp_versions.py"
VERSIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"]
OFFICIAL = Path(__file__).parents[3] / "servers/mcp_official.py"


@pytest.fixture(scope="module")
def env() -> Iterator[LocalEnvironment]:
    with LocalEnvironment() as env:
        yield env


def uses_its_tools(make_wire: Callable[[], Wire], version: str) -> None:
    server = Server("v", make_wire, seconds=20)
    try:
        server.start()
        assert [tool.name for tool in server.tools] == ["repeat", "version"]
        assert server.problems == ()
        assert server.version == version
        assert server.call("version", {}) == version
        shown = {"text": "haha", "structured": {"text": "haha"}} if version >= "2025-06-18" else "haha"
        assert server.call("repeat", {"text": "ha"}) == shown
        with pytest.raises(OperationError, match="nothing to repeat") as caught:
            server.call("repeat", {"text": ""})
        assert caught.value.code is ErrorCode.tool_error
    finally:
        server.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_on_standard_streams(env: LocalEnvironment, version: str) -> None:
    uses_its_tools(lambda: SandboxWire(env, f"exec python3 {SERVER} {version}"), version)


@contextmanager
def address(version: str) -> Iterator[str]:
    with subprocess.Popen([sys.executable, str(SERVER), version, "0"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
        finally:
            process.terminate()


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_over_http(version: str) -> None:
    """Streamable HTTP exists since 2025-03-26."""
    with address(version) as url:
        uses_its_tools(lambda: HttpWire(url), version)


def test_a_session_that_the_server_forgot_is_begun_anew() -> None:
    with address("2025-06-18") as url:
        server = Server("v", lambda: HttpWire(url), seconds=20)
        try:
            server.start()
            server.call("repeat", {"text": "forget"})
            with pytest.raises(OperationError, match="forgotten the session") as caught:
                server.call("version", {})
            assert caught.value.code is ErrorCode.command_ended
            assert server.call("version", {}) == "2025-06-18"
        finally:
            server.close()


def test_a_change_that_a_server_of_the_newest_version_does_not_report_is_noticed(
    env: LocalEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server("v", lambda: SandboxWire(env, f"exec python3 {SERVER} 2026-07-28"), seconds=20)
    try:
        server.start()
        server.call("repeat", {"text": "change"})
        assert server.call("version", {}) == "2026-07-28", "the listing is not old yet"
        monkeypatch.setattr("agent.mcp.server.LISTING_SECONDS", 0.0)
        with pytest.raises(OperationError, match="not what it was at the start"):
            server.call("version", {})
    finally:
        server.close()


def test_the_newest_version_is_spoken_with_the_official_package(env: LocalEnvironment) -> None:
    server = Server("v", lambda: SandboxWire(env, f"exec {sys.executable} {OFFICIAL}"), seconds=20)
    try:
        server.start()
        assert server.version == "2026-07-28"
    finally:
        server.close()
