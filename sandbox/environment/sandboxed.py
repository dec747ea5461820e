"""SandboxedEnvironment: the operations of a sandbox over a Backend, the same for every place that runs sandboxes."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from pydantic import ValidationError

from sandbox import operations as op
from sandbox.argument_types import HOST_PATH, check_types
from sandbox.backend import Backend, Description, GuestStream, StartRequest
from sandbox.envelope import Envelope, Failure, Notice, Success
from sandbox.errors import ErrorCode, SandboxError, SandboxUnavailableError
from sandbox.interrupts import Shield
from sandbox.limits import Limits
from sandbox.messages.faults import fault_error, violation
from sandbox.network.ceiling import Ceiling
from sandbox.network.connections import Connection
from sandbox.network.forward import Forward
from sandbox.network.policy import Network
from sandbox.network.services.peer_port import PeerPort
from sandbox.network.streams import Streams
from sandbox.operations.base import SILENCE_SECONDS, Answer, Prepared, Reply
from sandbox.pipe import descriptors
from sandbox.pipe import forked_processes as forks
from sandbox.pipe.replies import fault_of, notices_of
from sandbox.pipe.transport import Transport
from sandbox.pipe.watching import Watch, with_onlooker
from sandbox.state.file_state import FileState
from sandbox.state.history import History
from sandbox.state.initial_workspace import InitialWorkspace
from sandbox.state.methods import MOST_CHANGES
from sandbox.text.wording import duration, size
from sandbox.transfers.copying import Incoming, bounded, outgoing, too_large

from .base import Approver, Environment
from .call_errors import check_request
from .host_actions import hear
from .network import SandboxNetwork, check_network, check_ports
from .pausing import Pause
from .services import PACKAGE_MANAGERS, SandboxServices

if TYPE_CHECKING:
    from sandbox.text.screen import Screens

T = TypeVar("T")
# A prompt is not kept waiting for what is left of the sandbox.
LOOK_SECONDS = 1.0
# What a start takes at its most, and the way back from half of one.
START_DESCRIPTORS = 24
START_SECONDS = 30.0
# A guest that stands by answers in a millisecond; one that does not is replaced.
BEGIN_SECONDS = 1.0
# A guest reads what is in its pipe in milliseconds; one that does not is paused all the same.
DRAIN_SECONDS = 1.0
# Behind what a sandbox is, wherever commands run in one.
COMMANDS = "Commands run in /bin/bash where the image has it; relative paths start at the workspace."


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A request as it is sent, its ``watch``, and when its caller made it (monotonic)."""

    request: op.Request
    prepared: Prepared
    watch: Watch | None
    started: float


