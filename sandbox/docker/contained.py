"""ContainedEnvironment: the pipe of a container and its end, for what makes one or attaches to one."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from typing import Any

import docker.errors

from sandbox.docker.container.disk import Disk
from sandbox.docker.container.profiles import Profile
from sandbox.docker.container.removal import remove
from sandbox.docker.container.root_changes import RootChange, list_root_changes
from sandbox.docker.container.stream import AttachStream
from sandbox.docker.engine.client import connect, translated
from sandbox.docker.engine.events import EngineEvents, watch
from sandbox.docker.kept.attach import EngineKeep
from sandbox.docker.kept.kept import Kept
from sandbox.docker.kept.owners import Ownership
from sandbox.environment.base import Approver
from sandbox.environment.sandboxed import GuestEnvironment
from sandbox.errors import ErrorCode, SandboxError, SandboxUnavailableError
from sandbox.limits import Limits
from sandbox.network.policy import Network
from sandbox.network.streams import Streams
from sandbox.pipe import forked_processes as forks
from sandbox.pipe.transport import Transport

from .container import postmortem
from .kept import attach as reaching

# A guest reads what is in its pipe in milliseconds; one that does not is paused all the same.
DRAIN_SECONDS = 1.0


class ContainedEnvironment(GuestEnvironment):
    """A sandbox whose guest is PID 1 of a container. Subclasses make the container, or find it."""

    _container_id: str | None = None
    _stream: AttachStream | None = None
    _events: EngineEvents | None = None
    _disk: Disk | None = None
    _kept: Kept | None = None
    _ownership: Ownership | None = None
    _creating = _take_over = _taken_over = False

    def __init__(
        self, image: str, profile: Profile, limits: Limits, network: Network | None, approver: Approver | None,
        track_changes: bool, read_roots: Sequence[str] = (),
    ) -> None:  # fmt: skip
        super().__init__(profile.with_least_limits(limits), network, approver, track_changes, read_roots)
        self.image, self.profile = image, profile
        self.root_is_kept = profile.read_only_root
        self._oci_runtime: str | None = None
        self._keep_seconds = 0.0
        self._name = f"gamebox-{secrets.token_hex(8)}"
        self._streams: list[AttachStream] = []  # cut ones that a thread may still be using

    @property
    def container_id(self) -> str:
        """The engine's id of the container. Raises SandboxError before the start."""
        if self._container_id is None:
            raise SandboxError(ErrorCode.sandbox_closed, "The sandbox is not started.", "Call start() first.")
        return self._container_id

    def list_root_changes(self) -> tuple[RootChange, ...]:
        """What differs from the image, the places for files left out; nothing where the root file system is read-only.

        Raises SandboxError as the engine does.
        """
        return () if self.profile.read_only_root else list_root_changes(self.container_id)

    def _summary(self) -> tuple[str, ...]:
        known = () if self._container_id is None else (self._container_id[:8],)
        return (*known, self.image, *super()._summary())

    # --- the pipe ------------------------------------------------------------------
    def _transport_on(self, stream: AttachStream, **options: Any) -> Transport:
        keep = None
        if self._kept is not None:
            keep = EngineKeep(
                self._kept,
                self.container_id,
                self._post_mortem,
                self._is_dead,
                lambda: self._pause.on,
                self._reached_again,
            )
        return self._carrying(
            Transport(stream, self._post_mortem, lease_seconds=self.limits.lease_seconds, keep=keep, **options)
        )

    def _is_dead(self, timeout_seconds: float) -> bool:
        ident, events = self._container_id, self._events
        return ident is not None and events is not None and events.fate(ident, timeout_seconds).died

    def _reached_again(self, stream: AttachStream) -> None:
        """The pipe is another one. Callers may still be sending on the last one, but no more on the one before it."""
        for old in self._streams:
            old.release()
        self._streams = [] if self._stream is None else [self._stream]
        self._stream = stream
        with contextlib.suppress(SandboxError):
            self._events = watch(connect())

    # --- end ------------------------------------------------------------------
    def remove(self) -> None:
        """End the sandbox and everything in it, also a kept one; may be called more than once.

        One that another orchestrator took over is left to that. Raises SandboxError ``sandbox_owned`` where one attached to it
        since ``close``.
        """
        forks.check(self._pid)
        if self._closed and self._detaches and not self._taken_over:
            self._ownership = reaching.claimed_again(self._name)
        self._detaches = self._taken_over
        self.close()

    def _release(self) -> None:
        ownership, self._ownership = self._ownership, None
        stream, self._stream = self._stream, None
        for each in (*self._streams, *([] if stream is None else [stream])):
            each.release()
        self._streams = []
        begun = self._creating or self._container_id is not None
        if begun and (not self._detaches or self._is_dead(0)):
            remove(
                self._name, may_appear=self._creating, has_volumes=self._disk is not None and bool(self._disk.mounts)
            )
        if ownership is not None:
            ownership.release(gone=not self._detaches)

    def _freeze(self) -> None:
        streams = None if self._egress is None else self._egress.streams
        try:
            if streams is not None:
                self._drain(streams)
            self._stop_all()
        except BaseException:
            if streams is not None:
                streams.resume_sending()
            raise

    def _stop_all(self) -> None:
        """Have the engine pause the container. Where its answer is not heard, because of a Ctrl-C for one, that is undone."""
        try:
            with translated():
                connect().api.pause(self.container_id)
        except BaseException as error:
            if not isinstance(error.__cause__, docker.errors.APIError):  # else it was refused
                with contextlib.suppress(SandboxError), translated():
                    connect(postmortem.ENGINE_SECONDS).api.unpause(self.container_id)
            raise

    def _drain(self, streams: Streams) -> None:
        """Connections stop sending, and what they sent is read: what wakes the sandbox must find room in its pipe."""
        streams.pause_sending()
        if streams.busy and self._transport is not None:
            with contextlib.suppress(SandboxError):
                self._transport.request("usage", {}, timeout_seconds=DRAIN_SECONDS)

    def _thaw(self) -> None:
        try:
            with translated():
                connect().api.unpause(self.container_id)
        except SandboxError:
            # It may be awake already: by a call whose answer was not heard because of a Ctrl-C, or from outside.
            if postmortem.container_state(self.container_id) != "running":
                raise
        if self._egress is not None:
            self._egress.streams.resume_sending()

    def _unanswered(self, error: SandboxUnavailableError) -> SandboxUnavailableError:
        """See ``postmortem.end_unanswered``."""
        if self._container_id is None:
            return error

        def give_up() -> None:
            if self._transport is not None:
                message = f"{error.message} It was given up."
                self._transport.give_up(SandboxUnavailableError("no_answer", message, postmortem.START_ANOTHER))

        return postmortem.end_unanswered(self._container_id, error, give_up)

    def _post_mortem(self, reason: str, detail: str) -> SandboxUnavailableError:
        """Why the pipe ended; within 2 s."""
        if reason == "taken_over":
            self._taken_over = True
            if self._ownership is not None:
                self._ownership.release(gone=True)
        said = self._stream.stderr if self._stream is not None else ""
        keep_seconds = None if self._kept is None else self._keep_seconds
        ended = postmortem.EndedSandbox(self.container_id, self.limits, detail, said, keep_seconds)
        return ended.explain(reason, self._events)

    @property
    def _workspace_bytes(self) -> int:
        return self.limits.workspace_bytes if self._disk is None else self._disk.workspace_bytes or self.limits.workspace_bytes

    def describe(self) -> dict[str, str]:
        """See ``GuestEnvironment.describe``; with what the disk limit is worth once it is started."""
        sections = super().describe()
        if self._disk is not None:
            sections["limits"] += f" {self._disk.describe()}"
        return sections

    def _known_of_packages(self) -> dict[str, Any]:
        return {**super()._known_of_packages(), "read_only_root": self.profile.read_only_root}

    def _kind(self) -> str:
        runtime = "" if self._oci_runtime is None else f", OCI runtime {self._oci_runtime}"
        return f"An isolated container (image {self.image}{runtime}). {self.profile.gives}"
