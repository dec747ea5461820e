"""Two providers of models on 127.0.0.1, as strict as the real ones: OpenAI's chat completions and Anthropic's messages.

Each request is checked before it is answered: an unanswered call, thinking that did not come back with its signature, a field that
the API does not know, an image where none may stand, or a prompt beyond the context is answered 400 in the provider's words.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

PIECE_CHARS = 7
BYTES_PER_TOKEN = 4
_KEY = b"of the provider alone"


@dataclass(frozen=True)
class Answer:
    """What a model says: ``thinking``, then ``text``, then ``calls`` as (name, arguments). ``refusal`` takes the place of all.

    ``cut_after`` ends a streamed answer after so many events, as a lost connection does. ``status`` other than 200 is an error.
    """

    text: str = ""
    calls: Sequence[tuple[str, Mapping[str, Any]]] = ()
    thinking: str = ""
    refusal: str = ""
    reasoning_tokens: int = 0
    status: int = 200
    error: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    delay_seconds: float = 0.0


def busy(retry_after: str | None = None) -> Answer:
    return Answer(
        status=429, error="Rate limit reached", headers={} if retry_after is None else {"retry-after": retry_after}
    )


class RefusedError(Exception):
    """The request is invalid; the text is the provider's."""


Model = Callable[[dict[str, Any]], Answer]


