"""The processes that read pages: what a page leaves does not reach the next one, and the one that waits may end at any time."""

from __future__ import annotations

import http.server
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from sandbox import LocalEnvironment
from sandbox.guest.commands.output import STDOUT
from sandbox.guest.loop.context import HelperResult
from sandbox.guest.pages import readers
from sandbox.guest.pages.browse import browse
from sandbox.guest.pages.lines import Lines
from sandbox.guest.pages.response import Response
from sandbox.guest.protocol.faults import Fault
from sandbox.guest.watch.procfs import find_descendants, read_file, read_stat
from tests.guest.calls import MODULES, RunningProcesses, forger

# Counts the pages that this process has read.
COUNTING = """
from sandbox.guest.pages import page
seen = []
page._read_first = page._read
page.browse = lambda request: {"page": seen.append(request) or len(seen), "pid": page.os.getpid()}
raise SystemExit(page.main())
"""
# Leaves a process behind that has its descriptors.
LEAVING = """
import os, sys, time
sys.stdin.readline()
left = os.fork()
if left == 0:
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    time.sleep(600)
    os._exit(0)
print()
print('{"left": %d}' % left, flush=True)
sys.stdin.read()
"""


ANSWERS = {"/gone": (404, ""), "/on": (302, "/"), "/round": (302, "/round"), "/bad": (302, "http://[::1/"), "/far": (302, "ftp://a/")}


