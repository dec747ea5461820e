"""SandboxedEnvironment: the operations of a sandbox over a Backend, the same for every place that runs sandboxes."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Self

from sandbox import operations as op
from sandbox.argument_types import check_types
from sandbox.backend import Backend, GuestStream, StartRequest
from sandbox.errors import ErrorCode, SandboxError, SandboxUnavailableError
from sandbox.interrupts import Shield
from sandbox.limits import SILENCE_SECONDS, Limits
from sandbox.messages.faults import violation
from sandbox.network.policy import Network
from sandbox.pipe import descriptors
from sandbox.pipe import forked_processes as forks
from sandbox.state.methods import FileStateMethods

from .base import Approver
from .parts.description import end_words, limits_words, readable_words
from .parts.guest_operations import GuestHost
from .parts.guest_transfers import GuestTransfers
from .parts.loading import load_meanwhile
from .parts.network import NetworkMethods, SandboxNetwork, check_network
from .parts.pausing import Pause
from .parts.services import SandboxServices

if TYPE_CHECKING:
    from sandbox.network.streams import Streams
    from sandbox.pipe.transport import Transport
    from sandbox.state.file_state import FileState

# A prompt is not kept waiting for what is left of the sandbox.
LOOK_SECONDS = 1.0
# What a start takes at its most, and the way back from half of one.
START_DESCRIPTORS = 24
START_SECONDS = 30.0
# A guest that stands by answers in a millisecond; one that does not is replaced.
BEGIN_SECONDS = 1.0
# A guest reads what is in its pipe in milliseconds; one that does not is paused all the same.
DRAIN_SECONDS = 1.0


class SandboxedEnvironment(NetworkMethods, FileStateMethods, GuestTransfers):
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
        self._starting = threading.RLock()
        self._start_error: SandboxError | None = None
        self.internal_commands = set()
        self._host = GuestHost(self._live, self._network.usage)
        self._closed = False
        self._detaches = False  # whether ``close`` leaves the sandbox running

    def _make_state(self) -> FileState:
        from sandbox.state.file_state import FileState
        from sandbox.state.history import History

        return FileState(
            History(lambda *args, **call: self._live().request(*args, **call), self.limits.checkpoint_bytes),
            self.hidden,
            self._live,
            lambda ident: self.kill(ident),
            lambda: self.backend.describe().checkpoints_hold_all,
        )

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
        # Before anything is made that is to be undone; one that stands by has its descriptors.
        if self._standing_by is None and (none := descriptors.want(START_DESCRIPTORS)) is not None:
            raise descriptors.refusal(none, "The sandbox could not be started")
        try:
            self._services.begin()
            with descriptors.worded("The sandbox could not be started"):
                self._transport = self._connect()
                if self.track_changes and not self.backend.attached:  # else only its maker knows how it started
                    self._begin_state(self._starts_empty())
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
        return StartRequest(self.network, lambda: self._pause.on, names, variables, meanwhile=self._load_meanwhile)

    def _load_meanwhile(self) -> None:
        load_meanwhile(connections=self.network.mode in ("allow", "open") or bool(self._services.names()))

    def _open(self, request: StartRequest) -> None:
        opened = self.backend.open(request)
        # Loaded while an engine starts the sandbox, see ``load_meanwhile``.
        from sandbox.pipe.transport import Transport

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
        self._network.carry(transport, self._services.connectors(lambda: self.ceiling), self._services.close_with)

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
        reply, _ = transport.request("begin", args, timeout_seconds=BEGIN_SECONDS)
        self.backend.note_acquired()
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
            ending.callback(self._close_state)
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
        with contextlib.suppress(SandboxError):  # then none can begin
            self._network.egress()  # made if it is not: a connection may begin at any moment
        streams = self._network.streams
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
        if (streams := self._network.streams) is not None:
            streams.resume_sending()

    def secret(self, name: str, value: str, *, always: bool = True) -> None:
        """See ``Environment.secret``. Programs in the sandbox can read it: it is masked in what comes out, and no more."""
        self.hidden.add(name, value, always)

    # Description

    def describe(self) -> dict[str, str]:
        """Return short sections for the prompt; what a started sandbox has left (see ``usage``) comes last: it changes."""
        return {**self.lasting_description(), **self._left()}

    def lasting_description(self) -> dict[str, str]:
        """Return the sections that do not change by themselves; nobody is asked for them."""
        found = self.backend.describe()
        mask, services = self.hidden.mask.names, self._services
        network = found.network or self.network.describe(mask, services=services.are_listed)
        return {
            "sandbox": f"{found.sandbox}{readable_words(self.read_roots)}",
            **({"image": f"The image says that it has {found.contents}."} if found.contents else {}),
            "network": network + services.describe(mask),
            **self.hidden.describe(),
            "limits": f"{found.limits or limits_words(self.limits, found)}{end_words(self.limits)}{found.disk and ' '}{found.disk}",
        }

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


GuestEnvironment = SandboxedEnvironment  # its name in version 0.1.0, under a module path that warns
