"""A terminal in a sandbox over a WebSocket: binary frames are its bytes, text frames say what else there is to say."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import Field, TypeAdapter, ValidationError
from starlette.websockets import WebSocket

from sandbox.envelope import Envelope, Failure
from sandbox.errors import SandboxError
from sandbox.operations.commands import SignalName
from sandbox.operations.terminals import SHELL
from sandbox.service.connections import (
    BAD_CONTROL,
    ENDED,
    KEY_GONE,
    SANDBOX_GONE,
    Ending,
    OpenConnection,
)
from sandbox.service.fleet.live_sandbox import LiveSandbox
from sandbox.service.fleet.terminal import Terminal
from sandbox.service.house import User, house_of, sandbox_of
from sandbox.service.http.bodies import Body
from sandbox.service.http.sockets import NORMAL, Socket

router = APIRouter(tags=["terminals"])
# A client that has opened a terminal says within this time which one it wants.
BEGIN_SECONDS = 10.0
CONTROL_BYTES = 64 << 10
NOT_STARTED = Ending(4422, "The terminal was not started: see the frame before this.")
TOO_LATE = Ending(1008, "The first frame must say 'start' or 'attach'.")


class StartTerminal(Body):
    """Start a command with a terminal; without ``argv`` it is a shell."""

    type: Literal["start"]
    argv: tuple[str, ...] | None = Field(None, min_length=1, max_length=1000)
    env: dict[str, str] = Field(default_factory=dict, max_length=256)
    cwd: str | None = Field(None, min_length=1, max_length=4096)
    user: str | None = Field(None, max_length=64)
    rows: int = Field(24, ge=1, le=100)
    cols: int = Field(80, ge=1, le=300)


class AttachTerminal(Body):
    """Go on with the terminal of that id, with its output from ``offset`` on; from the end if that is negative."""

    type: Literal["attach"]
    id: str = Field(min_length=1, max_length=64)
    offset: int = 0
    user: str | None = Field(None, max_length=64)


class ResizeTerminal(Body):
    """Change the size of the terminal."""

    type: Literal["resize"]
    rows: int = Field(ge=1, le=100)
    cols: int = Field(ge=1, le=300)


class SignalTerminal(Body):
    """Send a signal to all processes of the command; SIGKILL kills it with everything it started."""

    type: Literal["signal"]
    signal: SignalName | Literal["SIGKILL"]


_FIRST: TypeAdapter[StartTerminal | AttachTerminal] = TypeAdapter(
    Annotated[StartTerminal | AttachTerminal, Field(discriminator="type")]
)
_CONTROL: TypeAdapter[ResizeTerminal | SignalTerminal] = TypeAdapter(
    Annotated[ResizeTerminal | SignalTerminal, Field(discriminator="type")]
)


@router.websocket("/v1/sandboxes/{sandbox_id}/terminals")
async def terminal(websocket: WebSocket, caller: User, sandbox_id: str) -> None:
    """Start a command with a terminal, or go on with one, and talk with it."""
    house = house_of(websocket)
    live = sandbox_of(websocket, caller, sandbox_id)
    wire = Socket(websocket)
    with house.connections.open(OpenConnection(sandbox_id, caller.tenant, caller.key, wire.end)):
        await live.ready()
        await wire.accept()
        talk = Conversation(wire, live)
        ending = await wire.run(
            talk.run(), is_allowed=lambda: None if house.keys.is_valid(caller) else KEY_GONE
        )
        await wire.close(ending)
        if wire.client_code == NORMAL:
            await talk.leave()


class Conversation:
    """What goes on over one WebSocket."""

    def __init__(self, wire: Socket, live: LiveSandbox) -> None:
        self._wire, self._live = wire, live
        self._terminal: Terminal | None = None

    async def run(self) -> Ending | None:
        """Begin, and talk until one side has ended; None if the client is gone."""
        try:
            async with asyncio.timeout(BEGIN_SECONDS):
                first = await self._wire.receive()
        except TimeoutError:
            return TOO_LATE
        if first is None:
            return None
        if (asked := _parsed(_FIRST, first)) is None:
            return BAD_CONTROL
        if isinstance(asked, StartTerminal):
            args = asked.model_dump(exclude={"type"}, exclude_none=True)
            started, answer = await Terminal.start(self._live, {"argv": SHELL, **args})
            offset = 0
            if started is None:
                await self._say("failed", **_words_of(answer))
                return NOT_STARTED
        else:
            started, offset = Terminal(self._live, asked.id, asked.user), asked.offset
        self._terminal = started
        output = asyncio.ensure_future(self._show(started, offset))
        keys = asyncio.ensure_future(self._listen(started))
        try:
            done, _ = await asyncio.wait([output, keys], return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            output.cancel()
            keys.cancel()
            await asyncio.gather(output, keys, return_exceptions=True)

    async def leave(self) -> None:
        """Kill the command: its user has closed the terminal."""
        if self._terminal is not None:
            await self._terminal.kill()

    async def _show(self, terminal: Terminal, offset: int) -> Ending:
        begun = False
        try:
            if offset >= 0:
                begun = True
                await self._say("started", id=terminal.id, offset=offset)
            async for piece in terminal.output(offset):
                if not begun:
                    begun = True
                    await self._say("started", id=terminal.id, offset=piece.offset)
                if piece.skipped:
                    await self._say("skipped", bytes=piece.skipped, offset=piece.offset)
                if piece.data:
                    end = piece.offset + len(piece.data)
                    await self._wire.send(piece.data, lambda end=end: terminal.is_behind(end))  # type: ignore[misc]
                if (ended := piece.ended) is not None:
                    await self._say("ended", exit_code=ended.exit_code, signal=ended.signal)
        except SandboxError as error:
            await self._say("failed", **_words_of(Failure.of(error)))
            return SANDBOX_GONE if self._live.is_over else NOT_STARTED
        return ENDED

    async def _listen(self, terminal: Terminal) -> Ending | None:
        """Type what comes, and do what text frames say; return when the client is gone."""
        while (message := await self._wire.receive()) is not None:
            failure: Failure[Any] | None
            if isinstance(message, bytes):
                failure = await terminal.type(message)
            elif (asked := _parsed(_CONTROL, message)) is None:
                return BAD_CONTROL
            elif isinstance(asked, ResizeTerminal):
                failure = await terminal.resize(asked.rows, asked.cols)
            else:
                failure = await terminal.kill(None if asked.signal == "SIGKILL" else asked.signal)
            if failure is not None:
                await self._say("error", **_words_of(failure))
        return None

    async def _say(self, kind: str, **fields: Any) -> None:
        await self._wire.send(json.dumps({"type": kind, **fields}))


def _parsed(kind: TypeAdapter[Any], message: bytes | str) -> Any:
    """Return the control in a frame, or None if there is none."""
    if isinstance(message, bytes) or len(message) > CONTROL_BYTES:
        return None
    try:
        return kind.validate_json(message)
    except ValidationError:
        return None


def _words_of(answer: Envelope[Any]) -> dict[str, Any]:
    assert isinstance(answer, Failure)  # noqa: S101  # asked for no other
    return {"code": answer.code.value, "error": answer.error, "hint": answer.hint}
