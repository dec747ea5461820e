"""Ask the owner about hosts that no rule opens: once per host, one question at a time, within a number and a time."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from collections.abc import Callable

from .dialling import RefusedError
from .policy import Answer, Ask

log = logging.getLogger(__name__)


class Questions:
    """The questions of one sandbox and their answers; lives in the loop of its connections.

    Connections to the same host and port share one open question. A refusal is remembered for as long as ``ask`` stays the same
    callable. A callable that does not answer in time counts as a refusal, and is asked nothing else until it returns.
    """

    def __init__(self) -> None:
        self._answers_for: Ask | None = None
        self._refused: set[tuple[str, int]] = set()
        self._open: dict[tuple[Ask, str, int], asyncio.Task[Answer]] = {}
        self._turn = asyncio.Lock()
        self._asked = 0
        self._returned: threading.Event | None = None

    async def answer(
        self, ask: Ask, host: str, port: int, *, seconds: float, most: int, needed: Callable[[], bool]
    ) -> Answer:
        """Return the answer of ``ask`` that opens the host, or None if the question was not ``needed`` any more at its turn.

        At most ``most`` questions are asked in total, and each may take ``seconds``. Raises RefusedError for any other answer, and
        if there is none.
        """
        if ask is not self._answers_for:
            self._answers_for = ask
            self._refused.clear()
        if (host, port) in self._refused:
            raise RefusedError("no rule opens it, and who was asked about it has refused it", "asked")
        key = (ask, host, port)
        if key not in self._open:
            self._check(most)
            task = self._open[key] = asyncio.ensure_future(self._take_turn(ask, host, port, seconds, most, needed))
            task.add_done_callback(lambda done: self._forget(key, done))
        # The question goes on when the client has gone: a person may be reading it.
        return await asyncio.shield(self._open[key])

    def _check(self, most: int) -> None:
        if self._asked >= most:
            why = f"no rule opens it, and {self._asked} questions were asked about such hosts, the most there may be"
            raise RefusedError(why, "limit", "network_questions")

    def _forget(self, key: tuple[Ask, str, int], done: asyncio.Task[Answer]) -> None:
        self._open.pop(key, None)
        if not done.cancelled():
            done.exception()  # everyone who waited for it may be gone

    async def close(self) -> None:
        """Stop waiting for answers."""
        tasks = list(self._open.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _take_turn(
        self, ask: Ask, host: str, port: int, seconds: float, most: int, needed: Callable[[], bool]
    ) -> Answer:
        async with self._turn:
            if not needed():  # a change of the rules or an earlier answer opened the host
                return None
            self._check(most)  # questions that waited for their turn may have been asked meanwhile
            answer = await self._call(ask, host, port, seconds)
        if answer == "once":
            return "once"
        if answer == "session":
            return "session"
        if ask is self._answers_for:  # another callable may answer otherwise
            self._refused.add((host, port))
        raise RefusedError("no rule opens it, and who was asked about it has refused it", "asked")

    async def _call(self, ask: Ask, host: str, port: int, seconds: float) -> object:
        """Return whatever the callable answers. Raises RefusedError."""
        if self._returned is not None and not self._returned.is_set():
            raise RefusedError("no rule opens it, and who is asked has not answered an earlier question", "asked")
        self._asked += 1
        answered: concurrent.futures.Future[object] = concurrent.futures.Future()
        # No thread of a pool: one that never answers would hold up the end of this process.
        self._returned = threading.Event()
        work = (ask, host, port, answered, self._returned)
        threading.Thread(target=_run, args=work, name="gamebox-ask", daemon=True).start()
        try:
            return await asyncio.wait_for(asyncio.wrap_future(answered), seconds)
        except TimeoutError as error:
            log.warning("what answers for refused hosts said nothing about %s:%s for %g s", host, port, seconds)
            why = f"no rule opens it, and who was asked about it did not answer within {seconds:g} seconds"
            raise RefusedError(why, "asked") from error
        except Exception as error:
            log.warning("what answers for refused hosts failed on %s:%s", host, port, exc_info=True)
            raise RefusedError("no rule opens it, and what was asked about it failed", "asked") from error


def _run(
    ask: Ask, host: str, port: int, answered: concurrent.futures.Future[object], returned: threading.Event
) -> None:
    answer: object = None
    problem: Exception | None = None
    try:
        answer = ask(host, port)
    except BaseException as error:  # noqa: BLE001  a connection waits, whatever ended the call
        problem = error if isinstance(error, Exception) else RuntimeError(type(error).__name__)
    returned.set()
    with contextlib.suppress(concurrent.futures.InvalidStateError, RuntimeError):  # nobody waits for it now
        answered.set_result(answer) if problem is None else answered.set_exception(problem)
