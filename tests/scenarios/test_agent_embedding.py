"""Vectors of a model over HTTP, through litellm, and a memory that finds by them."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from agent import Budget, StopRun, forbid_real_models
from agent.core.budget import Meter, metering
from agent.errors import AgentErrorCode
from agent.memory import RecallMemory
from agent.model.embedding import LiteLLMEmbedder
from sandbox.errors import SandboxError

TOPICS = {"cat": 0, "kitten": 0, "feline": 0, "car": 1, "engine": 1, "vehicle": 1}


class Embeddings(http.server.BaseHTTPRequestHandler):
    """Puts words of one topic near each other; answers with an error as the path says."""

    asked: list[list[str]]
    times: list[float]

    def do_POST(self) -> None:
        """See the base class."""
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path.startswith("/broken"):
            self.answer(400, {"error": {"message": "no such model", "type": "invalid_request_error"}})
            return
        texts = request["input"]
        Embeddings.asked.append(texts)
        Embeddings.times.append(time.monotonic())
        if self.path.startswith("/busy") and len(Embeddings.asked) == 1:
            self.answer(429, {"error": {"message": "slow down", "type": "requests"}}, {"retry-after": "1"})
            return
        rows = [{"object": "embedding", "index": n, "embedding": vector(text)} for n, text in enumerate(texts)]
        if self.path.startswith("/few"):
            rows = rows[:-1]
        usage = {"prompt_tokens": 3 * len(texts), "total_tokens": 3 * len(texts)}
        self.answer(200, {"object": "list", "data": rows[::-1], "model": "test", "usage": usage})

    def answer(self, status: int, body: dict[str, Any], headers: Mapping[str, str] | None = None) -> None:
        """Send JSON."""
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


def vector(text: str) -> list[float]:
    found = [0.01, 0.01, 0.02]
    for word in text.lower().split():
        if word in TOPICS:
            found[TOPICS[word]] += 1.0
    return found


@pytest.fixture
def base() -> Iterator[str]:
    Embeddings.asked, Embeddings.times = [], []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Embeddings) as listener:
        listener.daemon_threads = True
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listener.server_address[1]}"
        listener.shutdown()


def embedder(base: str) -> LiteLLMEmbedder:
    return LiteLLMEmbedder("openai/test-embedding", api_base=base, api_key="sk-test")


def test_a_memory_finds_by_meaning(base: str) -> None:
    memory = RecallMemory(embed=embedder(base))
    for text in ("the kitten sleeps", "an engine roars", "nothing at all"):
        memory.add_memory({"role": "user", "content": text})
    with metering(Meter(Budget())) as meter:
        assert memory.recall("feline", 1)[0].message == 1
        assert memory.recall("vehicle", 1)[0].message == 2
    assert [len(texts) for texts in Embeddings.asked] == [3, 1, 1], "each message is embedded once"
    assert (meter.usage.calls, meter.usage.input_tokens) == (3, 15)


def test_vectors_come_in_the_order_of_their_texts(base: str) -> None:
    assert embedder(base)(["cat", "car"]) == [vector("cat"), vector("car")]


def test_faults_are_told_and_leave_the_words(base: str) -> None:
    with metering(Meter(Budget())) as meter, pytest.raises(SandboxError) as caught:
        embedder(f"{base}/broken")(["cat"])
    assert caught.value.code is AgentErrorCode.model_rejected_request
    assert meter.usage.failed_calls == 1
    with pytest.raises(SandboxError, match="1 texts with 0 vectors"):
        embedder(f"{base}/few")(["cat"])
    with forbid_real_models(), pytest.raises(SandboxError) as forbidden:
        embedder(base)(["cat"])
    assert forbidden.value.code is AgentErrorCode.real_calls_forbidden
    memory = RecallMemory(embed=embedder(f"{base}/broken"))
    memory.add_memory({"role": "user", "content": "the kitten sleeps"})
    assert memory.recall("kitten")[0].message == 1
    with pytest.raises(SandboxError):
        LiteLLMEmbedder("")


def test_a_limit_is_waited_for_by_all_callers_of_the_model(base: str, caplog: pytest.LogCaptureFixture) -> None:
    """The first call is refused for a second; no other one goes out before that, and none is lost."""
    found: list[list[list[float]]] = []
    first, second = embedder(f"{base}/busy"), embedder(f"{base}/busy")
    threads = [threading.Thread(target=lambda: found.append(first(["cat"])))]
    with metering(Meter(Budget())) as meter:
        threads[0].start()
        while "trying again" not in caplog.text:
            time.sleep(0.01)
        found.append(second(["cat"]))
    threads[0].join()
    assert found == [[vector("cat")]] * 2
    assert len(Embeddings.asked) == 3
    assert Embeddings.times[1] - Embeddings.times[0] >= 0.9
    assert (meter.usage.calls, meter.usage.failed_calls) == (1, 0), "the thread has a meter of its own"


def test_a_call_beyond_the_budget_is_not_made(base: str) -> None:
    with metering(Meter(Budget(max_tokens=1))) as meter:
        embedder(base)(["cat"])
        with pytest.raises(StopRun):
            embedder(base)(["cat"])
    assert (meter.usage.calls, len(Embeddings.asked)) == (1, 1)