class SandboxedEnvironment(Environment):
    """An environment whose operations a guest carries out, in a sandbox of ``backend``.

    May be used by many threads at once: foreground runs of one session queue, nothing else waits for them. ``no_rules`` says why
    rules cannot restrict the network there ("" if they can). ``services`` are reached by name. Raises SandboxError
    ``invalid_configuration``.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        limits: Limits | None = None,
        network: Network | None = None,
        approver: Approver | None = None,
        track_changes: bool = True,
        read_roots: Sequence[str] = (),
        services: SandboxServices | None = None,
        no_rules: str = "",
    ) -> None:
        super().__init__(approver)
        self.backend = backend
        self.limits = limits or Limits()
        self.track_changes = track_changes
        self.read_roots = checked_folders(read_roots)
        self._pid = os.getpid()
        self._transport: Transport | None = None
        self._standing_by: Transport | None = None
        self._asked = backend  # has the options, if ``backend`` is one that stood by
        self._at_close: Callable[[], None] = _do_nothing
        self._pause = Pause(self._freeze, self._thaw)
        policy = Network.none() if network is None else check_network(network)
        owner = type(self).__name__
        self._network = SandboxNetwork(
            owner, policy, self.limits, lambda text: self.hidden.mask.names(text), self._pid, no_rules
        )
        self._services = services or SandboxServices()
        for name, value in self._services.secrets():
            self.hidden.hide(name, value)
        self.state = FileState(
            History(lambda *args, **call: self._live().request(*args, **call), self.limits.checkpoint_bytes),
            self.hidden,
            self._live,
            lambda ident: self.kill(ident),
            lambda: self.backend.describe().checkpoints_hold_all,
        )
        self._starting = threading.RLock()
        self._start_error: SandboxError | None = None
        # Ids of commands that the host's program runs for itself, such as a kernel: notices of them reach no model.
        self.internal_commands: set[str] = set()
        self._host = _Host(self._live, self._network.usage)
        self._closed = False
        self._detaches = False  # whether ``close`` leaves the sandbox running

    # Start and end

    def start(self) -> Self:
        """Start the sandbox; does nothing when it is started. Raises SandboxError; nothing is left behind then.

        Returns when all side services are ready. Of several threads one starts the sandbox; the others wait, and have the same
        sandbox or the same error.
        """
        forks.check(self._pid)
        with self._starting:
            if self._start_error is not None:
                raise self._start_error
            if self._transport is None:
                try:
                    self._start()
                except SandboxError as error:
                    self._start_error = error
                    raise
        return self

    def _start(self) -> None:
        """Start what is not started; one thread at a time. Raises SandboxError; nothing is left behind then."""
        if self._closed:
            raise _closed()
        if (none := descriptors.want(START_DESCRIPTORS)) is not None:  # before anything is made that is to be undone
            raise descriptors.refusal(none, "The sandbox could not be started")
        try:
            self._services.begin()
            with descriptors.worded("The sandbox could not be started"):
                self._transport = self._connect()
                if self.track_changes and not self.backend.attached:  # else only its maker knows how it started
                    self.state.begin(self._starts_empty())
            if self._closed:  # by another thread, which did not find all that was made since
                raise _closed()
            self._services.finish()
        except BaseException:
            self._detaches = self.backend.attached  # one that is to be kept is not left by a start that failed
            self.close(wait=self.backend is self._asked)  # one that stood by has no name to give back, and its caller a deadline
            raise

    def _connect(self) -> Transport:
        """Start a guest and greet it, or have the one that stands by begin. Raises SandboxError."""
        self._detaches = self.backend.attached  # whatever happens now, it is not ours to remove
        if self._standing_by is not None:
            self._begin(self._standing_by)
        else:
            self._open(self._request())
        if not self.backend.attached:
            self._fill()
        self._detaches = self.backend.outlives_close()
        if self._transport is None:  # closed by another thread
            raise _closed()
        return self._transport

    def _request(self) -> StartRequest:
        names, variables = self._services.names(), self._services.variables()
        return StartRequest(self.network, lambda: self._pause.on, names, variables)

    def _open(self, request: StartRequest) -> None:
        opened = self.backend.open(request)
        transport = Transport(
            opened.stream,
            self.backend.explain,
            lease_seconds=self.limits.lease_seconds,
            keep=opened.keep,
            nonce=opened.nonce,
            received=opened.received,
        )
        if not request.stands_by:
            self._carry(transport)
        facts = transport.open(self._hello(opened, stands_by=request.stands_by), START_SECONDS)
        if request.stands_by:
            self._standing_by = transport
        else:
            self._transport = transport
        self.backend.check(facts, transport)

    def _carry(self, transport: Transport) -> None:
        self._network.carry(transport, self._services.connectors(lambda: self.ceiling))
        if self._network.egress is not None:
            self._services.close_with(self._network.egress.streams)

    # Standing by, for ``SandboxPool``

    def stand_by(self) -> Self:
        """Start the sandbox up to what depends on who will use it: variables, rules, files, and the clocks of its limits.

        Another environment takes it with ``adopt``. Nothing else can be done with this one but to close it. Raises SandboxError;
        nothing is left behind then.
        """
        forks.check(self._pid)
        with self._starting:
            try:
                if (none := descriptors.want(START_DESCRIPTORS)) is not None:
                    raise descriptors.refusal(none, "The sandbox could not be started")
                self._services.begin()
                self._open(replace(self._request(), stands_by=True))
                if self._closed:
                    raise _closed()
            except BaseException:
                self.close()
                raise
        return self

    @property
    def stands_by(self) -> bool:
        """Whether there is a sandbox to ``adopt``, as far as is known without asking it."""
        return self._standing_by is not None and self._standing_by.loss is None

    def adopt(self, member: Self, at_close: Callable[[], None]) -> None:
        """Have ``start`` take the sandbox of ``member``, which stands by; ``at_close`` is called when this one is closed."""
        self._at_close = at_close
        with Shield():  # a Ctrl-C half-way would leave a sandbox that nobody can close
            self.backend, self._standing_by = member.give_away(self.backend)

    def give_away(self, backend: Any) -> tuple[Any, Transport | None]:
        """Return backend and transport of the sandbox that stands by, to ``adopt`` it; ``backend``, unused, stays here instead."""
        given, self.backend = self.backend, backend
        transport, self._standing_by = self._standing_by, None
        return given, transport

    def _begin(self, transport: Transport) -> None:
        """Tell the guest that stood by what depends on this environment. Raises SandboxError."""
        environ = self.backend.serve(self._asked, self._request())
        self._carry(transport)
        self._transport, self._standing_by = transport, None
        args = {"environ": dict(environ), "limits": {**self._clocks(), "network": self.network.mode}}
        reply, _ = transport.request("begin", args, timeout_seconds=BEGIN_SECONDS, on_sent=self.backend.note_acquired)
        if "fault" in reply:
            raise violation("begin")

    def _clocks(self) -> dict[str, float | None]:
        return {"lifetime_seconds": self.limits.lifetime_seconds, "idle_seconds": self.limits.idle_seconds}

    def _hello(self, opened: GuestStream, *, stands_by: bool = False) -> dict[str, Any]:
        if opened.place is None:
            return dict(opened.hello)
        limits = {**asdict(self.limits), "network": self.network.mode, "tell_changes": self.track_changes}
        if stands_by:
            limits.update(dict.fromkeys(self._clocks()))
        place = {**opened.place, "limits": limits, "read_roots": list(self.read_roots)}
        return {**opened.hello, "stands_by": stands_by, "place": place}

    def _fill(self) -> None:
        """Copy in what the sandbox starts with. Raises SandboxError."""

    def _starts_empty(self) -> bool:
        """Return whether nothing is in the workspace at the start."""
        return False

    def close(self, *, wait: bool = False) -> None:
        """End the sandbox and everything in it, or leave a kept one running; may be called more than once.

        Returns when the sandbox has been told to end. What is left of it is removed in the background, for which the end of the
        interpreter waits up to 10 s; ``wait`` waits until it is gone, also after an earlier ``close``. Does nothing in a process
        that was forked from the one that made the environment.
        """
        if forks.forked_since(self._pid):
            return
        self._closed = True
        transport, self._transport = self._transport or self._standing_by, None
        self._standing_by = None
        with contextlib.ExitStack() as ending:  # each of them whatever becomes of the others; the last comes first
            ending.callback(self._at_close)
            if wait:
                ending.callback(self.backend.wait_until_gone)
            ending.callback(self._services.close, wait=wait)
            ending.callback(self.backend.close, detach=self._detaches)
            ending.callback(self.state.history.close)
            ending.callback(self._network.end)
            if transport is not None:
                if self._detaches:
                    with contextlib.suppress(SandboxError):
                        self._pause.drop()
                transport.close(detach=self._detaches)

    def remove(self) -> None:
        """End the sandbox and everything in it, also a kept one, and wait until it is gone; may be called more than once.

        One that another orchestrator took over is left to that. Raises SandboxError ``sandbox_owned`` where one attached to it
        since ``close``.
        """
        self._detaches = not self.backend.claim_removal(left=self._closed and self._detaches)
        self.close(wait=True)

    def _live(self) -> Transport:
        """Return the transport of a sandbox that is in use. Raises SandboxError."""
        forks.check(self._pid)
        if not self._closed:
            self._pause.check()
        if self._transport is None:
            if self._closed:
                raise SandboxError(ErrorCode.sandbox_closed, "The sandbox is closed.", "Make a new environment.")
            hint = "Use it inside a with block, or call start() first."
            raise SandboxError(ErrorCode.sandbox_closed, "The sandbox is not started.", hint)
        return self._transport

    def _summary(self) -> tuple[str, ...]:
        return (*self.backend.describe().summary, self._phase())

    def _phase(self) -> str:
        if self._transport is None:
            return "closed" if self._closed else "not started"
        if self._transport.loss is not None:
            return f"lost ({self._transport.loss.reason})"
        return "paused" if self._pause.on else "running"

    @property
    def loss(self) -> SandboxUnavailableError | None:
        """Why the sandbox answers no more; None while it does, and before its start."""
        return None if self._transport is None else self._transport.loss

    def live_for(self, seconds: float) -> None:
        """Have the sandbox end by itself when so many seconds are over, whatever its lifetime was. Raises SandboxError."""
        self._live().request("live_for", {"seconds": seconds}, timeout_seconds=SILENCE_SECONDS)

    # Pause

    def pause(self) -> None:
        """Stop every process in the sandbox until ``resume``; does nothing when it is paused. Raises SandboxError.

        Operations are the failure ``sandbox_paused`` meanwhile; those under way go on afterwards, and neither their deadlines nor
        those of commands run: the time of the pause does not count.
        """
        self._pause.begin(self._live)

    def resume(self) -> None:
        """Let the sandbox go on; does nothing when it is not paused. Raises SandboxError."""
        forks.check(self._pid)
        self._pause.end(self._transport)

    def _freeze(self) -> None:
        streams = None if self._network.egress is None else self._network.egress.streams
        try:
            if streams is not None:
                self._drain(streams)
            self.backend.freeze()
        except BaseException:
            if streams is not None:
                streams.resume_sending()
            raise

    def _drain(self, streams: Streams) -> None:
        """Have connections stop sending, and what they sent read: what wakes the sandbox must find room in its pipe."""
        streams.pause_sending()
        if streams.busy and self._transport is not None:
            with contextlib.suppress(SandboxError):
                self._transport.request("usage", {}, timeout_seconds=DRAIN_SECONDS)

    def _thaw(self) -> None:
        self.backend.thaw()
        if self._network.egress is not None:
            self._network.egress.streams.resume_sending()

    # Network and services

    @property
    def network(self) -> Network:
        """The current policy; set another, or use ``allow`` and ``deny``, also while the sandbox runs.

        Connections that a new policy refuses are cut. Setting raises SandboxError: ``operation_not_supported`` where no rule
        holds, ``invalid_configuration`` for a change from or to ``Network.bridge()`` of a sandbox that was started.
        """
        return self._network.policy

    @network.setter
    def network(self, network: Network) -> None:
        self._network.change(network)

    @property
    def ceiling(self) -> Ceiling | None:
        """What no policy of this sandbox opens; None, the default, bounds nothing.

        It is for a program that takes rules from people it does not trust, as a service does. Set it before the start, or at any
        time: each connection is judged by it, those that stand are cut if it refuses them, and a policy that names what it closes
        is refused with CeilingError. Forks have it, too. Raises CeilingError with ``Network.bridge()``, on which nothing can hold.
        """
        return self._network.ceiling

    @ceiling.setter
    def ceiling(self, ceiling: Ceiling | None) -> None:
        self._network.lower(ceiling)

    def allow(self, *rules: str) -> Network:
        """Open what the rules name from now on, and return the policy. See ``Network.allow`` for how they are written.

        Raises SandboxError: ``invalid_configuration`` for an invalid rule, ``operation_not_supported`` if no rule can be enforced.
        """
        return self._network.allow(*rules)

    def deny(self, *rules: str) -> Network:
        """Close what the rules name from now on, whatever opens it; cut the connections to it, and return the policy.

        Without ports a rule closes all of them. Raises as ``allow`` does.
        """
        return self._network.deny(*rules)

    @property
    def connections(self) -> tuple[Connection, ...]:
        """The last 1,000 connections that ended or were refused; those under ``Network.bridge()`` are not seen."""
        return self._network.log.last()

    @property
    def connection_count(self) -> int:
        """How many connections have ended or were refused; ``connections`` has the last 1,000 of them."""
        return self._network.log.count

    @property
    def on_connection(self) -> Callable[[Connection], None] | None:
        """Called for each connection as it ends or is refused, in a thread of the network's own; it must not block."""
        return self._network.on_connection

    @on_connection.setter
    def on_connection(self, call: Callable[[Connection], None] | None) -> None:
        self._network.on_connection = call

    def peer_port(self, port: int) -> PeerPort | None:
        """Return how another sandbox on this host reaches a port of this one; None if this one is closed."""
        return self._network.peer_port(self._transport, port)

    def forward(self, port: int, host_port: int = 0) -> Envelope[Forward]:
        """Let programs on the host reach the server at TCP ``port`` of the sandbox's loopback, at a loopback port of the host.

        The result has ``url``, ``host``, ``port`` and ``close()``. ``host_port`` 0 takes a free one. It needs no network, carries
        whatever goes over TCP, WebSockets too, and is closed with the sandbox. The server need not be there yet: see
        ``wait_for_port``.
        Any user of the host can connect. Failures: ``invalid_arguments``, ``invalid_configuration`` (the host's port is taken),
        ``operation_not_supported``.
        """
        started = time.monotonic()
        try:
            check_ports(port, host_port)
            made = self._network.forward(self._live(), port, host_port)
        except SandboxError as error:
            if error.code is ErrorCode.sandbox_closed:
                raise
            return Failure.of(error, duration_ms=(time.monotonic() - started) * 1000)
        return Success(made, duration_ms=(time.monotonic() - started) * 1000)

    def forwards(self) -> tuple[Forward, ...]:
        """Return the forwarded ports that are open."""
        return self._network.forwards()

    def perform(self, request: op.Request, watch: Watch | None = None) -> Envelope[Any]:
        """See ``Environment.perform``."""
        return self.carry_out(self.prepared(request, watch))

    def prepared(self, request: op.Request, watch: Watch | None) -> PreparedCall:
        """Return the request as it is sent. Raises SandboxError, and TypeError for what is not a request."""
        check_request(request, watch)
        started = time.monotonic()
        prepared = self._with_variables(request, request.prepare(self.limits))
        if (watch := watch_of(request, prepared, watch)) is not None:
            watch = watch.masked(self.hidden.mask) if self.hidden else watch
            prepared = replace(request.reading_from(prepared, watch.stdin), watch=watch)
        return PreparedCall(request, prepared, watch, started)

    def carry_out(self, call: PreparedCall) -> Envelope[Any]:
        """Send a request that was prepared, and return the answer. Raises SandboxError."""
        try:
            answer = call.request.answer(call.prepared, self._host)
        except SandboxUnavailableError as error:
            if error.reason == "no_answer" and call.prepared.waits_for_command:
                raise self._unanswered(error) from error
            raise
        if call.watch is not None:
            call.watch.finish()
        return self._envelope(call.request, answer, call.started)

    async def carry_out_awaited(self, call: PreparedCall) -> Envelope[Any]:
        """Do what ``carry_out`` does, in an asyncio loop and without a thread. Nothing is streamed. Raises SandboxError."""
        from sandbox.pipe.awaiting import request  # asyncio takes 30 ms to import

        kind, prepared = type(call.request), call.prepared
        stoppable = kind.starts_process or kind.waits
        try:
            reply = await request(
                self._live(), kind.operation, prepared.args, stoppable=stoppable, **prepared.options()
            )
        except SandboxUnavailableError as error:
            if error.reason == "no_answer" and prepared.waits_for_command:
                import asyncio

                raise await asyncio.to_thread(self._unanswered, error) from error
            raise
        return self._envelope(call.request, call.request.read_reply(reply, self._host), call.started)

    def _unanswered(self, error: SandboxUnavailableError) -> SandboxUnavailableError:
        """Make good on a command's deadline though the guest is silent; return the error to report."""

        def give_up(reported: SandboxUnavailableError) -> None:
            if self._transport is not None:
                self._transport.give_up(reported)

        return self.backend.explain_silence(error, give_up)

    def _with_variables(self, request: op.Request, prepared: Prepared) -> Prepared:
        """Give a command the secrets that it gets by itself or has asked for, unless it sets these variables itself."""
        variables = self.hidden.variables(prepared.secret_names) if request.starts_process else {}
        if not variables:
            return prepared
        return replace(prepared, args={**prepared.args, "env": {**variables, **(prepared.args.get("env") or {})}})

    def _envelope(self, request: op.Request, answer: Answer, started: float) -> Envelope[Any]:
        fields, result, of_result = answer
        duration_ms = (time.monotonic() - started) * 1000
        of_services = self._services.notices()
        notices = (*self._owed_notices(), *self._notices_in(fields), *of_services)
        hear(notices)
        notices = (*notices, *notices_of(list(of_result)))
        fault = fields.get("fault")
        if fault is None:
            if result is None:
                raise violation(request.operation)
            return Success(result, duration_ms=duration_ms, notices=notices)
        error = fault_of(self.hidden.mask.fields(fault), request.operation)
        schema = op.schema_of(type(request)) if error.code is ErrorCode.invalid_arguments else None
        return Failure.of(error, result=result, duration_ms=duration_ms, notices=notices, schema=schema)

    def _notices_in(self, fields: Mapping[str, Any]) -> list[Notice]:
        notices = self.hidden.mask.fields(fields.get("notices"))
        if self.internal_commands and isinstance(notices, list):
            notices = [n for n in notices if not (isinstance(n, dict) and n.get("id") in self.internal_commands)]
        return notices_of(notices, self._known_of_packages() if notices else {})

    def _known_of_packages(self) -> dict[str, Any]:
        """Return what notices say of packages: the package managers that can install some ("" for none), and if / is read-only."""
        installers = self._services.installers()
        if installers is None:
            installers = " or ".join(PACKAGE_MANAGERS) if self.network.mode in ("open", "bridge") else ""
        return {"installers": installers, "read_only_root": self.backend.describe().read_only_root}

    def upload(
        self, data_or_path: bytes | str | os.PathLike[str], path: str, *, mode: int | None = None
    ) -> Envelope[op.UploadResult]:
        """See ``OperationMethods.upload``; ``mode`` is the file's, where it should not be the host file's own."""
        data = (data_or_path, bytes | bytearray | memoryview | HOST_PATH)
        check_types("upload", data_or_path=data, path=(path, str), mode=(mode, int | None))
        return self._upload(data_or_path, path, mode)

    def _upload(
        self,
        data_or_path: bytes | str | os.PathLike[str],
        path: str,
        mode: int | None = None,
        passing: Callable[[Iterable[bytes]], Iterable[bytes]] = iter,
    ) -> Envelope[op.UploadResult]:
        def work(started: float) -> Envelope[op.UploadResult]:
            kind, own_mode, pieces = outgoing(data_or_path, self.limits.transfer_bytes)
            return self._sent(kind, passing(pieces), path, own_mode if mode is None else mode, started)

        return self.hidden.envelope(self._answered(op.Upload, work))

    def upload_pieces(
        self,
        kind: Literal["file", "tree"],
        pieces: Iterable[bytes],
        path: str,
        *,
        mode: int | None = None,
        initial: bool = False,
    ) -> Envelope[op.UploadResult]:
        """Do what ``upload`` does with bytes as they come: a file's, or the tar of a folder (``kind`` "tree").

        ``initial`` says that they are the files that the sandbox starts with, which later changes are compared with. What
        ``pieces`` raises is raised.
        """

        def work(started: float) -> Envelope[op.UploadResult]:
            body, history = bounded(pieces, self.limits.transfer_bytes), self.state.history
            if initial:
                with history.lock:
                    history.base = base = InitialWorkspace(self.limits.checkpoint_bytes if self.track_changes else 0)
                body = base.copy_passing(body)
            envelope = self._sent(kind, body, path, mode, started)
            if initial and self.track_changes:
                with history.lock:
                    self.state.begin(empty=False)
            return envelope

        return self.hidden.envelope(self._answered(op.Upload, work))

    def _sent(
        self, kind: Literal["file", "tree"], body: Iterable[bytes], path: str, mode: int | None, started: float
    ) -> Envelope[op.UploadResult]:
        request = op.Upload(path=path, kind=kind, mode=mode)
        reply = self._live().request("upload", request.model_dump(), timeout_seconds=SILENCE_SECONDS, body=body)
        return self._envelope(request, request.read_reply(reply, self._host), started)

    def download_pieces(
        self, path: str, sink: Callable[[bytes | memoryview], None], *, without: Sequence[str] = ()
    ) -> Envelope[op.DownloadResult]:
        """Pass a file, or the tar of a folder, to ``sink`` as it comes, in this thread; what it raises is raised.

        The result says which of both it was. After a failure ``sink`` may have got a part.
        """

        def work(started: float) -> Envelope[op.DownloadResult]:
            request = op.Download(path=path, without=tuple(without))
            reply = self._live().request("download", request.model_dump(), timeout_seconds=SILENCE_SECONDS, sink=sink)
            return self._envelope(request, request.read_reply(reply, self._host), started)

        return self.hidden.envelope(self._answered(op.Download, work))

    async def upload_awaited(
        self,
        kind: Literal["file", "tree"],
        pieces: AsyncIterable[bytes],
        path: str,
        *,
        mode: int | None = None,
        initial: bool = False,
    ) -> Envelope[op.UploadResult]:
        """Do what ``upload_pieces`` does, in an asyncio loop: a thread works only where the pipe has no room for a piece."""
        import asyncio

        from sandbox.pipe.awaiting import request as ask

        base: InitialWorkspace | None = None

        def begin() -> InitialWorkspace:
            history = self.state.history
            with history.lock:
                history.base = made = InitialWorkspace(self.limits.checkpoint_bytes if self.track_changes else 0)
            return made

        def finish() -> None:
            with self.state.history.lock:
                self.state.begin(empty=False)

        async def passing() -> AsyncGenerator[bytes, None]:
            sent = 0
            async for piece in pieces:
                sent += len(piece)
                if sent > self.limits.transfer_bytes:
                    raise too_large(self.limits.transfer_bytes)
                if base is not None:
                    base.keep(piece)
                yield piece

        async def work(started: float) -> Envelope[op.UploadResult]:
            nonlocal base
            request = op.Upload(path=path, kind=kind, mode=mode)
            base = await asyncio.to_thread(begin) if initial else None
            transport, args = self._live(), request.model_dump()
            async with contextlib.aclosing(passing()) as body:
                reply = await ask(transport, "upload", args, timeout_seconds=SILENCE_SECONDS, stoppable=False, body=body)
            envelope: Envelope[op.UploadResult] = self._envelope(request, request.read_reply(reply, self._host), started)
            if initial and self.track_changes:
                await asyncio.to_thread(finish)
            return envelope

        return self.hidden.envelope(await self._awaited(op.Upload, work))

    async def download_awaited(
        self, path: str, sink: Callable[[bytes | memoryview], Awaitable[None]], *, without: Sequence[str] = ()
    ) -> Envelope[op.DownloadResult]:
        """Do what ``download_pieces`` does, in an asyncio loop and without a thread."""
        from sandbox.pipe.awaiting import request as ask

        async def work(started: float) -> Envelope[op.DownloadResult]:
            request = op.Download(path=path, without=tuple(without))
            transport, args = self._live(), request.model_dump()
            reply = await ask(
                transport, "download", args, timeout_seconds=SILENCE_SECONDS, stoppable=False, sink=sink
            )
            return self._envelope(request, request.read_reply(reply, self._host), started)

        return self.hidden.envelope(await self._awaited(op.Download, work))

    async def _awaited(
        self, kind: type[op.Request], work: Callable[[float], Awaitable[Envelope[T]]]
    ) -> Envelope[T]:
        """Do what ``_answered`` does with a coroutine."""
        started = time.monotonic()
        try:
            return await work(started)
        except (ValidationError, SandboxError, OSError) as error:
            return self._failed(kind, error, started)

    def download(
        self,
        path: str,
        to: str | os.PathLike[str] | None = None,
        *,
        without: Sequence[str] = (),
        overwrite: bool = False,
    ) -> Envelope[op.DownloadResult]:
        """See ``OperationMethods.download``."""
        check_types("download", path=(path, str), to=(to, HOST_PATH | None), without=(without, Sequence))

        def work(started: float) -> Envelope[op.DownloadResult]:
            request = op.Download(path=path, without=tuple(without))
            with Incoming(to, self.limits.transfer_bytes, overwrite=overwrite) as incoming:
                reply = self._live().request(
                    "download", request.model_dump(), timeout_seconds=SILENCE_SECONDS, sink=incoming.take
                )
                answer = request.read_reply(reply, self._host)
                envelope: Envelope[op.DownloadResult] = self._envelope(request, answer, started)
                if envelope.ok:
                    return Success(
                        incoming.finish(envelope.result), duration_ms=envelope.duration_ms, notices=envelope.notices
                    )
                return envelope

        return self.hidden.envelope(self._answered(op.Download, work))

    def secret(self, name: str, value: str, *, always: bool = True) -> None:
        """See ``Environment.secret``. Programs in the sandbox can read it: it is masked in what comes out, and no more."""
        self.hidden.add(name, value, always)

    # State of the files

    def changes(
        self, since: str | None = None, *, leftovers: bool = False, max_changes: int = MOST_CHANGES
    ) -> Envelope[op.ChangesResult]:
        """See ``StateMethods.changes``."""
        return self.state.changes(since, leftovers=leftovers, max_changes=max_changes)

    def mark(self, name: str | None = None) -> Envelope[op.CheckpointResult]:
        """See ``StateMethods.mark``."""
        return self.state.mark(name)

    def export_patch(
        self, since: str | None = None, *, to: str | os.PathLike[str] | None = None, leftovers: bool = False
    ) -> Envelope[op.PatchResult]:
        """See ``StateMethods.export_patch``."""
        return self.state.export_patch(since, to=to, leftovers=leftovers)

    def checkpoint(self, name: str | None = None) -> Envelope[op.CheckpointResult]:
        """See ``StateMethods.checkpoint``."""
        return self.state.checkpoint(name)

    def checkpoints(self) -> Envelope[op.CheckpointsResult]:
        """See ``StateMethods.checkpoints``."""
        return self.state.checkpoints()

    def delete_checkpoint(self, id: str) -> Envelope[op.DeletedCheckpointResult]:  # noqa: A002
        """See ``StateMethods.delete_checkpoint``."""
        return self.state.delete_checkpoint(id)

    def save_checkpoint(self, id: str, to: str | os.PathLike[str]) -> Envelope[op.SavedCheckpointResult]:  # noqa: A002
        """See ``StateMethods.save_checkpoint``."""
        return self.state.save_checkpoint(id, to)

    def load_checkpoint(self, path: str | os.PathLike[str], name: str | None = None) -> Envelope[op.CheckpointResult]:
        """See ``StateMethods.load_checkpoint``."""
        return self.state.load_checkpoint(path, name)

    def rollback(self, id: str, *, kill: bool = False) -> Envelope[op.RollbackResult]:  # noqa: A002
        """See ``StateMethods.rollback``."""
        return self.state.rollback(id, kill=kill)

    # Description

    def describe(self) -> dict[str, str]:
        """Return short sections for the prompt; what a started sandbox has left (see ``usage``) comes last: it changes."""
        found = self.backend.describe()
        mask, services = self.hidden.mask.names, self._services
        network = found.network or self.network.describe(mask, services=services.are_listed)
        return {
            "sandbox": f"{found.sandbox}{self._readable_words()}",
            "network": network + services.describe(mask),
            **self.hidden.describe(),
            "limits": f"{found.limits or self._limits_words(found)}{end_words(self.limits)}{found.disk and ' '}{found.disk}",
            **self._left(),
        }

    def _limits_words(self, found: Description) -> str:
        limits = self.limits
        return (
            f"{limits.memory_bytes >> 20} MiB memory, {limits.cpus:g} cpus, {limits.pids} processes, "
            f"{size(found.workspace_bytes or limits.workspace_bytes)} workspace; a command may take {limits.timeout_seconds:g} s "
            f"unless timeout_seconds says otherwise{_cpu_words(limits)}."
        )

    def _readable_words(self) -> str:
        return (
            f" File tools also read, and do not write, below {', '.join(self.read_roots)}." if self.read_roots else ""
        )

    def _left(self) -> dict[str, str]:
        """Return the section on remaining resources; {} before the start, and if there is no answer."""
        if self._transport is None or forks.forked_since(self._pid):
            return {}
        if self._pause.on:  # it could not answer, and the prompt would wait for it
            return {"left": "paused"}
        try:
            reply = self._transport.request("usage", {}, timeout_seconds=LOOK_SECONDS)
            self._owed.extend(self._notices_in(reply[0]))
            result = op.Usage().read_reply(reply, self._host).result
        except SandboxError:
            return {}
        return {} if result is None else {"left": self.hidden.mask.text(result.to_text())}


