"""An OpenAI-compatible server of our own on 127.0.0.1: each request is answered by the next reply of a list, or by a brain that
knows nothing but the request.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}


@dataclass(frozen=True)
class Reply:
    """One HTTP answer, after ``delay_seconds``."""

    body: Mapping[str, Any]
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_seconds: float = 0.0


def text(content: Any, finish: str = "stop") -> Reply:
    return Reply(_completion({"role": "assistant", "content": content}, finish))


def call(name: str, arguments: Mapping[str, Any] | str, *, content: Any = None, finish: str = "tool_calls") -> Reply:
    return calls([(name, arguments)], content=content, finish=finish)


def calls(
    named: Sequence[tuple[str, Mapping[str, Any] | str]], *, content: Any = None, finish: str = "tool_calls"
) -> Reply:
    made = [
        {
            "id": f"call_{name}_{number}",
            "type": "function",
            "function": {"name": name, "arguments": a if isinstance(a, str) else json.dumps(a)},
        }
        for number, (name, a) in enumerate(named)
    ]
    return Reply(_completion({"role": "assistant", "content": content, "tool_calls": made}, finish))


def error(status: int, message: str, *, code: str | None = None, headers: Mapping[str, str] | None = None) -> Reply:
    return Reply({"error": {"message": message, "type": "error", "code": code}}, status, headers or {})


def _completion(message: Mapping[str, Any], finish: str) -> dict[str, Any]:
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {
        "id": "c1", "object": "chat.completion", "created": 1, "choices": [choice], "usage": USAGE,
    }  # fmt: skip


Brain = Callable[[dict[str, Any]], Any]


def reply_to(request: dict[str, Any], brain: Brain) -> Reply:
    """What ``brain`` says to the body of a request: text, or a message with calls. What it asserts in vain is refused."""
    try:
        said = brain(request)
    except AssertionError as missing:
        return error(400, f"the prompt does not say enough: {missing}")
    return text(said) if isinstance(said, str) else Reply(_completion(said, "tool_calls"))


class ModelServer:
    """Context manager; ``requests`` are the bodies received, ``base_url`` goes to the client. ``replies`` is a list, or a brain."""

    def __init__(self, replies: Sequence[Reply] | Brain) -> None:
        brain = replies if callable(replies) else None
        self.replies = [] if callable(replies) else list(replies)
        self.requests: list[dict[str, Any]] = []
        self.times: list[float] = []
        lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with lock:
                    outer.requests.append(json.loads(body))
                    outer.times.append(time.monotonic())
                    if brain is not None:
                        reply = reply_to(json.loads(body), brain)
                    else:
                        reply = outer.replies.pop(0) if outer.replies else error(404, "the test has no more replies")
                time.sleep(reply.delay_seconds)
                data = json.dumps({**reply.body, "model": json.loads(body)["model"]}).encode()
                try:
                    self.send_response(reply.status)
                    for name, value in {"Content-Type": "application/json", **reply.headers}.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:
                    pass  # the client has given up, which a test of timeouts wants

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self.base_url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