class Provider:
    """Context manager. ``requests`` are the bodies received and ``times`` when, ``statuses`` how they were answered.

    ``answers`` are given in order, or made by a function of the request. A prompt beyond ``context_tokens`` is refused. With
    ``requests_per_window`` no more than that many are served in ``window_seconds``; the others get 429 with Retry-After.
    """

    def __init__(
        self,
        answers: Sequence[Answer] | Model,
        *,
        context_tokens: int | None = None,
        requests_per_window: int | None = None,
        window_seconds: float = 1.0,
    ) -> None:
        self._model = answers if callable(answers) else None
        self.answers = [] if callable(answers) else list(answers)
        self.context_tokens = context_tokens
        self.requests_per_window, self.window_seconds = requests_per_window, window_seconds
        self.requests: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.statuses: list[int] = []
        self.cached: set[str] = set()
        self._served: list[float] = []
        self._lock = threading.Lock()
        outer = self

        class Handler(_Handler):
            provider = outer

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def options(self, dialect: str) -> dict[str, Any]:
        """What a client needs to speak to this server: "openai" or "anthropic"."""
        return {"api_base": self.url + ("/v1" if dialect == "openai" else ""), "api_key": "sk-test"}

    def answer(self, dialect: Dialect, request: dict[str, Any]) -> Answer:
        """The answer to a request, which is checked first. Raises RefusedError."""
        with self._lock:
            self.requests.append(request)
            self.times.append(time.monotonic())
            wait = self._wait()
            if wait is not None:
                return busy(f"{wait:.3f}")
            size = len(json.dumps([request["messages"], request.get("system"), request.get("tools")]))
            if self.context_tokens is not None and size // BYTES_PER_TOKEN > self.context_tokens:
                raise RefusedError(dialect.too_long(size // BYTES_PER_TOKEN, self.context_tokens))
            dialect.check(request)
            if self._model is None:
                return self.answers.pop(0) if self.answers else Answer(status=404, error="the test has no more answers")
        return self._model(request)

    def _wait(self) -> float | None:
        if self.requests_per_window is None:
            return None
        now = time.monotonic()
        self._served = [at for at in self._served if now - at < self.window_seconds]
        if len(self._served) < self.requests_per_window:
            self._served.append(now)
            return None
        return self.window_seconds - (now - self._served[0])


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64


class _Handler(BaseHTTPRequestHandler):
    provider: Provider

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        dialect: Dialect = Anthropic(self.provider) if self.path.endswith("/messages") else OpenAI(self.provider)
        try:
            answer = self.provider.answer(dialect, request)
        except RefusedError as refusal:
            answer = Answer(status=400, error=str(refusal))
        time.sleep(answer.delay_seconds)
        self.provider.statuses.append(answer.status)
        try:
            if answer.status != 200:
                self._send(answer.status, dialect.error(answer), answer.headers)
            elif request.get("stream"):
                self._stream(dialect.events(request, answer), answer.cut_after)
            else:
                self._send(200, dialect.whole(request, answer), answer.headers)
        except OSError:
            pass  # the client has given up, which a test of timeouts wants

    def _send(self, status: int, body: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, events: Iterator[str], cut_after: int | None) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number, event in enumerate(events):
            if number == cut_after:
                self.close_connection = True
                self.connection.close()
                return
            data = event.encode()
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        pass


class Dialect:
    """How one provider checks and words."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider

    def check(self, request: dict[str, Any]) -> None:
        raise NotImplementedError

    def too_long(self, tokens: int, most: int) -> str:
        raise NotImplementedError

    def error(self, answer: Answer) -> dict[str, Any]:
        raise NotImplementedError

    def whole(self, request: dict[str, Any], answer: Answer) -> dict[str, Any]:
        raise NotImplementedError

    def events(self, request: dict[str, Any], answer: Answer) -> Iterator[str]:
        raise NotImplementedError


# --- OpenAI ------------------------------------------------------------------------------
_OPENAI_KEYS = {
    "system": {"role", "content", "name"},
    "user": {"role", "content", "name"},
    "assistant": {"role", "content", "name", "tool_calls", "refusal", "audio", "function_call"},
    "tool": {"role", "content", "tool_call_id"},
}


class OpenAI(Dialect):
    """Chat completions."""

    def check(self, request: dict[str, Any]) -> None:
        """Unknown fields, images outside of user messages, and calls without answers are refused."""
        open_calls: set[str] = set()
        for number, message in enumerate(request["messages"]):
            self._check_fields(number, message)
            if message["role"] == "tool":
                if message["tool_call_id"] not in open_calls:
                    raise RefusedError(
                        "messages with role 'tool' must be a response to a preceding message with 'tool_calls'."
                    )
                open_calls.discard(message["tool_call_id"])
            elif open_calls:
                raise RefusedError(
                    "An assistant message with 'tool_calls' must be followed by tool messages responding to each."
                )
            open_calls |= {call["id"] for call in message.get("tool_calls") or ()}
        if open_calls:
            raise RefusedError(
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each."
            )

    def _check_fields(self, number: int, message: dict[str, Any]) -> None:
        unknown = set(message) - _OPENAI_KEYS[message["role"]]
        if unknown:
            raise RefusedError(f"Unknown parameter: 'messages[{number}].{min(unknown)}'.")
        for call in message.get("tool_calls") or ():
            if set(call) - {"id", "type", "function"}:
                raise RefusedError(f"Unknown parameter in 'messages[{number}].tool_calls'.")
        parts = message["content"] if isinstance(message.get("content"), list) else []
        if message["role"] != "user" and any(part["type"] != "text" for part in parts):
            raise RefusedError("Image URLs are only allowed for messages with role 'user'.")
        if any(set(part) - {"type", "text", "image_url"} for part in parts):
            raise RefusedError(f"Unknown parameter in 'messages[{number}].content'.")

    def too_long(self, tokens: int, most: int) -> str:
        return (
            f"This model's maximum context length is {most} tokens. However, your messages resulted in {tokens} tokens."
        )

    def error(self, answer: Answer) -> dict[str, Any]:
        code = "context_length_exceeded" if "context length" in answer.error else None
        kind = "invalid_request_error" if answer.status < 429 else "requests" if answer.status == 429 else "server_error"
        return {"error": {"message": answer.error, "type": kind, "code": code}}

    def whole(self, request: dict[str, Any], answer: Answer) -> dict[str, Any]:
        message: dict[str, Any] = {
            "role": "assistant",
            "content": answer.text or None,
            "refusal": answer.refusal or None,
        }
        calls = self._calls(request, answer)
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
        return {**self._head(request, "chat.completion"), "choices": [choice], "usage": self._usage(request, answer)}

    def events(self, request: dict[str, Any], answer: Answer) -> Iterator[str]:
        """Text in pieces; then each call, its arguments in pieces; then the usage, if it was asked for."""
        calls = self._calls(request, answer)
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{"content": piece} for piece in pieces(answer.text)]
        deltas += [{"refusal": piece} for piece in pieces(answer.refusal)]
        for number, call in enumerate(calls):
            first = {"index": number, "id": call["id"], "type": "function"}
            deltas.append({"tool_calls": [{**first, "function": {"name": call["function"]["name"], "arguments": ""}}]})
            for piece in pieces(call["function"]["arguments"]):
                deltas.append({"tool_calls": [{"index": number, "function": {"arguments": piece}}]})
        head = self._head(request, "chat.completion.chunk")
        for delta in deltas:
            yield _event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        yield _event(
            {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls" if calls else "stop"}]}
        )
        if (request.get("stream_options") or {}).get("include_usage"):
            yield _event({**head, "choices": [], "usage": self._usage(request, answer)})
        yield "data: [DONE]\n\n"

    def _calls(self, request: dict[str, Any], answer: Answer) -> list[dict[str, Any]]:
        made = answer.calls[:1] if request.get("parallel_tool_calls") is False else answer.calls
        base = f"call_{len(self.provider.requests)}"
        return [
            {"id": f"{base}_{n}", "type": "function", "function": {"name": name, "arguments": json.dumps(args)}}
            for n, (name, args) in enumerate(made)
        ]

    def _head(self, request: dict[str, Any], kind: str) -> dict[str, Any]:
        return {"id": "c1", "object": kind, "created": 1, "model": request["model"]}

    def _usage(self, request: dict[str, Any], answer: Answer) -> dict[str, Any]:
        prefixes = [
            hashlib.sha256(json.dumps(request["messages"][:n]).encode()).hexdigest()
            for n in range(1, len(request["messages"]) + 1)
        ]
        known = max((n for n, prefix in enumerate(prefixes, 1) if prefix in self.provider.cached), default=0)
        self.provider.cached |= set(prefixes)
        tokens = len(json.dumps(request["messages"])) // BYTES_PER_TOKEN
        cached = len(json.dumps(request["messages"][:known])) // BYTES_PER_TOKEN if known else 0
        out = _output_tokens(answer) + answer.reasoning_tokens
        return {
            "prompt_tokens": tokens, "completion_tokens": out, "total_tokens": tokens + out,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {"reasoning_tokens": answer.reasoning_tokens},
        }  # fmt: skip


# --- Anthropic ---------------------------------------------------------------------------
class Anthropic(Dialect):
    """Messages, with extended thinking and prompt caching."""

    def check(self, request: dict[str, Any]) -> None:
        """Thinking must come back signed, each call must be answered in the next message, and markers are at most four."""
        thinks = (request.get("thinking") or {}).get("type") == "enabled"
        open_calls: set[str] = set()
        last_call: int | None = None
        for number, message in enumerate(request["messages"]):
            blocks = _blocks(message["content"])
            self._check_blocks(number, message, blocks)
            answered = {b["tool_use_id"] for b in blocks if b["type"] == "tool_result"}
            if open_calls - answered:
                raise RefusedError(
                    f"messages.{number}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                    f"{', '.join(sorted(open_calls - answered))}."
                )
            if answered - open_calls:
                raise RefusedError(
                    f"messages.{number}.content.0: unexpected `tool_use_id` found in `tool_result` blocks."
                )
            open_calls = {b["id"] for b in blocks if b["type"] == "tool_use"}
            last_call = number if open_calls else last_call
        if open_calls:
            raise RefusedError("messages: `tool_use` ids were found without `tool_result` blocks immediately after.")
        if thinks and last_call is not None:
            first = _blocks(request["messages"][last_call]["content"])[0]["type"]
            if first not in {"thinking", "redacted_thinking"}:
                raise RefusedError(
                    f"messages.{last_call}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{first}`. "
                    "When `thinking` is enabled, a final `assistant` message must start with a thinking block."
                )
        if sum("cache_control" in block for block in self._prefix(request)) > 4:
            raise RefusedError("A maximum of 4 blocks with cache_control may be provided.")

    def _check_blocks(self, number: int, message: Mapping[str, Any], blocks: list[dict[str, Any]]) -> None:
        if any(b["type"] == "text" and not b["text"].strip() for b in blocks):
            raise RefusedError("messages: text content blocks must be non-empty")
        for at, block in enumerate(blocks):
            if block["type"] == "thinking" and (
                message["role"] != "assistant" or block.get("signature") != signed(block["thinking"])
            ):
                raise RefusedError(f"messages.{number}.content.{at}: Invalid `signature` in `thinking` block")

    def too_long(self, tokens: int, most: int) -> str:
        return f"prompt is too long: {tokens} tokens > {most} maximum"

    def error(self, answer: Answer) -> dict[str, Any]:
        kinds = {
            400: "invalid_request_error",
            401: "authentication_error",
            429: "rate_limit_error",
            529: "overloaded_error",
        }
        return {"type": "error", "error": {"type": kinds.get(answer.status, "api_error"), "message": answer.error}}

    def whole(self, request: dict[str, Any], answer: Answer) -> dict[str, Any]:
        content = self._content(request, answer)
        return {
            **self._head(request),
            "content": content,
            "stop_reason": self._stop(answer),
            "usage": self._usage(request, answer),
        }

    def events(self, request: dict[str, Any], answer: Answer) -> Iterator[str]:
        """Block after block, each in pieces; a signature comes as the last piece of its block."""
        usage = self._usage(request, answer)
        yield _named(
            "message_start",
            {
                "message": {
                    **self._head(request),
                    "content": [],
                    "stop_reason": None,
                    "usage": {**usage, "output_tokens": 1},
                }
            },
        )
        for index, block in enumerate(self._content(request, answer)):
            start, deltas = _in_pieces(block)
            yield _named("content_block_start", {"index": index, "content_block": start})
            for delta in deltas:
                yield _named("content_block_delta", {"index": index, "delta": delta})
            yield _named("content_block_stop", {"index": index})
        end = {"stop_reason": self._stop(answer), "stop_sequence": None}
        yield _named("message_delta", {"delta": end, "usage": {"output_tokens": usage["output_tokens"]}})
        yield _named("message_stop", {})

    def _content(self, request: dict[str, Any], answer: Answer) -> list[dict[str, Any]]:
        content: list[dict[str, Any]] = []
        if answer.thinking and (request.get("thinking") or {}).get("type") == "enabled":
            content.append({"type": "thinking", "thinking": answer.thinking, "signature": signed(answer.thinking)})
            content.append({"type": "redacted_thinking", "data": "b3BhcXVl"})
        if answer.text:
            content.append({"type": "text", "text": answer.text})
        alone = (request.get("tool_choice") or {}).get("disable_parallel_tool_use")
        for n, (name, args) in enumerate(answer.calls[:1] if alone else answer.calls):
            content.append(
                {
                    "type": "tool_use",
                    "id": f"toolu_{len(self.provider.requests)}_{n}",
                    "name": name,
                    "input": dict(args),
                }
            )
        return content

    def _stop(self, answer: Answer) -> str:
        return "refusal" if answer.refusal else "tool_use" if answer.calls else "end_turn"

    def _head(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"id": "msg_1", "type": "message", "role": "assistant", "model": request["model"], "stop_sequence": None}

    def _prefix(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """All blocks in the order in which they are cached."""
        system = _blocks(request.get("system") or [])
        return [
            *(request.get("tools") or ()),
            *system,
            *(b for m in request["messages"] for b in _blocks(m["content"])),
        ]

    def _usage(self, request: dict[str, Any], answer: Answer) -> dict[str, Any]:
        """What is before a marker is cached; markers themselves do not count, since they move."""
        blocks = self._prefix(request)
        bare = [json.dumps({k: v for k, v in block.items() if k != "cache_control"}) for block in blocks]
        sizes = [len(text) // BYTES_PER_TOKEN for text in bare]
        marks = [n for n, block in enumerate(blocks, 1) if "cache_control" in block]
        keys = {n: hashlib.sha256("".join(bare[:n]).encode()).hexdigest() for n in marks}
        # A marker finds what was cached at one of the twenty blocks before it.
        found = [
            n
            for end in marks
            for n in range(max(end - 20, 1), end + 1)
            if hashlib.sha256("".join(bare[:n]).encode()).hexdigest() in self.provider.cached
        ]
        read, last = max(found, default=0), max(marks, default=0)
        self.provider.cached |= set(keys.values())
        return {
            "input_tokens": sum(sizes[max(last, read) :]), "output_tokens": _output_tokens(answer) + answer.reasoning_tokens,
            "cache_read_input_tokens": sum(sizes[:read]), "cache_creation_input_tokens": sum(sizes[read:last]),
        }  # fmt: skip


def signed(thinking: str) -> str:
    """The signature that comes with this thinking."""
    return hmac.new(_KEY, thinking.encode(), hashlib.sha256).hexdigest()


def pieces(text: str) -> list[str]:
    """A text as it is streamed: cut anywhere, in words and escapes too."""
    return [text[at : at + PIECE_CHARS] for at in range(0, len(text), PIECE_CHARS)]


def _in_pieces(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    if block["type"] == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
        return {"type": "thinking", "thinking": "", "signature": ""}, [
            *deltas,
            {"type": "signature_delta", "signature": block["signature"]},
        ]
    if block["type"] == "text":
        return {"type": "text", "text": ""}, [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
    if block["type"] == "tool_use":
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces(json.dumps(block["input"]))]
        return {**block, "input": {}}, deltas
    return block, []


def _blocks(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _output_tokens(answer: Answer) -> int:
    return len(json.dumps([answer.text, answer.thinking, list(answer.calls)])) // BYTES_PER_TOKEN


def _event(data: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"


def _named(name: str, data: Mapping[str, Any]) -> str:
    return f"event: {name}\n{_event({'type': name, **data})}"