class Pages(http.server.BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        self.server.asked.set()  # type: ignore[attr-defined]
        if self.path == "/slow":
            self.server.go.wait(60)  # type: ignore[attr-defined]
        status, location = ANSWERS.get(self.path, (200, ""))
        self.send_response(status)
        self.send_header("Content-Type", "text/html")
        if location:
            self.send_header("Location", location)
        self.end_headers()
        try:
            self.wfile.write(b"<title>Hi</title><p>text")
            if self.path == "/long":
                self.wfile.write(b"<p>more" * (2 << 17))
        except ConnectionError:  # it was killed
            pass


class Server(http.server.ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Pages)
        self.asked, self.go = threading.Event(), threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients that go away are part of these tests


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as pages:
        thread = threading.Thread(target=pages.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield pages
        pages.go.set()
        pages.shutdown()
        thread.join()


def read(guest: RunningProcesses, url: str) -> str:
    return str(browse(guest.call(url=url))["text"])


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


def waiting(guest: RunningProcesses) -> int | None:
    """The process that waits for the next page."""
    reader = guest.processes.page_readers.waiting
    runner = None if reader is None else reader._command.runner
    return None if runner is None else next(iter(find_descendants(runner.pid)), None)


def waits(guest: RunningProcesses) -> int:
    """The same, as soon as there is one."""
    eventually(lambda: waiting(guest))
    found = waiting(guest)
    assert found is not None
    return found


def test_each_page_is_read_in_the_state_before_the_first() -> None:
    request = json.dumps({"url": "x", "timeout_seconds": 60, "deadline": time.monotonic() + 60}).encode() + b"\n"
    argv, env = [sys.executable, "-c", COUNTING], {**os.environ, "PYTHONPATH": str(Path(MODULES))}
    done = subprocess.run(argv, input=3 * request, capture_output=True, check=True, env=env)
    lines = done.stdout.splitlines()
    answers = [json.loads(line) for line in lines[1::2]]
    assert lines[::2] == [b""] * 3
    assert [answer["page"] for answer in answers] == [1, 1, 1]
    assert len({answer["pid"] for answer in answers}) == 3


def test_one_process_reads_one_page_after_the_other(guest: RunningProcesses, server: Server) -> None:
    for _ in range(2):
        assert "text" in read(guest, server.url)
        first = waits(guest)
    assert "text" in read(guest, server.url)
    assert waits(guest) == first


def test_pages_at_the_same_time(guest: RunningProcesses, server: Server) -> None:
    """Each has a process to itself, of which one waits afterwards."""
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(read(guest, f"{server.url}/slow"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    eventually(server.asked.is_set)
    assert "text" in read(guest, server.url)
    server.go.set()
    for thread in threads:
        thread.join()
    assert found == [found[0]] * 3
    last = waits(guest)
    eventually(lambda: programs_of(guest.launcher) == [last])


def programs_of(root: int) -> list[int]:
    """The processes below ``root`` that read pages."""
    return [pid for pid in find_descendants(root) if b"pages.page" in read_file(f"/proc/{pid}/cmdline")]


def test_a_reader_that_is_killed_while_it_waits(guest: RunningProcesses, server: Server) -> None:
    assert "text" in read(guest, server.url)
    for _ in range(5):
        os.kill(waits(guest), signal.SIGKILL)
        assert "text" in read(guest, server.url)  # whether or not the guest knows of it yet
    killed = waits(guest)
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: waiting(guest) is None)
    assert "text" in read(guest, server.url)


def test_a_reader_that_is_killed_while_it_reads_is_not_asked_again(guest: RunningProcesses, server: Server) -> None:
    assert "text" in read(guest, server.url)
    pid = waits(guest)
    server.asked.clear()

    def kill() -> None:
        server.asked.wait(60)
        server.asked.clear()
        os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(Fault) as caught:
        read(guest, f"{server.url}/slow")
    killer.join()
    assert caught.value.code == "io_error"
    assert not server.asked.is_set()
    assert "text" in read(guest, server.url)


@pytest.mark.parametrize("path", ["/", "/gone", "/on", "/round", "/bad", "/far", "/long", "refused"])
def test_a_first_page_is_answered_as_a_later_one_is(guest: RunningProcesses, server: Server, path: str) -> None:
    url = "http://127.0.0.1:1/" if path == "refused" else f"{server.url}{path}"

    def answer() -> object:
        try:
            return browse(guest.call(url=url))
        except Fault as fault:
            return fault.code, fault.fields

    first = answer()
    eventually(lambda: guest.processes.page_readers.waiting is not None or not programs_of(guest.launcher))
    read(guest, server.url)
    waits(guest)
    assert answer() == first
    assert (path in ("/", "/gone", "/on", "/long")) == isinstance(first, dict)


@pytest.mark.parametrize("which", ["fetches", "presents"])
def test_a_part_of_the_first_reader_that_is_killed(guest: RunningProcesses, server: Server, which: str) -> None:
    """Two processes work on a first page: one fetches it, and the other one waits for what that has fetched."""

    def kill() -> None:
        server.asked.wait(60)
        eventually(lambda: len(programs_of(guest.launcher)) == 3)
        pids = programs_of(guest.launcher)
        children = [pid for pid in pids if (stat := read_stat(pid)) is not None and stat.parent in pids]
        nothing = {"fetches": True, "presents": False}[which]  # what that process reads
        found = [pid for pid in children if (os.readlink(f"/proc/{pid}/fd/0") == os.devnull) == nothing]
        killed.extend(found)
        os.kill(found[0], signal.SIGKILL)

    killed: list[int] = []

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(Fault) as caught:
        read(guest, f"{server.url}/slow")
    killer.join()
    assert len(killed) == 1
    assert caught.value.code == "io_error"
    eventually(lambda: not programs_of(guest.launcher))
    assert "text" in read(guest, server.url)


def test_it_ends_when_no_page_follows(guest: RunningProcesses, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "IDLE_SECONDS", 0.5)
    assert "text" in read(guest, server.url)
    eventually(lambda: not programs_of(guest.launcher))
    assert guest.processes.page_readers.waiting is None
    assert "text" in read(guest, server.url)


def test_it_ends_after_a_page_that_could_not_be_opened(guest: RunningProcesses, server: Server) -> None:
    for _ in range(2):
        with pytest.raises(Fault):
            read(guest, "http://127.0.0.1:1/")
        eventually(lambda: not programs_of(guest.launcher))
    assert "text" in read(guest, server.url)


def test_it_ends_when_memory_is_nearly_full(guest: RunningProcesses, server: Server) -> None:
    assert "text" in read(guest, server.url)
    waits(guest)
    guest.call().hand_over(guest.processes.memory_watch.on_nearly_full)
    eventually(lambda: not programs_of(guest.launcher))
    assert "text" in read(guest, server.url)


def test_what_a_page_leaves_running_is_killed(guest: RunningProcesses) -> None:
    guest.place.interpreter = (sys.executable, "-c", LEAVING)
    left = guest.call().await_report(lambda report: readers_of(guest).read(b"\n", 60, report))
    pid = json.loads(left.stdout)["left"]
    eventually(lambda: (stat := read_stat(pid)) is None or stat.letter in "ZX")
    assert guest.processes.page_readers.waiting is None


def readers_of(guest: RunningProcesses) -> readers.PageReaders:
    """The guest's, made if need be."""
    if guest.processes.page_readers is None:
        guest.processes.page_readers = readers.PageReaders(guest.processes)
    found: readers.PageReaders = guest.processes.page_readers
    return found


def test_an_answer_that_nobody_asked_for_is_not_that_of_the_next_page(guest: RunningProcesses, server: Server) -> None:
    honest = guest.place.interpreter
    guest.place.interpreter = forger(b'\n{}\n\n{"fault": "timeout", "fields": {}}\n')
    with pytest.raises(Fault):
        read(guest, server.url)
    guest.place.interpreter = honest
    assert "text" in read(guest, server.url)


def test_a_page_that_is_cancelled(guest: RunningProcesses, server: Server) -> None:
    call = guest.call(url=f"{server.url}/slow")
    caught: list[Fault] = []

    def cancelled() -> None:
        with pytest.raises(Fault) as raised:
            browse(call)
        caught.append(raised.value)

    thread = threading.Thread(target=cancelled)
    thread.start()
    eventually(server.asked.is_set)
    call.cancel()
    thread.join()
    assert caught[0].code == "cancelled"
    eventually(lambda: not programs_of(guest.launcher))


def test_lines_that_nobody_takes_are_bounded() -> None:
    lines = Lines(1000)
    for _ in range(50):
        lines.append(STDOUT, b"\n" * 1000)
    assert lines.overflown
    assert lines.take() is None


def test_a_page_that_was_answered_ends_nothing() -> None:
    """Its caller may cancel it a moment too late: then the process reads another page."""
    page = readers._Page(b"", lambda _: None)
    page.timer, page.reader = Mock(), Mock()
    page.answer(HelperResult(0, b"{}", b"", False, False))
    page.stop("cancelled")
    page.reader.stop.assert_not_called()


def test_a_local_environment_leaves_no_reader(server: Server) -> None:
    with LocalEnvironment() as env:
        assert env.backend.process is not None
        guest = env.backend.process.pid
        assert "text" in env.browse(server.url).unwrap().text
        found = programs_of(guest)
        assert "text" in env.browse(server.url).unwrap().text
        assert programs_of(guest) == found
        assert len(found) == 1
        env.run(f"kill -9 {found[0]}").unwrap()
        assert "text" in env.browse(server.url).unwrap().text
        last = programs_of(guest)
    eventually(lambda: all((stat := read_stat(pid)) is None or stat.letter in "ZX" for pid in last))


def test_a_first_page_does_not_wait_for_what_it_does_not_need() -> None:
    """bs4 imports both by itself: together they take half of the time until a first page is read."""
    program = """
import sys
from sandbox.guest.pages import page, page_text
assert page.main() == 0
print(page_text.extract("<title>T</title><p class=a>one <b>two</b><a href=x>three</a>", "http://a.example.com/"))
print([getattr(sys.modules[name], "__file__", None) for name in ("soupsieve",)], sys.modules["typing_extensions"].__name__)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=True
    )
    found = "('T', 'T\\n\\none **two**[three](x)', [{'text': 'three', 'url': 'http://a.example.com/x'}])"
    assert done.stdout.splitlines() == [found, "[None] typing"]


def test_a_body_that_was_cut_off_is_no_page() -> None:
    """The process that fetched it may have been killed for lack of memory."""
    page = Response("http://a/", 200, "text/html", None, None, b"x" * 1000, 1000, False, [])
    written = io.BytesIO()
    page.write(written)
    line, _, body = written.getvalue().partition(b"\n")
    found = Response.read(json.loads(line), io.BytesIO(body))
    assert [getattr(found, name) for name in Response.__slots__] == [getattr(page, name) for name in Response.__slots__]
    with pytest.raises(EOFError):
        Response.read(json.loads(line), io.BytesIO(body[:-1]))
