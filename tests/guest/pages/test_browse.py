"""Opening pages of a real server on this machine, through the real program."""

from __future__ import annotations

import gzip
import http.server
import json
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from sandbox.guest.pages.browse import browse
from sandbox.guest.pages.page_text import extract
from sandbox.guest.protocol.faults import Fault
from tests.guest.calls import RunningProcesses, forger

PAGE = """<!doctype html><html><head><title> The
 title </title><style>p {color: red}</style></head><body><script>evil()</script>
<h1>Head</h1><p>Some <b>bold</b> text.</p><ul><li>one</li><li>two</li></ul>
<a href="/next?a=1#frag">Next</a> <a href="javascript:x()">js</a> <a href="mailto:a@b">m</a> <a href="http://[bad">bad</a>
<table><tr><th>a</th></tr><tr><td>1</td></tr></table></body></html>"""


class Pages(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def answer(self, body: bytes, content_type: str | None = "text/plain", status: int = 200, **headers: str) -> None:
        self.send_response(status)
        if content_type:
            self.send_header("Content-Type", content_type)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        page = getattr(self, "page_" + path.strip("/"), None)
        if page is None:
            self.answer(b"nothing here", status=404)
        else:
            page(query)

    def page_html(self, query: str) -> None:
        self.answer(PAGE.encode(), "text/html")

    def page_deep(self, query: str) -> None:
        self.answer(b"<html>" + b"<div>" * 20_000 + b"bottom", "text/html")

    def page_latin(self, query: str) -> None:
        self.answer("<meta charset=iso-8859-1><p>é</p>".encode("latin-1"), "text/html")

    def page_json(self, query: str) -> None:
        self.answer(b'{"a": 1}', "application/problem+json")

    def page_image(self, query: str) -> None:
        self.answer(b"\x89PNG\0", "image/png")

    def page_none(self, query: str) -> None:
        self.answer(b"plain", None)

    def page_hop(self, query: str) -> None:
        left = int(query)
        self.answer(b"", status=302, Location=f"/hop?{left - 1}" if left > 1 else "/json")

    def page_file(self, query: str) -> None:
        self.answer(b"", status=301, Location="file:///etc/passwd")

    def page_away(self, query: str) -> None:
        self.answer(b"", status=301, Location="http://192.0.2.1.invalid/")

    def page_big(self, query: str) -> None:
        self.answer(b"x" * (6 << 20))

    def page_gzip(self, query: str) -> None:
        self.answer(gzip.compress(b"packed"), Content_Encoding="gzip")

    def page_bomb(self, query: str) -> None:
        self.answer(zlib.compress(bytes(200 << 20)), Content_Encoding="deflate")

    def page_drip(self, query: str) -> None:
        self.send_response(200)
        self.end_headers()
        for _ in range(1000):
            self.wfile.write(b"x")
            self.wfile.flush()
            time.sleep(0.1)

    def page_short(self, query: str) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b"cut off")

    def page_agent(self, query: str) -> None:
        self.answer(json.dumps(dict(self.headers)).encode())


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients that go away are part of these tests


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with Server(("127.0.0.1", 0), Pages) as pages:
        thread = threading.Thread(target=pages.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{pages.server_port}"
        pages.shutdown()
        thread.join()


def opened(guest: RunningProcesses, url: str, **args: Any) -> dict[str, Any]:
    return browse(guest.call(url=url, **args))


def refused(guest: RunningProcesses, url: str, **args: Any) -> Fault:
    with pytest.raises(Fault) as caught:
        opened(guest, url, **args)
    return caught.value


def test_a_page(guest: RunningProcesses, server: str) -> None:
    result = opened(guest, f"{server}/html")
    assert (result["status"], result["title"], result["content_type"]) == (200, "The title", "text/html")
    assert "# Head" in result["text"]
    assert "Some **bold** text." in result["text"]
    assert "| 1 |" in result["text"]
    assert "evil" not in result["text"]
    assert "color" not in result["text"]
    assert result["links"] == [{"text": "Next", "url": f"{server}/next?a=1#frag"}]
    assert (result["size_bytes"], result["truncated"], result["redirects"]) == (len(PAGE), False, [])
    raw = opened(guest, f"{server}/html", raw=True, offset=3, max_chars=7)
    assert (raw["text"], raw["truncated"], raw["total_chars"]) == (PAGE[3:10], True, len(PAGE))


def test_kinds(guest: RunningProcesses, server: str) -> None:
    assert opened(guest, f"{server}/json")["text"] == '{"a": 1}'
    assert opened(guest, f"{server}/none")["text"] == "plain"
    assert opened(guest, f"{server}/latin")["text"] == "é"
    assert opened(guest, f"{server}/gzip")["text"] == "packed"
    image = opened(guest, f"{server}/image")
    assert "image/png, 5 bytes" in image["text"]
    missing = opened(guest, f"{server}/missing")
    assert (missing["status"], missing["text"]) == (404, "nothing here")


def test_redirects(guest: RunningProcesses, server: str) -> None:
    result = opened(guest, f"{server}/hop?10")
    assert (result["final_url"], len(result["redirects"]), result["text"]) == (f"{server}/json", 10, '{"a": 1}')
    assert refused(guest, f"{server}/hop?11").code == "too_many_redirects"
    assert refused(guest, f"{server}/file").code == "invalid_url"
    assert refused(guest, f"{server}/away").code == "network_denied"


def test_bounds(guest: RunningProcesses, server: str) -> None:
    big = opened(guest, f"{server}/big", max_chars=100)
    assert (len(big["text"]), big["truncated"]) == (100, True)
    bomb = opened(guest, f"{server}/bomb", raw=True)
    assert bomb["truncated"]
    assert bomb["total_chars"] <= 5 << 20
    assert "bottom" in opened(guest, f"{server}/deep")["text"]
    short = opened(guest, f"{server}/short")
    assert (short["text"], short["truncated"]) == ("cut off", True)


def test_the_deadline_covers_a_page_that_drips(guest: RunningProcesses, server: str) -> None:
    started = time.monotonic()
    fault = refused(guest, f"{server}/drip", timeout_seconds=1.5)
    assert (fault.code, fault.fields["seconds"]) == ("timeout", 1.5)
    assert time.monotonic() - started < 30  # it drips for longer


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://127.0.0.1/",
        "http://",
        "data:text/plain,x",
        "no address",
        "http://h:99999/",
        "http://a b/",
        "http://\ud800/",
    ],
)
def test_invalid_addresses(guest: RunningProcesses, url: str) -> None:
    assert refused(guest, url).code == "invalid_url"


