"""DockerBackend: one sandbox in a container, made or found again, and reached through the engine or past it."""

from __future__ import annotations

import _thread
import contextlib
import logging
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docker
import docker.errors

from sandbox.backend import Description, GuestStream, StartRequest
from sandbox.docker.container.arguments import check_runtime
from sandbox.docker.container.disks.disk import Disk, host_disk, look_ahead, note_refused_devices, prepare
from sandbox.docker.container.profiles import Profile
from sandbox.docker.container.removal import remove
from sandbox.docker.container.shortcut import find_guest, take_shortcut
from sandbox.docker.container.stream import AttachStream
from sandbox.docker.engine.client import connect, translated
from sandbox.docker.engine.events import EngineEvents, watch
from sandbox.docker.engine.retries import retry_engine
from sandbox.docker.engine.turns import turns
from sandbox.docker.images.images import ensure_image, image_contents, image_variables, image_volumes, is_built
from sandbox.docker.images.manifests import read_manifest
from sandbox.docker.images.runtime import RuntimeVolume, ensure_runtime, forget_etc, remake_runtime
from sandbox.docker.kept.kept import Kept
from sandbox.docker.kept.orphans import sweep_beside
from sandbox.docker.kept.owners import Ownership
from sandbox.docker.remover import Removal, remover
from sandbox.environment.parts.description import commands_words
from sandbox.errors import ErrorCode, SandboxError, SandboxUnavailableError
from sandbox.interrupts import Shield
from sandbox.limits import Limits
from sandbox.network.services.names import for_guest

from .container import create as container
from .container import enforcement, image_problems, postmortem
from .container import preflight as fitting
from .container.disks import volumes
from .kept import attach as reaching
from .kept import kept, owners, waiting
from .kept.labels import SERVICE_LABEL
from .spec import SandboxSpec

if TYPE_CHECKING:
    from sandbox.pipe.transport import Transport

log = logging.getLogger(__name__)

_MOUNT_FAILED = re.compile(r"failed to mount local volume|error while mounting volume")
# The engine tells of a kill for memory a moment after it.
OOM_SECONDS = 0.5
# How long a busy engine has to wake a sandbox whose pause or resume was interrupted: it would stay paused for good.
WAKE_SECONDS = 10
# How long a pause is tried. With cgroup v1, runc gives up and thaws if processes begin and end while it freezes: about one of
# 100 pauses under load.
FREEZE_SECONDS = 10.0


