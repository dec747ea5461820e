"""The requests to one sandbox: each is a task of its own, which goes on whether or not its caller is still there."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from sandbox.envelope import Envelope
from sandbox.operations.wire import envelope_data
from sandbox.pipe.watching import CancelToken
from sandbox.service.http.problems import Problem, ProblemCode

from .bridges import BodyBridge
from .output import OutputLog

# Answers that are kept for those who ask again with the same id.
MOST_ANSWERS, MOST_ANSWER_BYTES = 64, 8 << 20
# They go on when their clients leave, so that the bound on a tenant's connections does not bound them.
MOST_UNDER_WAY = 1000
# How long the whole output of a command that has ended can be read by those who were cut.
SPILL_SECONDS = 300.0


class Answer:
    """An envelope, and how it is sent."""

    def __init__(self, envelope: Envelope[Any]) -> None:
        self.envelope = envelope
        self.plain = _encoded(envelope, with_bytes=False)
        """The envelope as JSON. Bytes of names that are not UTF-8 come as lone surrogates, escaped."""

    def json(self, *, with_bytes: bool) -> bytes:
        """Return the envelope as JSON, with the bytes of its result that texts cannot hold for those who ask for them."""
        return _encoded(self.envelope, with_bytes=True) if with_bytes else self.plain


def _encoded(envelope: Envelope[Any], *, with_bytes: bool) -> bytes:
    return json.dumps(envelope_data(envelope, with_bytes=with_bytes)).encode()


@dataclass(eq=False)
class RequestUnderWay:
    """One request; ``answer`` is known once ``task`` is done. ``output`` is None unless it is streamed.

    ``stdin`` is what the command reads if its client streams it. ``resent`` says that a service before this one sent it, too.
    """

    id: str
    operation: str
    digest: bytes
    output: OutputLog | None = None
    stdin: BodyBridge | None = None
    cancel: CancelToken = field(default_factory=CancelToken)
    task: asyncio.Task[Answer] | None = None
    resent: bool = False

    @property
    def answer(self) -> Answer | None:
        """The answer; None while it is not known."""
        task = self.task
        done = task is not None and task.done() and not task.cancelled() and task.exception() is None
        return task.result() if task is not None and done else None

    async def wait(self) -> Answer:
        """Wait for the answer; if the waiting is cancelled, the request goes on. Raises what it raised."""
        if self.task is None:
            raise RuntimeError("the request was not begun")
        return await asyncio.shield(self.task)


class Requests:
    """The requests under way of one sandbox, and its last answers, by their ids."""

    def __init__(self) -> None:
        self._by_id: dict[str, RequestUnderWay] = {}
        self._answered: dict[str, int] = {}  # the sizes of the answers with what is kept of their output, in their order
        self._kept_bytes = 0

    def find(self, ident: str) -> RequestUnderWay:
        """Return a request under way, or one that was answered lately. Raises Problem."""
        found = self._by_id.get(ident)
        if found is None:
            raise unknown_request(ident)
        return found

    def same(self, ident: str, digest: bytes) -> RequestUnderWay | None:
        """Return the request with that id, if it was made already. Raises Problem if that was another request."""
        found = self._by_id.get(ident)
        if found is not None and found.digest != digest:
            raise reused(ident)
        return found

    def check_room(self) -> None:
        """Raise Problem if there are as many under way as there may be."""
        count = len(self._by_id) - len(self._answered)
        if count >= MOST_UNDER_WAY:
            raise Problem(
                429,
                ProblemCode.quota_exceeded,
                f"{count} requests to this sandbox are under way, of {MOST_UNDER_WAY} at once.",
                "Wait for the answers to some of them, or stop them: DELETE /v1/sandboxes/{id}/requests/{request_id}.",
                retryable=True,
                headers={"Retry-After": "1"},
                quota="requests_under_way",
                limit=MOST_UNDER_WAY,
                used=count,
            )

    def begin(
        self, request: RequestUnderWay, work: Callable[[RequestUnderWay], Coroutine[Any, Any, Answer]]
    ) -> RequestUnderWay:
        """Have ``work`` carry out a request in a task of its own."""
        self._by_id[request.id] = request
        request.task = asyncio.create_task(work(request), name=f"{request.operation} {request.id}")
        request.task.add_done_callback(lambda task: self._ended(request, task))
        return request

    def under_way(self) -> list[RequestUnderWay]:
        """Return the requests that were not answered yet."""
        return [each for each in self._by_id.values() if each.task is not None and not each.task.done()]

    def _ended(self, request: RequestUnderWay, task: asyncio.Task[Answer]) -> None:
        if request.output is not None:
            request.output.finish()
            asyncio.get_running_loop().call_later(SPILL_SECONDS, request.output.forget_spill)
        if request.stdin is not None:
            request.stdin.break_off()
        if task.cancelled() or task.exception() is not None:  # nothing to be had by asking again
            self._by_id.pop(request.id, None)
            return
        kept_output = 0 if request.output is None else request.output.memory_bytes
        self._answered[request.id] = size = len(task.result().plain) + kept_output
        self._kept_bytes += size
        while len(self._answered) > 1 and (len(self._answered) > MOST_ANSWERS or self._kept_bytes > MOST_ANSWER_BYTES):
            oldest = next(iter(self._answered))
            self._kept_bytes -= self._answered.pop(oldest)
            del self._by_id[oldest]


def digest_of(operation: str, args: Mapping[str, Any]) -> bytes:
    """Return a digest that is the same for equal requests."""
    return hashlib.sha256(json.dumps([operation, args], sort_keys=True).encode()).digest()


def unknown_request(ident: str) -> Problem:
    """Return the problem of an id that no request under way has."""
    return Problem(
        404,
        ProblemCode.request_not_found,
        f"No request {ident!r:.80} is under way.",
        "Use the X-Request-Id of a request; it is forgotten some time after the answer. GET .../requests lists those under way.",
    )


def reused(ident: str) -> Problem:
    """Return the problem of an id that another request has."""
    return Problem(
        422,
        ProblemCode.request_id_reused,
        f"The request id {ident!r:.80} was used for another request.",
        "Give each request an id of its own; repeat an id only to send the same request again.",
    )
