"""The requests to one sandbox: each is a task of its own, which goes on whether or not its caller is still there."""

from __future__ import annotations

import asyncio
import hashlib
import json
import weakref
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sandbox.envelope import Envelope
from sandbox.operations import OPERATIONS
from sandbox.operations.result import Result
from sandbox.operations.wire import read_envelope
from sandbox.pipe.watching import CancelToken
from sandbox.service.http.problems import Problem, ProblemCode

from .answers import Answer, AnswerRoom
from .bridges import BodyBridge, Feeding
from .output import OutputLog

# They go on when their clients leave, so that the bound on a tenant's connections does not bound them.
MOST_UNDER_WAY = 1000
# A text whose digest is made in a thread, and as much of it as is taken while others wait.
LONG_CHARS = 128 << 10
# How long the whole output of a command that has ended can be read by those who were cut.
SPILL_SECONDS = 300.0
# That of every request that was answered: there is nothing left to be stopped.
_ENDED = CancelToken()


@dataclass(eq=False, slots=True)
class RequestUnderWay:
    """One request; once it has an ``answer``, it has no ``task`` any more. ``output`` is None unless it is streamed.

    ``stdin`` is what the command reads if its client streams it. ``resent`` says that it was sent before, and not answered by
    what is kept here.
    """

    id: str
    operation: str
    digest: bytes
    output: OutputLog | None = None
    stdin: BodyBridge | None = None
    cancel: CancelToken = field(default_factory=CancelToken)
    task: asyncio.Task[Answer] | None = None
    resent: bool = False
    answer: Answer | None = None

    async def wait(self) -> Answer:
        """Wait for the answer; if the waiting is cancelled, the request goes on. Raises what it raised."""
        if self.answer is not None:
            return self.answer
        if self.task is None:
            raise RuntimeError("the request was not begun")
        return await asyncio.shield(self.task)

    async def envelope(self, kind: type[Result] | None = None) -> Envelope[Any]:
        """Return what ``wait`` does, read into an envelope; ``kind`` is its result's, if no operation of the table says it."""
        answer = await self.wait()
        return read_envelope(kind or OPERATIONS[self.operation].result, json.loads(answer.json(with_bytes=True)))

    def end(self, answer: Answer) -> None:
        """Keep the answer, and nothing of how it came: a task has all that its request brought along, 14 KiB."""
        self.answer = answer
        self.task, self.cancel = None, _ENDED


class Requests:
    """The requests under way of one sandbox of a tenant, and its last answers, by their ids.

    ``room`` is for the answers, and ``feeding`` for commands whose input is streamed, of all sandboxes of the service.
    """

    def __init__(self, tenant: str = "", room: AnswerRoom | None = None, feeding: Feeding | None = None) -> None:
        self._tenant, self._room, self._feeding = tenant, room or AnswerRoom(), feeding or Feeding()
        self._by_id: dict[str, RequestUnderWay] = {}
        # What gives back the room of each answer.
        self._answered: dict[str, Callable[[], None]] = {}

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
        """Have ``work`` carry out a request in a task of its own. Raises Problem if its input is one too many to be streamed."""
        if request.stdin is not None:
            self._feeding.begin(self._tenant)
        self._by_id[request.id] = request
        request.task = asyncio.create_task(work(request), name=f"{request.operation} {request.id}")
        request.task.add_done_callback(lambda task: self._ended(request, task))
        return request

    def under_way(self) -> list[RequestUnderWay]:
        """Return the requests that were not answered yet."""
        return [each for each in self._by_id.values() if each.task is not None and not each.task.done()]

    async def stop(self, ident: str, seconds: float) -> None:
        """Stop a request, and wait until nothing of it runs any more, at most so long. Raises Problem if it is not under way."""
        found = self.find(ident)
        task = found.task  # it has none any more when it has ended, also meanwhile
        if task is None or task.done():
            raise unknown_request(ident)
        await asyncio.to_thread(found.cancel.cancel)  # it may send a frame
        await asyncio.wait([task], timeout=seconds)

    def forget_answers(self) -> None:
        """Forget what was answered."""
        for ident, forget in tuple(self._answered.items()):
            self._room.give_back(self._tenant, forget)
            self._forget(ident)

    def _ended(self, request: RequestUnderWay, task: asyncio.Task[Answer]) -> None:
        if request.output is not None:
            request.output.finish()
            # Only what is still kept then: an answer that has gone takes its output with it.
            asyncio.get_running_loop().call_later(SPILL_SECONDS, _forget_spill, weakref.ref(request.output))
        if request.stdin is not None:
            request.stdin.discard()
            self._feeding.end(self._tenant)
        if task.cancelled() or task.exception() is not None:  # nothing to be had by asking again
            self._by_id.pop(request.id, None)
            return
        request.end(task.result())
        kept_output = 0 if request.output is None else request.output.memory_bytes
        self._answered[request.id] = forget = partial(self._forget, request.id)
        self._room.keep(self._tenant, forget, task.result().size + kept_output)

    def _forget(self, ident: str) -> None:
        del self._by_id[ident], self._answered[ident]


def _forget_spill(found: weakref.ref[OutputLog]) -> None:
    output = found()
    if output is not None:
        output.forget_spill()


async def digest_of(operation: str, args: Mapping[str, Any]) -> bytes:
    """Return a digest that is the same for equal requests. Others go on while that of a long text is made."""
    long = {name: each for name, each in args.items() if isinstance(each, str) and len(each) > LONG_CHARS}
    texts = {name: await asyncio.to_thread(_digest_of_text, each) for name, each in long.items()}
    return hashlib.sha256(json.dumps([operation, {**args, **texts}], sort_keys=True).encode()).digest()


def _digest_of_text(text: str) -> list[str]:
    made = hashlib.sha256()
    for at in range(0, len(text), LONG_CHARS):
        made.update(text[at : at + LONG_CHARS].encode("utf-8", "surrogatepass"))
    return [made.hexdigest()]


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
