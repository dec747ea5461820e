"""Browse: the sandbox's own servers, and what it says of what it cannot reach."""

from __future__ import annotations

import time

import pytest

from sandbox import LocalEnvironment
from sandbox.environment.sandboxed import SandboxedEnvironment

from .backends import SHELL
from .checks import done, refused

SERVER = """
import http.server
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.mark.needs(SHELL, "python")
def test_a_server_of_the_sandbox(env: SandboxedEnvironment, folder: str) -> None:
    done(env.write(f"{folder}/index.html", "<title>Hi</title><p>One <b>two</b></p><a href='next.txt'>on</a>"))
    done(env.write(f"{folder}/next.txt", "plain text " * 10))
    started = done(env.run(argv=["python3", "-c", SERVER], cwd=folder, background=True))
    try:
        deadline = time.monotonic() + 120
        while not (port := done(env.logs(started.id)).content.partition("\n")[0]) and time.monotonic() < deadline:
            time.sleep(0.02)
        page = done(env.browse(f"http://127.0.0.1:{port}/"))
        assert (page.status, page.title, page.content_type, page.truncated) == (200, "Hi", "text/html", False)
        assert "One **two**" in page.text
        assert [(link.text, link.url) for link in page.links] == [("on", f"http://127.0.0.1:{port}/next.txt")]
        part = done(env.browse(page.links[0].url, offset=6, max_chars=4))
        assert (part.text, part.total_chars, part.truncated, part.content_type) == ("text", 110, True, "text/plain")
        assert done(env.browse(f"http://127.0.0.1:{port}/none")).status == 404
        assert "<title>" in done(env.browse(f"http://127.0.0.1:{port}/", raw=True)).text
    finally:
        done(env.kill(started.id))
    refused(env.browse(f"http://127.0.0.1:{port}/"), "connection_failed", port, "background=true")


def test_nobody_listens(env: SandboxedEnvironment) -> None:
    failure = refused(env.browse("http://127.0.0.1:1/"), "connection_failed", "http://127.0.0.1:1/")
    assert failure.retryable


def test_what_is_no_address(env: SandboxedEnvironment) -> None:
    for url in ("ftp://example.com/", "file:///etc/passwd", "http://", "no address"):
        refused(env.browse(url), "invalid_url", "http:// or https://")


def test_there_is_no_network(env: SandboxedEnvironment) -> None:
    if not isinstance(env, LocalEnvironment):  # which has the host's
        refused(env.browse("http://example.com/", timeout_seconds=5), "network_denied", "no network")
    assert ("none" in env.network.mode) != isinstance(env, LocalEnvironment)


@pytest.mark.needs("shell")
def test_a_server_that_does_not_listen_yet_is_named(env: SandboxedEnvironment) -> None:
    """s44: c1 ran and did not listen yet, and the hint suggested a second start."""
    ident = done(env.run("sleep 60; serve", background=True)).id
    try:
        words = (f"If {ident} (sleep 60; serve)", f"wait_for(id='{ident}', port=8099)")
        refused(env.browse("http://localhost:8099/"), "connection_failed", *words)
    finally:
        done(env.kill(ident))