def checked_folders(read_roots: Sequence[str]) -> tuple[str, ...]:
    """Return the folders. Raises SandboxError for anything but a list of absolute paths."""
    check_types("DockerEnvironment or LocalEnvironment", read_roots=(read_roots, Sequence))
    folders: tuple[object, ...] = (read_roots,) if isinstance(read_roots, str) else tuple(read_roots)
    for folder in folders:
        if not isinstance(folder, str) or not folder.startswith("/") or "\0" in folder or ".." in folder.split("/"):
            raise SandboxError(
                ErrorCode.invalid_configuration,
                f"read_roots has {folder!r}, which is not the absolute path of a folder in the sandbox.",
                "Give folders as in read_roots=['/etc'], or ['/'] for all that commands can read.",
            )
    return tuple(os.path.normpath(str(folder)) for folder in folders)


def _do_nothing() -> None:
    pass


def _closed() -> SandboxError:
    return SandboxError(ErrorCode.sandbox_closed, "The sandbox was closed.", "Make a new environment.")


def _cpu_words(limits: Limits) -> str:
    seconds = limits.cpu_seconds_per_command
    return "" if seconds is None else f", and {seconds:g} s of processor time"


def end_words(limits: Limits) -> str:
    """Return a sentence, with a space before it, that says when a sandbox with these limits ends by itself; "" if it never does."""
    ends = []
    if limits.lifetime_seconds is not None:
        ends.append(f"{duration(limits.lifetime_seconds)} after its start")
    if limits.idle_seconds is not None:
        ends.append(f"when nothing was done in it for {duration(limits.idle_seconds)}")
    return f" The sandbox ends by itself {' and '.join(ends)}." if ends else ""


