"""Bodies that do not come: a client that stops in the middle of one is answered 408, and what waited for it is free again."""

from __future__ import annotations

import asyncio
import time

from starlette.types import Message, Receive, Send

from sandbox.service.http.problems import Problem, ProblemCode

# How long may be waited for a client altogether, and how many bytes earn another second of that.
WAIT_SECONDS = 60.0
BYTES_A_SECOND = 1024


class TimedBody:
    """The ``receive`` and ``send`` of a request whose body has to come in time.

    Only the time counts in which something waits for the client: an upload that a sandbox is slow to take is none of its doing.
    """

    wait_seconds = WAIT_SECONDS

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self._left = self.wait_seconds
        self._whole = self._answered = False

    async def receive(self) -> Message:
        """Return the next message. Raises Problem if it does not come in time, and nothing was answered yet."""
        if self._whole:
            return await self._receive()
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._left):
                message = await self._receive()
        except TimeoutError:
            self._whole = True
            if self._answered:
                return {"type": "http.disconnect"}
            raise _late() from None
        size = len(message.get("body", b""))
        self._left = min(self.wait_seconds, self._left - (time.monotonic() - began) + size / BYTES_A_SECOND)
        self._whole = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        """Send a message on, and note that an answer has begun."""
        self._answered = True
        await self._send(message)


def _late() -> Problem:
    return Problem(
        408,
        ProblemCode.request_timeout,
        "The body of the request was not received in time.",
        f"Send at least {BYTES_A_SECOND} bytes a second.",
        retryable=True,
        headers={"Connection": "close"},
    )