class DockerBackend:
    """Implements ``Backend``. ``limits`` are those of ``profile``; ``env`` are the values of the variables that ``spec`` names.

    ``report`` gets a line for each slow step of the set-up.
    """

    attached = False

    def __init__(
        self, spec: SandboxSpec, profile: Profile, limits: Limits, env: Mapping[str, str], report: Callable[[str], None]
    ) -> None:
        self._spec, self._profile, self._limits, self._env, self._report = spec, profile, limits, env, report
        self.name = f"gamebox-{secrets.token_hex(8)}"
        self.labels: Mapping[str, str] = {}  # further ones, for the container that is made
        # Builds the image that the spec only describes, and returns its id.
        self.build_image: Callable[[], str] | None = None
        # In the place of the spec's image: one that was made from a container of that.
        self.root_image = ""
        # The ids of volumes by their paths, and how much they may hold, which is measured with the rest of the disk.
        self.volumes: Mapping[str, str] = {}
        self.volume_bytes: int | None = None
        self.container_id: str | None = None
        self.stream: AttachStream | None = None
        self._guest_pid = 0
        self._cut_streams: list[AttachStream] = []  # that a thread may still be using
        self._events: EngineEvents | None = None
        self._disk: Disk | None = None
        self._shell: object = None
        self._declares_volumes = False
        self._runtime = RuntimeVolume("")
        self._image_env: list[str] = []
        self._contents = ""  # what the image says
        self._browser = ""  # what the guest says of the image's browser
        self.starts_filled = False  # with files of its image in the workspace
        self.kept: Kept | None = None
        self._ownership: Ownership | None = None
        self._creating = self._take_over = self._taken_over = self._runs = False
        self._is_paused: Callable[[], bool] = lambda: False
        self._removal: Removal | None = None
        self._wait_for_sweep: Callable[[], None] = lambda: None

    def attach_to(self, found: Kept, *, take_over: bool) -> None:
        """Be the backend of a sandbox that another process made, instead of making one; before ``open``."""
        self.attached = True
        self.kept, self._take_over, self.name, self._disk = found, take_over, found.ident, found.disk

    # Open

    def open(self, request: StartRequest) -> GuestStream:
        self._is_paused = request.is_paused
        if self.attached and self.kept is not None:
            return self._attach(self.kept)
        client = self._engine_that_fits()
        look_ahead(client, self._limits, self._profile)
        self._events = watch(client)
        image_id = self._image(client)
        try:
            return self._make(client, image_id, request)
        except SandboxError as error:
            disk_may_change = self._disk is not None and self._disk.may_be_replaced(self._limits)
            if disk_may_change and _MOUNT_FAILED.search(error.message):
                note_refused_devices(client, f"the engine could not mount it: {error.message}")
                self._undo_create()
            elif error.code is not ErrorCode.image_not_found:
                raise
            # Else the image was built anew between the look at it and its use: then it has another id now.
            return self._make(client, self._image(client), request)

    def _attach(self, found: Kept) -> GuestStream:
        client = connect()
        self.container_id = found.container_id
        with translated():
            labels = client.api.inspect_container(found.container_id)["Config"].get("Labels") or {}
        self._contents = read_manifest(labels)  # a container has the labels of its image
        self._events = watch(client)
        self._guest_pid = find_guest(client, found.container_id)
        self.stream, nonce, received, self._ownership = reaching.take(client, found, self._take_over)
        return GuestStream(self.stream, keep=self._keep(found), nonce=nonce, received=received)

    def _engine_that_fits(self) -> docker.DockerClient:
        client = connect()
        fitting.check_host(client, self._limits)
        if self._spec.runtime is not None:
            check_runtime(client, self._spec.runtime)
        return client

    def _image(self, client: docker.DockerClient) -> str:
        if self.build_image is not None:
            return self.build_image()
        return ensure_image(client, self._spec.image, report=self._report, pull=self._spec.pull)

    def _make(self, client: docker.DockerClient, image_id: str, request: StartRequest) -> GuestStream:
        """Make a container of the image, and open its stream."""
        asked = self._spec.image if self.build_image is None else ""
        runtime = ensure_runtime(client, report=self._report, image=asked, image_id=image_id)
        with translated():
            image_env, self._contents = image_variables(client, image_id), image_contents(client, image_id)
            self._declares_volumes = bool(image_volumes(client, image_id))
        with turns.turn():
            # With a root of its own the sandbox goes on with files that it had: they come from its snapshot.
            filled = is_built(client, image_id) and not self.root_image
            disk = self._disk = prepare(client, self._limits, self._profile, self.name, copies=filled)
            try:
                if self._spec.workspace is not None:
                    fitting.check_workspace(Path(self._spec.workspace), disk.workspace_bytes)
                runtime, stream = self._create(client, self.root_image or image_id, runtime, disk, request)
            finally:
                disk.release()
        self._runtime, self._image_env, self.starts_filled = runtime, image_env, filled
        if request.stands_by:
            waiting.note(self.name)
        hello = {
            "isolated": True,
            "disk": self._disk_for_guest(client, disk, runtime),
            "keep": None if self.kept is None else self._keep_of_guest(self.kept, request),
            "names": for_guest(request.names),
        }
        return GuestStream(
            stream, self._place(request), hello, None if self.kept is None else self._keep(self.kept)
        )

    def _disk_for_guest(self, client: docker.DockerClient, disk: Disk, runtime: RuntimeVolume) -> dict[str, Any]:
        others = container.places(self._limits, self._profile)
        found = disk.for_guest(self._limits, others, host_disk(client, disk, runtime.mount))
        if self.volumes and self.volume_bytes is not None:
            found["watched"] += self.volumes
            found["limit"] = (found["limit"] or 0) + self.volume_bytes
        return found

    def has_more_than_spec(self) -> bool:
        """Return whether its container has files that the spec does not tell of."""
        return bool(self.root_image or self.volumes)

    def _keep_of_guest(self, found: Kept, request: StartRequest) -> dict[str, Any]:
        # One that stands by has nothing that is worth keeping: it ends as soon as any other if its pool dies.
        fields = reaching.for_guest(found, self._limits.lease_seconds if request.stands_by else None)
        # Nobody but its service is to come back to it: while that is away, it is idle all the same.
        return {**fields, "idles_alone": SERVICE_LABEL in self.labels}

    def _place(self, request: StartRequest) -> dict[str, Any]:
        bundle, environ = self._spec.ca_bundle is not None, {**request.variables, **self._env}
        return container.place_of(
            self._runtime, self._profile, request.network, self._image_env, environ, bundle, request.names
        )

    def serve(self, asked: DockerBackend, request: StartRequest) -> Mapping[str, str]:
        """See ``Backend``."""
        self._spec, self._limits, self._env, self._report = asked._spec, asked._limits, asked._env, asked._report
        self._is_paused = request.is_paused
        if self._spec.workspace is not None and self._disk is not None:
            fitting.check_workspace(Path(self._spec.workspace), self._disk.workspace_bytes)
        environ: dict[str, str] = self._place(request)["environ"]
        return environ

    def note_acquired(self) -> None:
        # Removing a file takes 0.5 to 14 ms, and a Thread would be waited for until it has started.
        with contextlib.suppress(RuntimeError):  # no more threads: the file says less than a word of ``gamebox ls``
            _thread.start_new_thread(waiting.forget, (self.name,))

    def _create(
        self, client: docker.DockerClient, image_id: str, runtime: RuntimeVolume, disk: Disk, request: StartRequest
    ) -> tuple[RuntimeVolume, AttachStream]:
        if self._spec.keep:
            found = self._spec.image if self.build_image is None else image_id
            spec = replace(self._spec, image=found, network=request.network).without_host()
            names = tuple(name.name for name in request.names)
            self.kept = Kept(self.name, kept.new_token(), spec, disk, names)
            self._ownership = self._ownership or owners.claim(self.name)
        try:
            return self._started_anyhow(client, image_id, runtime, disk, request)
        except SandboxError as error:
            refused = enforcement.refusal(error, self._limits)
            raise image_problems.explain_failed_start(refused, self._spec.image) from error

    def _started_anyhow(
        self, client: docker.DockerClient, image_id: str, runtime: RuntimeVolume, disk: Disk, request: StartRequest
    ) -> tuple[RuntimeVolume, AttachStream]:
        """Start the container, also if somebody removed the runtime volume: a file of it cannot be mounted, or the engine silently
        mounted a new, empty volume. If the files still cannot be mounted but the container starts without them, this engine mounts
        nothing by a path; if it does not, the image is at fault.
        """
        for attempt in range(2):
            try:
                return runtime, self._started(client, image_id, runtime, disk, request)
            except SandboxError as error:
                if not runtime.is_named_in(error.message):
                    raise
                self._undo_create()
                runtime = replace(runtime, etc="") if attempt else remake_runtime(client, self._report)
        stream = self._started(client, image_id, runtime, disk, request)
        forget_etc(client, runtime)
        return runtime, stream

    def _started(
        self, client: docker.DockerClient, image_id: str, runtime: RuntimeVolume, disk: Disk, request: StartRequest
    ) -> AttachStream:
        spec = self._spec
        shape = container.Shape(
            self._limits,
            request.network,
            self._profile,
            disk,
            oci_runtime=spec.runtime,
            kept=spec.keep,
            labels={container.IMAGE_LABEL: spec.image, **(self.kept.labels() if self.kept is not None else {}), **self.labels},
            auto_remove=self.kept is None or kept.is_removed_by(client),
            names=request.names,
            volumes=volumes.mounts(self.volumes),
        )
        watch(client).wait_until_open()
        with contextlib.suppress(RuntimeError):  # no more threads: then ``close`` does its work
            remover.begin()
        with translated():
            container.declared_mounts(client, image_id, self.name, runtime, shape)  # refused before anything can have been created
            with kept.naming(client, self.name, spec.name if spec.keep else None):
                self._creating = True
                self.container_id = container.create(client, image_id, self.name, runtime, shape)
                self._creating = False
            if self.root_image or not spec.image.startswith("gamebox/"):  # ours are as they should be
                image_problems.check_files_of_users(client, self.container_id, spec.image, image_id)
            self.stream = reaching.attach_stream(client, self.container_id)
            self._wait_for_sweep = sweep_beside(client)
            request.meanwhile()
            client.api.start(self.container_id)
            self._runs = True
            self._guest_pid = find_guest(client, self.container_id)  # while the guest starts
        return self.stream

    def _undo_create(self) -> None:
        """Remove the container of a failed start, and let go of the pipe to it."""
        stream, self.stream, self._runs = self.stream, None, False
        if stream is not None:
            stream.release()
        remove(self.name)

    def _keep(self, found: Kept) -> reaching.EngineKeep:
        return reaching.EngineKeep(
            found, str(self.container_id), self.explain, self._is_dead, lambda: self._is_paused(), self._reached_again
        )

    def _reached_again(self, stream: AttachStream) -> None:
        """Use a new stream. Callers may still be sending on the previous one, but not on the one before that, which is released."""
        for old in self._cut_streams:
            old.release()
        self._cut_streams = [] if self.stream is None else [self.stream]
        self.stream = stream
        with contextlib.suppress(SandboxError):
            self._events = watch(connect())

    def check(self, facts: Mapping[str, Any], transport: Transport) -> None:
        """See ``Backend``."""
        self._shell = facts.get("shell", self._shell)
        self._browser = str(facts.get("browser") or "")
        if self._disk is None or self.container_id is None or self.stream is None:
            return
        self.stream.ends_with_engine = self.kept is None
        take_shortcut(self._guest_pid, self.container_id, facts.get("pipes"), transport, self.stream)
        if not self.attached:
            image_problems.check_links(facts)
            enforcement.check(self._limits, self._disk, container.places(self._limits, self._profile), facts)
        self._wait_for_sweep()

    # Close

    def outlives_close(self) -> bool:
        return self.kept is not None

    def claim_removal(self, *, left: bool) -> bool:
        if left and not self._taken_over:
            self._ownership = reaching.claimed_again(self.name)
        # The guest's word that another one took it over may not have been read yet.
        return not self._taken_over and (self._ownership is None or self._ownership.holds)

    def close(self, *, detach: bool) -> None:
        with Shield():  # after a Ctrl-C, too: a sandbox that is still there can be attached to, or removed by the next call
            ownership, self._ownership = self._ownership, None
            stream, self.stream = self.stream, None
            for each in (*self._cut_streams, *([] if stream is None else [stream])):
                each.release()
            self._cut_streams = []
            begun = self._creating or self.container_id is not None
            if begun and self._removal is None and (not detach or self._is_dead(0)):
                self._removal = self._begin_removal(ownership)
            elif ownership is not None:
                ownership.release(gone=not detach)
            waiting.forget(self.name)

    def _begin_removal(self, ownership: Ownership | None) -> Removal:
        """Have the remover finish what the end of the stream has begun: the guest ends, and the engine removes its container."""

        def release(gone: bool) -> None:
            if ownership is not None:
                ownership.release(gone=gone)

        ends_itself = self._runs and self.kept is None and not self._is_paused()
        has_volumes = self._declares_volumes or (self._disk is not None and bool(self._disk.mounts))
        # The engine itself leaves volumes that have a name, as those have that the image declares.
        events = self._events if ends_itself and not self._declares_volumes else None
        closed = Removal(self.name, self.container_id or "", release, events, self._creating, has_volumes)
        try:
            remover.add(closed)
        except BaseException:  # no thread can be started
            release(False)
            raise
        return closed

    def wait_until_gone(self) -> None:
        if self._removal is not None and not self._removal.wait():
            log.warning("sandbox %s is still being removed", self.name)

    # Death

    def explain(self, reason: str, detail: str) -> SandboxUnavailableError:
        if reason == "taken_over":
            self._taken_over = True
            if self._ownership is not None:
                self._ownership.release(gone=True)
        last_words = self.stream.stderr if self.stream is not None else ""
        keep_seconds = None if self.kept is None else self._spec.keep_seconds
        ended = postmortem.EndedSandbox(str(self.container_id), self._limits, detail, last_words, keep_seconds)
        return ended.explain(reason, self._events)

    def explain_silence(
        self, error: SandboxUnavailableError, give_up: Callable[[SandboxUnavailableError], None]
    ) -> SandboxUnavailableError:
        if self.container_id is None:
            return error
        given_up = SandboxUnavailableError("no_answer", f"{error.message} It was given up.", postmortem.START_ANOTHER)
        return postmortem.end_unanswered(self.container_id, error, lambda: give_up(given_up))

    def _is_dead(self, timeout_seconds: float) -> bool:
        ident, events = self.container_id, self._events
        return ident is not None and events is not None and events.fate(ident, timeout_seconds).died

    def ran_out_of_memory(self) -> bool:
        """Return whether the engine has reported that a process in it was killed for memory."""
        ident, events = self.container_id, self._events
        return events is not None and ident is not None and events.fate(ident, OOM_SECONDS).oom_at is not None

    # Pause

    def freeze(self) -> None:
        """See ``Backend``. If the engine's answer is not heard, because of a Ctrl-C for one, that is undone."""
        try:
            retry_engine(FREEZE_SECONDS, _is_restless)(self._pause)
        except BaseException as error:
            if not isinstance(error.__cause__, docker.errors.APIError):  # else it was refused
                with contextlib.suppress(SandboxError), translated():
                    connect(WAKE_SECONDS).api.unpause(self._running())
            raise

    def _pause(self) -> None:
        with translated():
            connect().api.pause(self._running())

    def thaw(self) -> None:
        try:
            with translated():
                connect().api.unpause(self._running())
        except SandboxError:
            # It may be awake already: by a call whose answer was not heard because of a Ctrl-C, or from outside.
            if postmortem.container_state(self._running(), WAKE_SECONDS) != "running":
                raise

    def _running(self) -> str:
        if self.container_id is None:
            raise SandboxError(ErrorCode.sandbox_closed, "The sandbox is not started.", "Call start() first.")
        return self.container_id

    # Words

    def describe(self) -> Description:
        spec, disk = self._spec, self._disk
        runtime = "" if spec.runtime is None else f", OCI runtime {spec.runtime}"
        can = f"{commands_words(self._shell)}{self._browser_words()}"
        return Description(
            sandbox=f"An isolated container (image {spec.image}{runtime}). {self._profile.gives} {can}",
            contents=self._contents,
            summary=(*(() if self.container_id is None else (self.container_id[:8],)), spec.image),
            disk="" if disk is None else disk.describe(),
            workspace_bytes=None if disk is None else disk.workspace_bytes or None,
            read_only_root=self._profile.read_only_root,
            checkpoints_hold_all=self._profile.read_only_root,
        )

    def _browser_words(self) -> str:
        if not self._browser:
            return ""
        files = "reads and writes no file of yours" if self._browser == "confined" else "reads only files that everybody may read"
        return f" Chromium opens pages for browse; it has no sandbox of its own, runs as another user, and {files}."


def _is_restless(error: BaseException) -> bool:
    return isinstance(error, SandboxError) and "unable to freeze" in error.message