def watch_of(request: op.Request, prepared: Prepared, watch: Watch | None) -> Watch | None:
    """Return the watch, with the onlooker of a command that is waited for.

    Raises OperationError where there is nothing to watch, or it was cancelled before it began.
    """
    if watch is not None and watch.cancel is not None and watch.cancel.cancelled:
        raise fault_error(ErrorCode.cancelled, {}, request.operation)
    if prepared.waits_for_command:
        return with_onlooker(watch)
    if request.starts_process and watch is not None and watch.listens:
        problem = "on_output is for commands that are waited for; see the output of one in the background with logs"
        raise fault_error(ErrorCode.invalid_arguments, {"problem": problem}, request.operation)
    return watch


class _Host:
    """What the environment offers to its operations, see ``operations.base.Host``."""

    def __init__(self, live: Callable[[], Transport], network_usage: Callable[[], Mapping[str, Any]]) -> None:
        self._live = live
        self.network_usage = network_usage

    def ask(self, operation: str, prepared: Prepared) -> Reply:
        """Send a request to the guest."""
        return self._live().request(operation, prepared.args, **prepared.options())

    @cached_property
    def screens(self) -> Screens:
        """The screens of the commands that have a terminal."""
        from sandbox.text.screen import Screens  # pyte takes 60 ms to load

        return Screens()


GuestEnvironment = SandboxedEnvironment  # its name in version 0.1.0, under a module path that warns