def test_a_server_that_is_not_there(guest: RunningProcesses) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        fault = refused(guest, f"http://127.0.0.1:{unused.getsockname()[1]}/")
    assert fault.code == "connection_failed"
    assert "refused" in fault.fields["problem"]
    assert refused(guest, "http://nowhere.invalid/").code == "network_denied"


def test_user_names_are_not_sent_and_proxies_not_asked_for_the_sandbox_itself(
    guest: RunningProcesses, server: str
) -> None:
    guest.place.environ.update(http_proxy="http://127.0.0.1:1", PYTHONSAFEPATH="")
    headers = opened(guest, server.replace("//", "//user:secret@") + "/agent")["text"]
    assert "secret" not in headers
    assert "Authorization" not in headers


@pytest.mark.parametrize(
    "output",
    [
        b"",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"fault": "sandbox_unavailable", "fields": {}}',
        b'{"fault": "timeout", "fields": []}',
        b'{"url": "x"}',
        json.dumps({"links": "abc", "redirects": {}, "status": True}).encode(),
    ],
)
def test_forged_answers_are_refused(guest: RunningProcesses, output: bytes) -> None:
    guest.place.interpreter = forger(b"\n" + output + b"\n")
    fault = refused(guest, "http://127.0.0.1/")
    assert fault.code == "io_error"


def test_names_have_no_backslash() -> None:
    """A12: render_page was returned as render\\_page, which no file contains."""
    _, text, _ = extract("<p>Call render_page(*args) of my_module, see <code>a_b</code>.</p>", "http://example.com/")
    assert text == "Call render_page(*args) of my_module, see `a_b`."
