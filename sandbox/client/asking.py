"""One operation over HTTP: sent, watched, stopped, and sent again after a cut."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import math
import re
import secrets
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import field
from typing import Any

import httpx

from sandbox.envelope import Envelope
from sandbox.errors import SandboxError, SandboxUnavailableError
from sandbox.frozen import dataclass
from sandbox.interrupts import Shield
from sandbox.operations import Logs, Request
from sandbox.operations.base import Prepared
from sandbox.operations.wire import read_envelope, request_data
from sandbox.pipe.stdin import pieces
from sandbox.pipe.watching import Watch

from .http.codes import ProblemCode
from .http.events import EVENTS, SILENT_SECONDS, Event, parse_events
from .http.service import READ_SECONDS, Attempts, Call, Service, nonsense

# Without a deadline of its own, an operation is asked for again after this time: the service may have been stopped meanwhile.
WITHOUT_DEADLINE_SECONDS = 120.0
# More input than this is streamed beside the request.
INLINE_STDIN_BYTES = 1 << 20
STOP_SECONDS = 15.0
LOOK_AGAIN_SECONDS = 0.05
BYTES_TOO = {"X-Gamebox-Bytes": "base64"}
_IDENT = re.compile(r"[A-Za-z0-9._-]{1,64}")
# Of "output" a service does not know any more which of both it was.
_STREAMS = {"stdout": b"\x01", "stderr": b"\x02", "output": b"\x01"}


def new_ident() -> str:
    """Return an id for a request."""
    return secrets.token_hex(12)


def ident_of(request: Request) -> str:
    """Return the caller's own id of the request as a header takes it, or a new one if it has none."""
    own = getattr(request, "request_id", None)
    if own is None or _IDENT.fullmatch(own):
        return own or new_ident()
    return hashlib.sha256(own.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to one sandbox, whose address is ``sandbox_path``, as it is sent."""

    service: Service
    sandbox_path: str
    request: Request
    prepared: Prepared
    watch: Watch | None = None
    source: Any = None  # what the command reads, if that is streamed
    ident: str = field(default_factory=new_ident)

    @property
    def own_path(self) -> str:
        """The address of this one request."""
        return f"{self.sandbox_path}/requests/{self.ident}"

    @property
    def stoppable(self) -> bool:
        """Whether the service can stop it."""
        return self.request.starts_process or self.request.waits

    def carry_out(self) -> Envelope[Any]:
        """Send the request and return the answer. Raises SandboxError, and what the caller's own functions raise."""
        stop = Stop(self.service, self.own_path)
        feeder = None if self.source is None else Feeder(self, stop)
        try:
            with ExitStack() as ending:
                ending.callback(stop.forget)
                if self.watch is not None:
                    ending.enter_context(self.watch.stopping(stop.begin))
                if feeder is not None:
                    feeder.start()
                    ending.callback(feeder.end)
                answer = self._ask_and_watch() if self._listens else self._ask()
        except BaseException as error:  # Ctrl-C, or what ``on_output`` raised: nothing is left running
            if self.stoppable and not isinstance(error, SandboxUnavailableError):
                with Shield():
                    stop.now()
            raise
        if feeder is not None and feeder.error is not None:
            raise feeder.error
        if self.watch is not None:
            self.watch.finish()
        return answer

    async def carry_out_awaited(self, client: httpx.AsyncClient) -> Envelope[Any]:
        """Do what ``carry_out`` does over the connections of ``client``, without a thread. Nothing is streamed."""
        stop = Stop(self.service, self.own_path)
        try:
            with ExitStack() as ending:
                ending.callback(stop.forget)
                if self.watch is not None:
                    ending.enter_context(self.watch.stopping(stop.begin))
                return self.read(await self.service.json_awaited(self._call(), client))
        except asyncio.CancelledError:
            if self.stoppable:
                await _settled(asyncio.get_running_loop().run_in_executor(None, stop.now))
            raise

    @property
    def _listens(self) -> bool:
        return self.watch is not None and self.watch.listens

    def _call(self, **more: Any) -> Call:
        kind = type(self.request)
        headers = {"X-Request-Id": self.ident, **BYTES_TOO, **more.pop("headers", {})}
        if self.source is not None:
            headers["X-Gamebox-Stdin"] = "stream"
        seconds = self.prepared.timeout_seconds
        options = {
            "read_seconds": WITHOUT_DEADLINE_SECONDS if math.isinf(seconds) else seconds + READ_SECONDS,
            # With the same id it is carried out once. A source cannot be read twice.
            "repeatable": self.source is None,
            "joins": self.source is None,
            **more,
        }
        body = json.dumps(request_data(self.request)).encode()
        return Call("POST", f"{self.sandbox_path}/{kind.operation}", body, headers=headers, **options)

    def _ask(self) -> Envelope[Any]:
        return self.read(self.service.json(self._call()))

    def read(self, data: Any) -> Envelope[Any]:
        """Return the envelope. Raises SandboxUnavailableError if the data are not an envelope."""
        try:
            return read_envelope(self.request.result, data)
        except (ValueError, KeyError) as error:
            raise nonsense(self.service, self.request.operation) from error

    def _ask_and_watch(self) -> Envelope[Any]:
        """Pass the output on as it comes, from where it was cut off; return the answer that ends it."""
        last, cut = "", False
        attempts: Attempts | None = None
        while True:
            headers = {"Accept": EVENTS, **({"Last-Event-ID": last} if last else {})}
            call = self._call(headers=headers, read_seconds=SILENT_SECONDS)
            try:
                with self.service.stream(call) as response:
                    if not response.headers.get("Content-Type", "").startswith(EVENTS):
                        return self.read(_json(response.read()))
                    for event in parse_events(response.iter_raw()):
                        attempts = None  # it goes on: a later cut has all of its time
                        last = event.id or last
                        if (answer := self._take(event)) is not None:
                            if cut:  # a service that was restarted may know the answer alone
                                self._catch_up(answer, int(last) if last.isdecimal() else 0)
                            return answer
                    raise httpx.RemoteProtocolError("the stream ended before the answer")
            except SandboxError as error:
                if error.code is not ProblemCode.output_gone:
                    raise
                answer = self._ask()
                self._catch_up(answer, int(last) if last.isdecimal() else 0)
                return answer
            except httpx.TransportError as error:
                self.service.check_open(error)
                cut = True
                attempts = attempts or self.service.attempts(call)
                time.sleep(attempts.seconds_after(error))

    def _take(self, event: Event) -> Envelope[Any] | None:
        """Pass on a piece of output, or return the answer."""
        if event.name not in ("output", "envelope") or self.watch is None:
            return None
        try:
            data = json.loads(event.data)
            if event.name == "envelope":
                return self.read(data)
            chunk = _STREAMS[data["stream"]] + base64.b64decode(data["data_base64"], validate=True)
        except (ValueError, KeyError, TypeError) as error:
            raise nonsense(self.service, self.request.operation) from error
        self.watch.take(chunk)
        return None

    def _catch_up(self, answer: Envelope[Any], offset: int) -> None:
        """Pass on what the service does not keep any more, as far as the sandbox has it; its streams come as one."""
        ident, end = getattr(answer.result, "id", ""), getattr(answer.result, "output_bytes", 0)
        while ident and offset < end and self.watch is not None:
            request = Logs.model_validate({"id": ident, "offset": offset})
            logs = Asked(self.service, self.sandbox_path, request, Prepared({})).carry_out()
            if not logs.ok or logs.result.next_offset <= offset:
                return
            self.watch.take(_STREAMS["stdout"] + logs.result.content_bytes)
            offset = logs.result.next_offset


def _json(data: bytes) -> Any:
    """Return the data, or None for what is no JSON."""
    try:
        return json.loads(data)
    except ValueError:
        return None


async def _settled(future: asyncio.Future[None]) -> None:
    """Wait until ``future`` is done, also if this task is cancelled again."""
    while not future.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([future])


class Stop:
    """Stops a request under way at ``path``. ``begin`` may be called from any thread and from a signal handler."""

    def __init__(self, service: Service, path: str) -> None:
        self._service, self._path = service, path
        self._over = threading.Event()
        self._begun = False

    def begin(self) -> None:
        """Stop it in the background, until ``forget``."""
        if not self._begun:
            self._begun = True
            with Shield():  # the start of a thread waits for an Event, whose lock a signal can leave taken
                threading.Thread(target=self._work, name="gamebox-stop", daemon=True).start()

    def now(self) -> None:
        """Stop it, if it was begun; return when it has ended, or after some seconds."""
        self._delete()

    def forget(self) -> None:
        """The request is over."""
        self._over.set()

    def _work(self) -> None:
        while not self._over.is_set() and not self._delete():
            self._over.wait(LOOK_AGAIN_SECONDS)  # it may be on its way still

    def _delete(self) -> bool:
        """Return whether the service knows it, and has stopped it."""
        with suppress(SandboxError):
            self._service.request(Call("DELETE", self._path, read_seconds=STOP_SECONDS, patience_seconds=0))
            return True
        return False


class Feeder:
    """Streams the standard input of a command, in a thread of its own: a source that never ends delays no answer.

    An exception of the source stops the command, and becomes ``error``.
    """

    def __init__(self, asked: Asked, stop: Stop) -> None:
        self.error: BaseException | None = None
        self._asked, self._stop = asked, stop
        self._over = False

    def start(self) -> None:
        """Begin to stream."""
        with Shield():
            threading.Thread(target=self._work, name="gamebox-stdin", daemon=True).start()

    def end(self) -> None:
        """Take no more of the source: the command was answered."""
        self._over = True

    def _work(self) -> None:
        path = f"{self._asked.own_path}/stdin"
        with suppress(SandboxError, _SourceError):  # the request itself is answered, or fails for the same reason
            self._asked.service.request(Call("PUT", path, content=self._pieces, read_seconds=None, write_seconds=None))

    def _pieces(self) -> Iterable[bytes]:
        try:
            for piece in pieces(self._asked.source):
                if self._over:
                    return
                if piece:
                    yield piece
        except GeneratorExit:
            raise
        except BaseException as error:
            if not self._over:
                self.error = error
                self._stop.begin()
            raise _SourceError from error


class _SourceError(Exception):
    """The source of a command's input failed."""
