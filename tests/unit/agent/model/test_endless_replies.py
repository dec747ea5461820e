"""Replies that do not end: a server that drips, or sends without end, is given up in time."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from agent import LiteLLMModel, receiving_deltas
from agent.core.prompt import Prompt
from agent.errors import AgentErrorCode
from agent.model.brain import ModelError
from agent.model.deadline import within

# A deadline that arrives in a finalizer is lost there, and sent again.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
SECONDS = 1.0
EMPTY = {
    "id": "c",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "delta": {}}],
}
BEGIN = b'{"id":"x","choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"'

Send = Callable[[bytes], None]


def spaces(send: Send) -> None:
    while True:
        send(b" ")
        time.sleep(0.2)


def comments(send: Send) -> None:
    while True:
        send(b": still at work\n\n")
        time.sleep(0.2)


def empty_pieces(send: Send) -> None:
    while True:
        send(f"data: {json.dumps(EMPTY)}\n\n".encode())
        time.sleep(0.01)


@contextmanager
def server(answer: Callable[[Send], None], kind: str) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.end_headers()
            try:
                answer(self._send)
            except OSError:
                pass  # the client has given up

        def _send(self, data: bytes) -> None:
            self.wfile.write(data)
            self.wfile.flush()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    http.block_on_close = False
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}"
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def model(dialect: str, url: str, seconds: float) -> LiteLLMModel:
    name, base = ("openai/test", f"{url}/v1") if dialect == "openai" else ("anthropic/claude-sonnet-4-5", url)
    return LiteLLMModel(name, timeout_seconds=seconds, max_attempts=1, api_base=base, api_key="sk-test")


def wait_until(true: Callable[[], bool], seconds: float = 30.0) -> None:
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.01)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
@pytest.mark.parametrize(
    ("answer", "kind"),
    [(spaces, "application/json"), (comments, "text/event-stream"), (empty_pieces, "text/event-stream")],
)
def test_a_reply_that_drips_ends_at_the_timeout(dialect: str, answer: Callable[[Send], None], kind: str) -> None:
    threads = threading.active_count()
    with server(answer, kind) as url:
        brain = model(dialect, url, SECONDS)
        brain.check()  # imports litellm
        began = time.monotonic()
        with (
            receiving_deltas(lambda _: None) if "event" in kind else nullcontext(),
            pytest.raises(ModelError) as caught,
        ):
            brain(Prompt(({"role": "user", "content": "hi"},)))
        took = time.monotonic() - began
    assert caught.value.code is AgentErrorCode.model_unavailable
    assert took < SECONDS + 20
    wait_until(lambda: threading.active_count() <= threads + 1)  # one of litellm's own


@pytest.mark.exhaustive
def test_a_reply_without_end_does_not_fill_the_memory() -> None:
    sent = 0

    def flood(send: Send) -> None:
        nonlocal sent
        send(BEGIN)
        while sent < 300 << 20:
            send(b"a" * (1 << 20))
            sent += 1 << 20
        send(b'"}}]}')

    with server(flood, "application/json") as url, pytest.raises(ModelError):
        model("openai", url, 60.0)(Prompt(({"role": "user", "content": "hi"},)))
    assert sent < 100 << 20


def test_after_a_deadline_programs_can_be_traced() -> None:
    """Python 3.11 never ended a traced line once an exception that was sent to a thread had been taken back."""
    program = (
        "import sys\n"
        "from agent.model.deadline import within\n"
        "def spin():\n"
        "    while True: pass\n"
        "print(within(5, ValueError('late'), lambda: 'in time'))\n"
        "try:\n"
        "    within(0.02, ValueError('late'), spin)\n"
        "except ValueError: print('late')\n"
        "sys.settrace(lambda frame, event, argument: None)\n"
        "print(sum(map(int, '123')))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "in time\nlate\n6\n"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_deadline_that_a_finalizer_swallowed_comes_again() -> None:
    class Swallows:
        def __del__(self) -> None:
            ends = time.monotonic() + 1.0
            while time.monotonic() < ends:
                pass

    def call() -> None:
        Swallows()  # the deadline comes in its finalizer, where an exception ends nothing
        while True:
            time.sleep(0.01)

    began = time.monotonic()
    with pytest.raises(ValueError, match="late"):
        within(0.1, ValueError("late"), call)
    assert time.monotonic() - began < 60
    wait_until(lambda: all(thread.name != "deadline" for thread in threading.enumerate()))
