"""DockerEnvironment: a sandbox in a container of its own, reached through the engine's attach stream."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import docker
import docker.errors

from sandbox.argument_types import HOST_PATH, check_callable, check_types
from sandbox.docker.container.arguments import check_inputs, check_runtime
from sandbox.docker.container.disk import Disk, note_refused_devices, prepare
from sandbox.docker.container.profiles import Profile, find_profile
from sandbox.docker.container.removal import remove
from sandbox.docker.container.shortcut import take_shortcut
from sandbox.docker.container.stream import AttachStream
from sandbox.docker.engine.client import connect, translated
from sandbox.docker.engine.events import watch
from sandbox.docker.images.images import ensure_image
from sandbox.docker.images.runtime import RuntimeVolume, ensure_runtime, forget_runtime
from sandbox.docker.kept.kept import Kept
from sandbox.docker.kept.orphans import sweep
from sandbox.docker.services.served import check_attached, check_known
from sandbox.envelope import Envelope, Failure
from sandbox.environment.base import Approver
from sandbox.errors import ErrorCode, SandboxError
from sandbox.limits import Limits
from sandbox.network.policy import Network
from sandbox.network.services.host import HostServices, split_services
from sandbox.network.services.names import for_guest
from sandbox.network.services.service import Service
from sandbox.network.services.side import SideService
from sandbox.operations import ForkResult
from sandbox.packages.cache import PackageCache
from sandbox.pipe.transport import Transport
from sandbox.state.fork import fork
from sandbox.state.initial_workspace import InitialWorkspace

from .caching import CachingEnvironment
from .container import certificates as trust
from .container import create as container
from .container import enforcement
from .container import preflight as fitting
from .kept import attach as reaching
from .kept import kept, owners

if TYPE_CHECKING:
    from sandbox.docker.services.running import RunningService

log = logging.getLogger(__name__)

START_SECONDS = 30.0
_MOUNT_FAILED = re.compile(r"failed to mount local volume|error while mounting volume")


class DockerEnvironment(CachingEnvironment):
    """A sandbox on a Docker Engine; use it as a context manager, or ``start()`` and ``close()``.

    ``image`` must be on the engine: ``gamebox/*`` images are built when they are missing, others pulled with ``pull``.
    ``workspace`` is a folder of the host that is copied in at the start; nothing is copied back by itself. ``env`` are
    variables for every command; ``ca_bundle`` a file of certificates (PEM) that commands are to trust beside those of this
    host. ``report`` gets a line for each slow step of the set-up. ``track_changes`` tells after each command which files
    changed, and keeps what ``changes`` and ``export_patch`` compare with. ``profile`` is default, root-on-request, root or
    conformance (docs/reference/isolation.md); ``runtime`` names one of the engine's OCI runtimes, as in "runsc". ``services`` run
    beside it, each in a sandbox of its own, and are reached from it by their names (see ``SideService``); a RunningService of
    another environment is shared with that. A ``Service`` among them stands for one that the host asks with credentials of its
    own. ``cache`` is where pip, uv and npm find packages with no network. ``read_roots`` are folders that file tools and
    ``download`` may read as well: ["/"] for all that commands can read. Raises SandboxError.

    With ``keep`` the sandbox survives this process, and a cut of the connection to it: ``close`` leaves it running and ``remove``
    ends it; ``attach`` finds it again, by its id or by ``name``. Without any orchestrator for ``keep_seconds`` it ends by itself.
    """

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
        profile: str | Profile = "default",
        runtime: str | None = None,
        track_changes: bool = True,
        keep: bool = False,
        keep_seconds: float = 3600.0,
        name: str | None = None,
        services: Sequence[Service] | Mapping[str, Service | SideService | RunningService] | None = None,
        cache: PackageCache | None = None,
        read_roots: Sequence[str] = (),
        pull: bool = False,
    ) -> None:
        check_types(
            "DockerEnvironment", image=(image, str), workspace=(workspace, HOST_PATH | None), limits=(limits, Limits | None),
            env=(env, Mapping | None), ca_bundle=(ca_bundle, HOST_PATH | None), profile=(profile, str | Profile),
            runtime=(runtime, str | None), keep_seconds=(keep_seconds, int | float), name=(name, str | None),
            services=(services, Sequence | Mapping | None), cache=(cache, PackageCache | None),
        )  # fmt: skip
        check_callable("DockerEnvironment", "approver", approver)
        check_callable("DockerEnvironment", "report", report)
        super().__init__(image, find_profile(profile), limits or Limits(), network, approver, track_changes, read_roots)
        self._workspace = None if workspace is None else Path(workspace)
        self._env = dict(env or {})
        self._bundle = None if ca_bundle is None else Path(ca_bundle)
        self._report, self._oci_runtime, self._pull = report or log.info, runtime, pull
        self._keep, self._keep_seconds, self._given_name = keep, keep_seconds, name
        kept.check(keep_seconds, name)
        if self.profile.warning:
            log.warning(self.profile.warning)
        self._use_cache(cache)
        check_inputs(image, self._workspace, self._bundle, self._env)
        of_host, beside = split_services(services)
        self._services = {**{service.name: service for service in of_host}, **beside}
        self._use_of_host(HostServices(of_host))
        self._stand_beside(beside, keep, self._report)

    @classmethod
    def attach(
        cls,
        id_or_name: str,
        *,
        take_over: bool = False,
        network: Network | None = None,
        services: Sequence[Service] | None = None,
        cache: PackageCache | None = None,
        approver: Approver | None = None,
        report: Callable[[str], None] | None = None,
    ) -> Self:
        """A kept sandbox that another orchestrator left, or an earlier one of this process: started, with all that is in it.

        One orchestrator owns it at a time: where another one does, this is refused unless ``take_over``. A paused sandbox is
        resumed. ``network`` is the policy from now on, none where it is left out: rules are their owner's and do not stay with the
        sandbox, nor do its ``cache`` and ``services`` of the host, whose names are those it was made with. Raises SandboxError:
        sandbox_not_found, sandbox_owned, sandbox_unavailable, and as the engine does.
        """
        check_attached(services)
        client = connect()
        found = kept.find(client, id_or_name)
        check_known(found, services, cache is not None)
        env = cls(
            found.image, limits=found.limits, network=kept.network_of(found, network), approver=approver, report=report,
            profile=found.profile, runtime=found.runtime, track_changes=found.track_changes, keep=True, keep_seconds=found.seconds,
            name=found.name, services=services, cache=cache,
        )  # fmt: skip
        env._kept, env._take_over, env._name, env._disk = found, take_over, found.ident, found.disk
        env._bring_no_more_than(found)
        return env.start()

    # --- start ------------------------------------------------------------------
    def _connect(self) -> Transport:
        if self._kept is not None:
            return self._attach(self._kept)
        client = self._fitting_engine()
        self._events = watch(client)
        sweep(client)
        image_id = ensure_image(client, self.image, report=self._report, pull=self._pull)
        try:
            image_env, disk, runtime, stream, hello_keep = self._made(client, image_id)
        except SandboxError as error:
            disk_may_change = self._disk is not None and self._disk.may_be_replaced(self.limits)
            if disk_may_change and _MOUNT_FAILED.search(error.message):
                note_refused_devices(client, f"the engine could not mount it: {error.message}")
                self._undo_create()
            elif error.code is not ErrorCode.image_not_found:
                raise
            # Else the image was built anew between the look at it and its use: then it has another id now.
            image_id = ensure_image(client, self.image, report=self._report, pull=self._pull)
            image_env, disk, runtime, stream, hello_keep = self._made(client, image_id)
        environ = self._cache_variables() | self._env
        place = container.place_of(
            runtime, self.profile, self.network, image_env, environ, self._bundle is not None, self._names()
        )
        hello = {
            **self._hello(place, isolated=True),
            "disk": disk.for_guest(self.limits, container.places(self.limits)),
            "keep": hello_keep,
            "names": for_guest(self._names()),
        }
        transport, facts = self._met(client, stream, hello)
        self._transport = transport
        enforcement.check(self.limits, disk, container.places(self.limits), facts)
        self._fill()
        self._detaches = self._keep
        return transport

    def _made(
        self, client: docker.DockerClient, image_id: str
    ) -> tuple[list[str], Disk, RuntimeVolume, AttachStream, dict[str, Any] | None]:
        """A container of the image: the image's variables, and the container's disk, runtime, pipe and keep."""
        runtime = ensure_runtime(client, report=self._report)
        with translated():
            image_env: list[str] = client.api.inspect_image(image_id)["Config"].get("Env") or []
        disk = self._disk = prepare(client, self.limits, self.profile, container.WORKSPACE, self._name)
        try:
            if self._workspace is not None:
                fitting.check_workspace(self._workspace, disk.workspace_bytes)
            return image_env, disk, *self._create(client, image_id, runtime, disk)
        finally:
            disk.release()

    def _met(
        self, client: docker.DockerClient, stream: AttachStream, hello: dict[str, Any]
    ) -> tuple[Transport, dict[str, Any]]:
        """The guest, greeted, and what it answered. Of a kept sandbox the way is the engine's, which outlives this process."""
        transport = self._transport_on(stream)
        facts = transport.open(hello, START_SECONDS)
        if self._kept is None:
            take_shortcut(client, self.container_id, facts.get("pipes"), transport, stream)
        return transport, facts

    def _create(
        self, client: docker.DockerClient, image_id: str, runtime: RuntimeVolume, disk: Disk
    ) -> tuple[RuntimeVolume, AttachStream, dict[str, Any] | None]:
        """Create and start the container: its runtime volume, its pipe, and what its guest is told where it is kept."""
        if self._keep:
            self._kept = Kept(
                self._name, kept.new_token(), self._keep_seconds, self._given_name, self.image, self.profile.name, self.network,
                self.limits, disk, self._oci_runtime, self.track_changes,
                (*(["env"] if self._env else []), *(["ca_bundle"] if self._bundle else []), *(["cache"] if self._cache else []),
                 *(["read_roots"] if self.read_roots else [])),
                tuple(name.name for name in self._names()),
            )  # fmt: skip
            self._ownership = self._ownership or owners.claim(self._name)
        try:
            try:
                stream = self._started(client, image_id, runtime, disk)
            except SandboxError as error:
                if runtime.argv[0] not in error.message:
                    raise
                # Somebody removed the runtime volume, and the engine silently mounted a new, empty one.
                self._undo_create()
                forget_runtime(client)
                runtime = ensure_runtime(client, report=self._report)
                stream = self._started(client, image_id, runtime, disk)
        except SandboxError as error:
            raise enforcement.refusal(error, self.limits) from error
        return runtime, stream, None if self._kept is None else reaching.for_guest(self._kept)

    def _undo_create(self) -> None:
        """Remove the container of a failed start, and let go of the pipe to it."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.release()
        remove(self._name)

    def _attach(self, found: Kept) -> Transport:
        self._detaches = True  # whatever happens now, it is not ours to remove
        client = connect()
        self._container_id = found.container_id
        self._events = watch(client)
        self._stream, nonce, received, self._ownership = reaching.take(client, found, self._take_over)
        transport = self._transport_on(self._stream, nonce=nonce, received=received)
        transport.open({}, START_SECONDS)
        return transport

    def _fitting_engine(self) -> docker.DockerClient:
        client = connect()
        fitting.check_memory(client, self.limits)
        if self._oci_runtime is not None:
            check_runtime(client, self._oci_runtime)
        return client

    def _started(self, client: docker.DockerClient, image_id: str, runtime: RuntimeVolume, disk: Disk) -> AttachStream:
        removes = self._kept is None or kept.is_removed_by(client)
        labels = {container.IMAGE_LABEL: self.image, **(self._kept.labels() if self._kept is not None else {})}
        shape = container.Shape(
            self.limits, self.network, self.profile, disk, self._oci_runtime, self._keep, labels, removes, self._names(),
        )  # fmt: skip
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

    def _base(self) -> InitialWorkspace:
        """Keeps what is copied in, for patches."""
        base = InitialWorkspace(self.limits.checkpoint_bytes if self.track_changes else 0)
        self.history.base = base
        return base

    def fork(self, count: int = 1, checkpoint: str | None = None) -> Envelope[ForkResult]:
        """See ``StateMethods.fork``; image, limits, network, variables, profile and the rest are those of this environment.

        Forks of a kept sandbox are not kept. One that was attached to cannot be forked where it was made with variables or
        certificates, which only its maker knows (failure ``operation_not_supported``).
        """
        if self._attached and self._kept is not None and self._kept.given:
            return Failure.of(reaching.unknown_to_forks(self._kept))
        return self._with_history(
            lambda history: fork(self, self._twin, history, count, checkpoint), locked=False
        )

    def _twin(self) -> DockerEnvironment:
        twin = type(self)(
            self.image, limits=self.limits, network=self.network, env=self._env, ca_bundle=self._bundle,
            approver=self.approver, report=self._report, profile=self.profile.name, runtime=self._oci_runtime,
            track_changes=self.track_changes, services=self._services, cache=self._cache,
            read_roots=self.read_roots, pull=self._pull,
        )  # fmt: skip
        self.hidden.copy_to(twin.hidden)
        return twin

    def _fill(self) -> None:
        if self._bundle is not None:
            path = trust.bundle_path(self.profile)
            self.upload(trust.merge_host_certificates(self._bundle), path).unwrap()
            self.upload(trust.apt_configuration(path), trust.apt_path(self.profile)).unwrap()
        if self._workspace is not None:
            copied = self._upload(self._workspace, container.WORKSPACE, passing=self._base().copy_passing)
            if not copied.ok and copied.code is ErrorCode.no_space:
                raise fitting.workspace_too_large(self._workspace, self._workspace_bytes)
            copied.unwrap()
