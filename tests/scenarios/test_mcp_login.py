"""``gamebox mcp login`` as a person uses it, and a run that uses the token afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.mcp_oauth import Authority, Protected

GAMEBOX = str(Path(sys.executable).with_name("gamebox"))


@pytest.fixture
def protected() -> Iterator[Protected]:
    with Authority() as authority, Protected(authority) as protected:
        yield protected


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    without = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    return {**without, "XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CONFIG_HOME": str(tmp_path / "config")}


def gamebox(environ: dict[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([GAMEBOX, *args], env=environ, capture_output=True, text=True, timeout=120, check=False)


def log_in(environ: dict[str, str], protected: Protected) -> str:
    """Sign in, with the address that the command shows opened in a browser; returns what the command said."""
    command = [GAMEBOX, "mcp", "login", protected.url, "--authorization-server", protected.authority.origin]
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        said = ""
        for line in process.stderr:
            said += line
            if line.startswith("Sign in at: "):
                urllib.request.urlopen(line.removeprefix("Sign in at: ").strip()).close()
    assert process.returncode == 0, said
    return said


def test_a_run_uses_the_token_and_nothing_shows_it(
    protected: Protected, environ: dict[str, str], repo: Path, tmp_path: Path
) -> None:
    said = log_in(environ, protected)
    assert said.endswith(f"signed in to {protected.url}\n")
    [token] = protected.authority.tokens
    steps = tmp_path / "steps.json"
    steps.write_text(json.dumps([{"tool": "p_token", "args": {}}, {"tool": "finish", "args": {"summary": "Done."}}]))
    done = gamebox(
        environ,
        "agent",
        "t",
        "--agent",
        "coding",
        "--local",
        "--repo",
        str(repo),
        "--script",
        str(steps),
        "--mcp",
        f"p={protected.url}",
    )
    assert done.returncode == 0, done.stderr
    shown = gamebox(environ, "runs", "show", "last", "--json")
    assert "called with Bearer **" in shown.stdout
    texts = [done.stdout, done.stderr, shown.stdout, said]
    kept = [path for path in (tmp_path / "state").rglob("*") if path.is_file() and "mcp" not in path.parts]
    assert kept
    assert not [text for text in texts if token in text]
    assert not [path for path in kept if token.encode() in path.read_bytes()]


def test_signing_out_removes_the_token(protected: Protected, environ: dict[str, str], tmp_path: Path) -> None:
    log_in(environ, protected)
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "state").rglob("*.json")] == [0o600]
    assert gamebox(environ, "mcp", "logout", protected.url).returncode == 0
    assert not list((tmp_path / "state").rglob("*.json"))
    assert gamebox(environ, "mcp", "logout", protected.url).returncode == 1


def test_an_authorization_server_that_was_not_named_is_refused(protected: Protected, environ: dict[str, str]) -> None:
    done = gamebox(environ, "mcp", "login", protected.url)
    assert done.returncode == 2
    assert "which the user has not named" in done.stderr
    assert f"--authorization-server {protected.authority.origin}" in done.stderr
    assert protected.authority.requests == []
