"""DockerEnvironment: a sandbox in a container of its own, reached through the engine's attach stream."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import docker
import docker.errors

from sandbox.envelope import Envelope, Failure
from sandbox.environment import Approver
from sandbox.errors import ErrorCode, SandboxError, SandboxUnavailableError
from sandbox.guest_environment import GuestEnvironment
from sandbox.limits import Limits
from sandbox.network.policy import Network
from sandbox.results import ForkResult
from sandbox.state.base import StartBase
from sandbox.state.forking import forked
from sandbox.transport import Transport

from . import container, enforcement, fitting, kept, owners, postmortem, reaching
from .disk import Disk, prepare
from .engine import connect, translated
from .events import EngineEvents, watch
from .images import ensure_image
from .inputs import check_inputs, check_runtime
from .kept import Kept
from .orphans import sweep
from .owners import Ownership
from .profiles import profile_named
from .reaching import EngineKeep
from .removal import remove
from .runtime import RuntimeVolume, ensure_runtime, forget_runtime
from .stream import AttachStream

log = logging.getLogger(__name__)

START_SECONDS = 30.0


class DockerEnvironment(GuestEnvironment):
    """A sandbox on a Docker Engine; use it as a context manager, or ``start()`` and ``close()``.

    ``image`` must be on the engine (``gamebox/*`` images are built when they are missing; nothing is pulled). ``workspace`` is a
    folder of the host that is copied in at the start; nothing is copied back by itself. ``env`` are variables for every
    command; ``ca_bundle`` a file of certificates (PEM) that commands are to trust. ``report`` gets a line for each slow step
    of the set-up. ``track_changes`` tells after each command which files changed, and keeps what ``changes`` and ``export_patch``
    compare with. ``profile`` is default, root or conformance (see docs/isolation.md); ``runtime`` names one of the engine's
    OCI runtimes, as in "runsc". Raises SandboxError.

    With ``keep`` the sandbox survives this process, and a cut of the connection to it: ``close`` leaves it running and ``remove``
    ends it; ``attach`` finds it again, by its id or by ``name``. Without any orchestrator for ``keep_seconds`` it ends by itself.
    """

    _container_id: str | None = None
    _stream: AttachStream | None = None
    _events: EngineEvents | None = None
    _disk: Disk | None = None
    _kept: Kept | None = None
    _ownership: Ownership | None = None
    _creating = _take_over = _taken_over = False

    def __init__(
        self,
        image: str = "gamebox/base",
        workspace: str | os.PathLike[str] | None = None,
        *,
        limits: Limits | None = None,
        network: Network | None = None,
        env: Mapping[str, str] | None = None,
        ca_bundle: str | os.PathLike[str] | None = None,
        approver: Approver | None = None,
        report: Callable[[str], None] | None = None,
        profile: str = "default",
        runtime: str | None = None,
        track_changes: bool = True,
        keep: bool = False,
        keep_seconds: float = 3600.0,
        name: str | None = None,
    ) -> None:
        self.profile = profile_named(profile)
        super().__init__(self.profile.fitted(limits or Limits()), network, approver, track_changes)
        self.root_is_kept = self.profile.read_only_root
        self.image = image
        self._workspace = None if workspace is None else Path(workspace)
        self._env = dict(env or {})
        self._bundle = None if ca_bundle is None else Path(ca_bundle)
        self._report = report or log.info
        self._name = f"gamebox-{secrets.token_hex(8)}"
        self._oci_runtime = runtime
        self._keep, self._keep_seconds, self._given_name = keep, keep_seconds, name
        self._streams: list[AttachStream] = []  # cut ones that a thread may still be using
        kept.check(keep_seconds, name)
        if self.profile.warning:
            log.warning(self.profile.warning)
        check_inputs(image, self._workspace, self._bundle, self._env)

    @property
    def container_id(self) -> str:
        """The engine's id of the container. Raises SandboxError before the start."""
        if self._container_id is None:
            raise SandboxError(ErrorCode.sandbox_closed, "The sandbox is not started.", "Call start() first.")
        return self._container_id

    @classmethod
    def attach(
        cls,
        id_or_name: str,
        *,
        take_over: bool = False,
        approver: Approver | None = None,
        report: Callable[[str], None] | None = None,
    ) -> Self:
        """A kept sandbox that another orchestrator left, or an earlier one of this process: started, with all that is in it.

        One orchestrator owns it at a time: where another one does, this is refused unless ``take_over``. A paused sandbox is
        resumed. Raises SandboxError: sandbox_not_found, sandbox_owned, sandbox_unavailable, and as the engine does.
        """
        client = connect()
        found = kept.find(client, id_or_name)
        env = cls(
            found.image, limits=found.limits, network=found.network, approver=approver, report=report, profile=found.profile,
            runtime=found.runtime, track_changes=found.track_changes, keep=True, keep_seconds=found.seconds, name=found.name,
        )  # fmt: skip
        env._kept, env._take_over, env._name, env._disk = found, take_over, found.ident, found.disk
        return env.start()

    # --- start ------------------------------------------------------------------
    def _connect(self) -> Transport:
        if self._kept is not None:
            return self._attach(self._kept)
        client = self._fitting_engine()
        image_id = ensure_image(client, self.image, report=self._report)
        runtime = ensure_runtime(client, report=self._report)
        self._events = watch(client)
        sweep(client)
        with translated():
            image_env = client.api.inspect_image(image_id)["Config"].get("Env") or []
        disk = self._disk = prepare(client, self.limits, self.profile, container.WORKSPACE, self._name)
        try:
            runtime, stream, hello_keep = self._create(client, image_id, runtime, disk)
        finally:
            disk.release()
        place = container.place_of(runtime, self.profile, image_env, self._env, self._bundle is not None)
        hello = {
            **self._hello(place, isolated=True),
            "disk": disk.for_guest(self.limits, container.places(self.limits)),
            "keep": hello_keep,
        }
        transport = self._transport_on(stream)
        facts = transport.open(hello, START_SECONDS)
        self._transport = transport
        enforcement.check(self.limits, disk, container.places(self.limits), facts)
        self._fill()
        self._detaches = self._keep
        return transport

    def _create(
        self, client: docker.DockerClient, image_id: str, runtime: RuntimeVolume, disk: Disk
    ) -> tuple[RuntimeVolume, AttachStream, dict[str, Any] | None]:
        """Create and start the container: its runtime volume, its pipe, and what its guest is told where it is kept."""
        if self._keep:
            self._kept = Kept(
                self._name, kept.new_token(), self._keep_seconds, self._given_name, self.image, self.profile.name, self.network,
                self.limits, disk, self._oci_runtime, self.track_changes,
                (*(["env"] if self._env else []), *(["ca_bundle"] if self._bundle else [])),
            )  # fmt: skip
            self._ownership = owners.claim(self._name)
        try:
            try:
                stream = self._started(client, image_id, runtime, disk)
            except SandboxError as error:
                if runtime.argv[0] not in error.message:
                    raise
                # Somebody removed the runtime volume, and the engine silently mounted a new, empty one.
                remove(self._name)
                forget_runtime(client)
                runtime = ensure_runtime(client, report=self._report)
                stream = self._started(client, image_id, runtime, disk)
        except SandboxError as error:
            raise enforcement.refusal(error, self.limits) from error
        return runtime, stream, None if self._kept is None else reaching.for_guest(self._kept)

    def _attach(self, found: Kept) -> Transport:
        self._detaches = True  # whatever happens now, it is not ours to remove
        client = connect()
        self._container_id = found.container_id
        self._events = watch(client)
        self._stream, nonce, received, self._ownership = reaching.take(client, found, self._take_over)
        transport = self._transport_on(self._stream, nonce=nonce, received=received)
        transport.open({}, START_SECONDS)
        return transport

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
        return Transport(stream, self._post_mortem, lease_seconds=self.limits.lease_seconds, keep=keep, **options)

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

    def _fitting_engine(self) -> docker.DockerClient:
        if self._workspace is not None:
            fitting.check_workspace(self._workspace, self.limits)
        client = connect()
        fitting.check_memory(client, self.limits)
        if self._oci_runtime is not None:
            check_runtime(client, self._oci_runtime)
        return client

    def _started(self, client: docker.DockerClient, image_id: str, runtime: RuntimeVolume, disk: Disk) -> AttachStream:
        removes = self._kept is None or kept.is_removed_by(client)
        labels = {container.IMAGE_LABEL: self.image, **(self._kept.labels() if self._kept is not None else {})}
        shape = container.Shape(
            self.limits, self.network, self.profile, disk, self._oci_runtime, self._keep, labels, removes
        )
        with translated():
            with kept.naming(client, self._name, self._given_name if self._keep else None):
                self._creating = True
                self._container_id = container.create(client, image_id, self._name, runtime, shape)
                self._creating = False
            self._stream = reaching.attach_stream(client, self._container_id)
            client.api.start(self._container_id)
        return self._stream

    @property
    def _attached(self) -> bool:
        return self._kept is not None and bool(self._kept.container_id)

    def _begin_history(self, empty: bool) -> None:
        if not self._attached:  # what its workspace was at the start, only its maker knows
            super()._begin_history(empty)

    def _starts_empty(self) -> bool:
        return self._workspace is None

    def _base(self) -> StartBase:
        """Keeps what is copied in, for patches."""
        base = StartBase(self.limits.checkpoint_bytes if self.track_changes else 0)
        self.history.base = base
        return base

    def fork(self, count: int = 1, checkpoint: str | None = None) -> Envelope[ForkResult]:
        """See ``StateMethods.fork``; image, limits, network, variables, profile and the rest are those of this environment.

        Forks of a kept sandbox are not kept. One that was attached to cannot be forked where it was made with variables or
        certificates, which only its maker knows (failure ``operation_not_supported``).
        """
        if self._attached and self._kept is not None and self._kept.given:
            return Failure.of(reaching.unknown_to_forks(self._kept))
        return self._with_history(lambda history: forked(self, self._twin, history, count, checkpoint))

    def _twin(self) -> DockerEnvironment:
        return type(self)(
            self.image, limits=self.limits, network=self.network, env=self._env, ca_bundle=self._bundle,
            approver=self.approver, report=self._report, profile=self.profile.name, runtime=self._oci_runtime,
            track_changes=self.track_changes,
        )  # fmt: skip

    def _fill(self) -> None:
        if self._bundle is not None:
            self.upload(self._bundle, container.bundle_path(self.profile)).unwrap()
        if self._workspace is not None:
            copied = self._upload(self._workspace, container.WORKSPACE, passing=self._base().passing)
            if not copied.ok and copied.code is ErrorCode.no_space:
                raise fitting.workspace_too_large(self._workspace, self.limits)
            copied.unwrap()

    # --- end ------------------------------------------------------------------
    def remove(self) -> None:
        """End the sandbox and everything in it, also a kept one; may be called more than once.

        One that another orchestrator took over is left to that. Raises SandboxError ``sandbox_owned`` where one attached to it
        since ``close``.
        """
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
            remove(self._name, may_appear=self._creating, has_volumes=self._disk is not None and bool(self._disk.mounts))
        if ownership is not None:
            ownership.release(gone=not self._detaches)

    def _freeze(self) -> None:
        with translated():
            connect().api.pause(self.container_id)

    def _thaw(self) -> None:
        with translated():
            connect().api.unpause(self.container_id)

    def _unanswered(self, error: SandboxUnavailableError) -> SandboxUnavailableError:
        """See ``postmortem.unanswered``."""
        return error if self._container_id is None else postmortem.unanswered(self._container_id, error)

    def _post_mortem(self, reason: str, detail: str) -> SandboxUnavailableError:
        """Why the pipe ended; within 2 s."""
        if reason == "taken_over":
            self._taken_over = True
            if self._ownership is not None:
                self._ownership.release(gone=True)
        said = self._stream.stderr if self._stream is not None else ""
        keep_seconds = None if self._kept is None else self._keep_seconds
        ended = postmortem.Ended(self.container_id, self.limits, detail, said, keep_seconds)
        return ended.explain(reason, self._events)

    def describe(self) -> dict[str, str]:
        """See ``GuestEnvironment.describe``; with what the disk limit is worth once it is started."""
        sections = super().describe()
        if self._disk is not None:
            sections["limits"] += f" {self._disk.describe()}"
        return sections

    def _kind(self) -> str:
        runtime = "" if self._oci_runtime is None else f", OCI runtime {self._oci_runtime}"
        return f"An isolated container (image {self.image}{runtime}). {self.profile.gives}"
