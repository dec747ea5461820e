"""FakeEnvironment: a sandbox in memory, for tests of agents and tools without an engine or a process."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any, Self
from urllib.parse import urlsplit

from sandbox import operations as op
from sandbox.backend import Description, GuestStream, StartRequest
from sandbox.envelope import Envelope
from sandbox.environment.base import Approver
from sandbox.environment.call_errors import check_request
from sandbox.environment.sandboxed import COMMANDS, SandboxedEnvironment
from sandbox.errors import SandboxUnavailableError
from sandbox.guest.loop.arguments import expand_home
from sandbox.guest.loop.reply_cache import ReplyCache
from sandbox.guest.pages.loopback import is_loopback
from sandbox.guest.protocol.constants import REFUSED
from sandbox.guest.protocol.faults import Fault
from sandbox.limits import Limits
from sandbox.network.policy import Network, judge_host
from sandbox.pipe.stdin import pieces
from sandbox.pipe.transport import Transport
from sandbox.pipe.watching import Watch

from .commands import Commands, Table
from .files import FileOperations
from .state import FakeState
from .tree import HOME, File, Tree

_OF_STATE = frozenset({"scan", "fetch", "restore", "last_changes"})


class FakeEnvironment(SandboxedEnvironment):
    """An environment with files in memory and commands answered from ``commands``; ready without ``start()``.

    ``files`` maps paths to contents (text or bytes). ``commands`` maps exact commands, or compiled patterns that match a whole
    command, to what they print (text or bytes), to a ``Ran``, to a mapping of its fields, or to a callable that takes the
    ``FakeRun`` and returns one of these. It may also be one callable for all commands, which returns None for those it does not
    know. An unknown command is the failure ``operation_not_supported``. ``pages`` maps addresses to texts for ``browse``.
    ``network`` is a policy to read and change; it decides what ``browse`` refuses, but there are no connections.

    Everything else is real: arguments, ranges, edits, codes, hints and envelopes are handled by the code that serves real
    sandboxes. ``requests`` lists every valid request so far, for assertions. ``lose()`` makes the environment unavailable.
    """

    def __init__(
        self,
        files: Mapping[str, str | bytes] | None = None,
        commands: Table | None = None,
        *,
        pages: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        network: Network | None = None,
        approver: Approver | None = None,
    ) -> None:
        super().__init__(NoBackend(), limits=limits, network=network, approver=approver)
        self.requests: list[op.Request] = []
        self._was_started = False
        self._tree = Tree()
        bounds = asdict(self.limits)
        self._operations = FileOperations(self._tree, bounds)
        for path, content in (files or {}).items():
            self._operations.put(path, content.encode() if isinstance(content, str) else content)
        self._memory = _MemoryTransport(
            self._operations,
            Commands(commands or {}, self._tree, bounds),
            dict(pages or {}),
            self.requests,
            FakeState(self._tree),
            lambda: self.network,
        )
        super().start()

    def start(self) -> Self:
        """Mark the environment as started, for its repr only: it is ready from the beginning."""
        self._was_started = True
        return super().start()

    def _summary(self) -> tuple[str, ...]:
        found = super()._summary()
        return found if self._was_started or found != ("running",) else ("not started",)

    @property
    def files(self) -> dict[str, bytes]:
        """The contents of all files now by path, which is relative in the workspace and else absolute."""
        return {self._tree.display(path): n.data for path, n in self._tree.nodes.items() if isinstance(n, File)}

    def lose(self, reason: str = "killed", message: str = "The sandbox's container was killed from outside.") -> None:
        """Have every further operation fail as if the sandbox had ended for ``reason``."""
        self._memory.lost = SandboxUnavailableError(
            reason, message, "Start another sandbox; files in this one are lost."
        )

    def perform(self, request: op.Request, watch: Watch | None = None) -> Envelope[Any]:
        """See ``Environment.perform``."""
        check_request(request, watch)
        self.requests.append(request)
        return super().perform(request, watch)

    def _connect(self) -> Transport:
        return self._memory


class NoBackend:
    """Implements ``Backend`` for a sandbox that has no guest: its transport answers by itself."""

    attached = False

    def open(self, request: StartRequest) -> GuestStream:
        """Raise NotImplementedError: there is no guest to reach."""
        raise NotImplementedError

    def check(self, facts: Mapping[str, Any], transport: Transport) -> None:
        """Do nothing: nothing is enforced."""

    def close(self, *, detach: bool) -> None:
        """Do nothing: there is nothing to release."""

    def outlives_close(self) -> bool:
        """See ``Backend``."""
        return False

    def claim_removal(self, *, left: bool) -> bool:
        """See ``Backend``."""
        return True

    def explain(self, reason: str, detail: str) -> SandboxUnavailableError:
        """See ``Backend``."""
        return SandboxUnavailableError(reason, detail)

    def explain_silence(
        self, error: SandboxUnavailableError, give_up: Callable[[SandboxUnavailableError], None]
    ) -> SandboxUnavailableError:
        """See ``Backend``."""
        return error

    def freeze(self) -> None:
        """Do nothing: no process runs."""

    def thaw(self) -> None:
        """Do nothing: no process runs."""

    def describe(self) -> Description:
        """See ``Backend``."""
        kind = "A fake sandbox: its files are in memory, and only the commands its test knows can be run."
        return Description(sandbox=f"{kind} {COMMANDS}")


class _MemoryTransport(Transport):
    """Answers requests at once, as the guest would, and sends nothing."""

    def __init__(
        self,
        operations: FileOperations,
        commands: Commands,
        pages: dict[str, str],
        requests: list[op.Request],
        state: FakeState,
        network: Callable[[], Network],
    ) -> None:
        self.lost: SandboxUnavailableError | None = None
        self._remembered, self._numbers, self._replied = ReplyCache(), itertools.count(), threading.Condition()
        self._state, self._network = state, network
        self._operations, self._commands, self._pages, self._requests = operations, commands, pages, requests

    @property
    def loss(self) -> SandboxUnavailableError | None:
        """See the base class."""
        return self.lost

    connected = False  # nothing is sent to a sandbox in memory when it is resumed

    def close(self, *, detach: bool = False) -> None:
        """Do nothing: there is nothing to release."""

    def pause_deadlines(self) -> None:
        """Do nothing: no request is under way."""

    def resume_deadlines(self) -> None:
        """Do nothing: no request is under way."""

    def request(
        self,
        operation: str,
        args: dict[str, Any],
        *,
        blob: bytes = b"",
        body: Iterable[bytes] | None = None,
        feed: Any = None,
        sink: Callable[[bytes], None] | None = None,
        watch: Watch | None = None,
        request_id: str | None = None,
        **_call: Any,
    ) -> tuple[dict[str, Any], bytes]:
        """See ``Transport.request``."""
        if self.lost is not None:
            raise self.lost
        if feed is not None:
            blob = b"".join(pieces(feed))
        if operation in op.OPERATIONS and (body is not None or sink is not None):
            self._requests.append(op.OPERATIONS[operation].model_validate(args))

        def answer() -> tuple[dict[str, Any], bytes]:
            return self._answer(operation, args, blob, body, sink, watch)

        return answer() if request_id is None else self._answer_once(request_id, [operation, args, blob], answer)

    def _answer_once(
        self, ident: str, asked: list[Any], answer: Callable[[], tuple[dict[str, Any], bytes]]
    ) -> tuple[dict[str, Any], bytes]:
        """Return the remembered answer to ``ident``, or else that of ``answer``, which is remembered."""
        key = next(self._numbers)
        try:
            with self._replied:
                while (known := self._remembered.begin(ident, key, *asked)) is False:
                    self._replied.wait()
        except Fault as fault:
            fields: dict[str, Any] = {"fault": fault}
            _pack_fault(fields)
            return fields, b""
        if not isinstance(known, bool):
            return known
        reply: tuple[dict[str, Any], bytes] | None = None
        try:
            reply = answer()
        finally:  # an exception of a test's own function is not an answer to remember
            with self._replied:
                self._remembered.store(key, *(reply or ({}, b"")))
                if reply is None:
                    self._remembered.acknowledge([ident])
                self._replied.notify_all()
        return reply

    def _answer(
        self,
        operation: str,
        args: dict[str, Any],
        blob: bytes,
        body: Iterable[bytes] | None,
        sink: Callable[[bytes], None] | None,
        watch: Watch | None,
    ) -> tuple[dict[str, Any], bytes]:
        fields: dict[str, Any]
        try:
            if operation in _OF_STATE:
                fields, data = {"result": self._state_of_files(operation, args, body or (), sink or _discard)}, b""
            else:
                fields, data = self._handle(operation, args, blob, body, sink)
        except Fault as fault:
            fields, data = {"fault": fault}, b""
        if watch is not None and "segments" in fields:
            _pass_output(watch, fields["segments"], data)
        _pack_fault(fields)
        return fields, data

    def _handle(
        self,
        operation: str,
        args: dict[str, Any],
        blob: bytes,
        body: Iterable[bytes] | None,
        sink: Callable[[bytes], None] | None,
    ) -> tuple[dict[str, Any], bytes]:
        args = dict(args)
        expand_home(args, HOME)
        if operation == "run":
            return self._commands.run(args, blob)
        if operation == "wait_for":
            return self._commands.wait_for(args)
        if operation == "logs":
            fields, data = self._commands.logs(args)
        elif operation in ("send", "resize", "screen"):
            raise self._commands.unable(operation, args["id"])
        elif operation in ("kill", "end_session", "open_session", "sessions", "processes"):
            fields, data = getattr(self._commands, operation)(args), b""
        elif operation == "usage":
            fields, data = {"running": self._commands.running()}, b""
        elif operation == "browse":
            fields, data = self._browse(args), b""
        elif body is not None:
            fields, data = self._operations.upload(args, body), b""
        elif sink is not None:
            fields, data = self._operations.download(args, sink), b""
        else:
            fields, data = getattr(self._operations, operation)(args)
        return {"result": fields}, data

    def _state_of_files(
        self, operation: str, args: dict[str, Any], body: Iterable[bytes], sink: Callable[[bytes], None]
    ) -> dict[str, Any]:
        if operation == "scan":
            return self._state.scan(args, sink)
        if operation == "fetch":
            return self._state.fetch(body, sink)
        return self._state.restore(body) if operation == "restore" else {}

    def _browse(self, args: dict[str, Any]) -> dict[str, Any]:
        from sandbox.guest.pages.page import PageError, normalize_url  # brings the readers of web pages with it

        url, start = args["url"], args["offset"]
        try:
            normalize_url(url)
        except PageError as error:
            raise Fault(error.code, **error.fields) from None
        text = self._pages.get(url)
        if text is None:
            raise self._unknown_page(url)
        part = text[start : start + args["max_chars"]]
        return {
            "url": url,
            "final_url": url,
            "status": 200,
            "content_type": "text/plain",
            "text": part,
            "offset": start,
            "total_chars": len(text),
            "size_bytes": len(text.encode()),
            "truncated": start + len(part) < len(text),
        }

    def _unknown_page(self, url: str) -> Fault:
        """Return the fault for a page that is not in ``pages``: refused by the rules, or not reachable."""
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        verdict = judge_host(self._network(), host, port)
        if is_loopback(host) or verdict.allowed:
            own: dict[str, Any] = {"own": True, "port": port} if is_loopback(host) else {}
            return Fault("connection_failed", url=url, problem=os.strerror(111), **own)
        problem = f"{host}:{port}{REFUSED}{verdict.why}"
        return Fault("network_denied", url=url, problem=problem)


def _pack_fault(fields: dict[str, Any]) -> None:
    """Put a fault into the form that the guest sends."""
    fault = fields.get("fault")
    if isinstance(fault, Fault):
        fields["fault"] = {"code": fault.code, "effects": fault.effects, "fields": fault.fields}
        fields["result"] = fields.get("result") or fault.result


def _discard(_: bytes) -> None:
    """Discard bytes that the caller did not ask for."""


def _pass_output(watch: Watch, segments: list[list[int]], data: bytes) -> None:
    """Pass to ``watch`` what the command printed, as far as it was kept."""
    at = 0
    for stream, length, _part in segments:
        watch.take(bytes((stream,)) + data[at : at + length])
        at += length
