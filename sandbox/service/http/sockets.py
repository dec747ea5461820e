"""A WebSocket as the routes use it: what comes and goes, and how it ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from sandbox.service.connections import BEHIND, FAILED, Ending, reason_of

from .problems import Problem

log = logging.getLogger(__name__)

# A reader that has taken nothing for so long is asked about.
PATIENCE_SECONDS = 10.0
# How often it is seen whether a key is valid still: keys expire, too.
LOOK_SECONDS = 15.0
NORMAL = 1000


class Socket:
    """One WebSocket. ``client_code`` is what its client has closed it with; 1006 if it has vanished."""

    def __init__(self, websocket: WebSocket) -> None:
        self.client_code: int | None = None
        self._websocket = websocket
        self._ending: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self._cut = False

    def end(self, ending: Ending) -> None:
        """Have ``run`` end. Does nothing the second time."""
        if not self._ending.done():
            self._ending.set_result(ending)

    async def accept(self) -> None:
        """Agree to the WebSocket."""
        await self._websocket.accept()

    async def receive(self) -> bytes | str | None:
        """Return the next message, or None if the client is gone."""
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            self.client_code = int(message.get("code") or 1005)
            return None
        data, text = message.get("bytes"), message.get("text")
        return data if data is not None else str(text or "")

    async def send(self, message: bytes | str, is_behind: Callable[[], Awaitable[bool]] | None = None) -> None:
        """Send a message; waits while the client takes none. Raises ConnectionError if it is gone.

        One for which ``is_behind`` answers True, asked when it has taken nothing for some time, is cut.
        """
        sending = asyncio.ensure_future(
            self._websocket.send_text(message) if isinstance(message, str) else self._websocket.send_bytes(message)
        )
        try:
            while not sending.done():
                await asyncio.wait([sending], timeout=None if is_behind is None else PATIENCE_SECONDS)
                if not sending.done() and is_behind is not None and await is_behind():
                    self._cut = True
                    raise ConnectionResetError(BEHIND.reason)
            sending.result()
        except (WebSocketDisconnect, RuntimeError) as error:  # starlette's two ways to say it
            raise ConnectionResetError("the client is gone") from error
        finally:
            sending.cancel()

    async def run(self, *work: Coroutine[Any, Any, Ending | None], is_allowed: Callable[[], Ending | None]) -> Ending | None:
        """Carry out the work until a part of it has ended, and return its ending; None if the client is gone.

        It ends with ``end``, too, and when ``is_allowed`` returns an ending, which it is asked from time to time.
        """
        tasks = [asyncio.ensure_future(each) for each in work]
        ended: asyncio.Future[Any] = self._ending
        try:
            while True:
                done, _ = await asyncio.wait(
                    {*tasks, ended}, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                if self._ending.done():
                    return self._ending.result()
                if done:
                    return next(each for each in tasks if each.done()).result()
                if (ending := is_allowed()) is not None:
                    return ending
        except ConnectionError:
            return BEHIND if self._cut else None
        except Problem as problem:  # of the quota of transfers
            return Ending(1008, reason_of(problem.detail))
        except Exception:
            log.exception("a connection has failed")
            return FAILED
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self, ending: Ending | None) -> None:
        """Close it; a client that takes nothing cannot be told, and is cut."""
        if self._cut or ending is None:
            if (transport := self._websocket.scope.get("state", {}).get("transport")) is not None:
                transport.abort()
            return
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._websocket.close(ending.code, ending.reason)
        except (TimeoutError, WebSocketDisconnect, RuntimeError, OSError):
            self._cut = True
            await self.close(None)
