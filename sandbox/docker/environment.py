"""DockerEnvironment: a sandbox in a container on a Docker Engine."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from sandbox import operations as op
from sandbox.envelope import Envelope, Failure
from sandbox.environment.base import Approver
from sandbox.environment.generated.methods import LogsOptions
from sandbox.environment.parts.network import check_network
from sandbox.environment.parts.services import SandboxServices, SideGroup
from sandbox.environment.sandboxed import SandboxedEnvironment, checked_folders
from sandbox.errors import ErrorCode, SandboxError
from sandbox.limits import Limits
from sandbox.network.policy import Network
from sandbox.network.services.host_services import HostServices, split_services
from sandbox.network.services.service import Service
from sandbox.packages.cache import HOST as CACHE_HOST
from sandbox.packages.cache import PackageCache
from sandbox.pipe import forked_processes as forks

from .backend import DockerBackend
from .container import certificates as trust
from .container import preflight as fitting
from .container.arguments import check_inputs
from .container.profiles import WORKSPACE, Profile, find_profile
from .container.root_changes import RootChange, list_root_changes
from .engine.client import connect
from .kept import attach as reaching
from .kept import kept
from .kept.kept import Kept
from .local_images.image import Image
from .spec import DEFAULT_IMAGE, DEFAULT_KEEP_SECONDS, HostParts, SandboxSpec, check_arguments, write_down

if TYPE_CHECKING:
    # A circle: a side service runs in a DockerEnvironment, and a DockerEnvironment has side services.
    from sandbox.docker.services.running_service import RunningService
    from sandbox.network.ceiling import Ceiling
    from sandbox.network.services.side_service import SideService

log = logging.getLogger(__name__)


class DockerEnvironment(SandboxedEnvironment):
    """A sandbox on a Docker Engine; use it as a context manager, or ``start()`` and ``close()``.

    ``image`` must be on the engine: ``gamebox/*`` images are built when they are missing, others pulled with ``pull``. An ``Image``
    is built at the start, with the certificates, the package cache and the runtime of the sandbox; its layers are kept.
    ``workspace`` is a folder of the host that is copied in at the start; nothing is copied back by itself. ``env`` are
    variables for every command; ``ca_bundle`` a file of certificates (PEM) that commands trust in addition to those of this
    host. ``report`` gets a line for each slow step of the set-up. ``track_changes`` reports after each command which files
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
        image: str | Image = DEFAULT_IMAGE,
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
        keep_seconds: float = DEFAULT_KEEP_SECONDS,
        name: str | None = None,
        services: Sequence[Service] | Mapping[str, Service | SideService | RunningService] | None = None,
        cache: PackageCache | None = None,
        read_roots: Sequence[str] = (),
        pull: bool = False,
    ) -> None:
        # Every argument, before any other local variable: an option that the signature has cannot be forgotten below.
        asked = dict(locals())
        for implicit in ("self", "__class__"):
            asked.pop(implicit, None)
        check_arguments(asked)
        if isinstance(image, Image) and not image.steps and not image.settings:
            asked["image"] = image = image.base
        chosen = find_profile(profile)
        kept.check(keep_seconds, name)
        if chosen.warning:
            log.warning(chosen.warning)
        policy = check_network(Network.none() if network is None else network)
        _check_cache(cache, policy)
        variables, reporter = dict(env or {}), report or log.info
        folder = None if workspace is None else Path(workspace)
        bundle = None if ca_bundle is None else Path(ca_bundle)
        check_inputs(str(image), folder, bundle, variables)
        of_host, beside = split_services(services)
        asked["limits"] = limits = limits or Limits()
        roots = checked_folders(read_roots)
        self.spec, self._parts = write_down(
            {
                **asked,
                "network": policy,
                "env": variables,
                "services": {**{service.name: service for service in of_host}, **beside},
                "read_roots": roots,
            }
        )
        self.image, self.profile = str(image), chosen
        fitted = chosen.with_least_limits(limits)
        self.backend: DockerBackend = DockerBackend(self.spec, chosen, fitted, variables, reporter)
        if isinstance(image, Image):
            self.backend.build_image = lambda: self._build(image, reporter)
        super().__init__(
            self.backend,
            limits=fitted,
            network=policy,
            approver=approver,
            track_changes=track_changes,
            read_roots=roots,
            services=SandboxServices(HostServices(of_host), self._make_group(beside, reporter), cache),
        )

    @classmethod
    def from_spec(cls, spec: SandboxSpec, parts: HostParts | None = None) -> Self:
        """Make the environment that ``spec`` asks for, not started. ``parts`` is what the spec names and does not hold.

        Raises SandboxError ``invalid_configuration`` for a part that is missing, and as the constructor does.
        """
        return cls(**(parts or HostParts()).arguments(spec))

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
        """Attach to a kept sandbox that another process, or this one, left running, and return it started.

        One orchestrator owns a sandbox at a time: if another one does, this is refused unless ``take_over``. A paused sandbox is
        resumed. ``network`` is the policy from now on, ``Network.none()`` by default: rules belong to their owner and do not stay
        with the sandbox. Neither do ``cache`` and ``services`` of the host; the sandbox knows only the names it was made with.
        Raises SandboxError: sandbox_not_found, sandbox_owned, sandbox_unavailable, and as the engine does.
        """
        _check_attached(services)
        found = kept.find(connect(), id_or_name)
        if found.service and not take_over:
            raise reaching.of_service(found)
        return cls.attach_kept(
            found,
            take_over=take_over,
            network=network,
            services=services,
            cache=cache,
            approver=approver,
            report=report,
        )

    @classmethod
    def attach_kept(
        cls,
        found: Kept,
        *,
        take_over: bool = False,
        network: Network | None = None,
        services: Sequence[Service] | None = None,
        cache: PackageCache | None = None,
        approver: Approver | None = None,
        report: Callable[[str], None] | None = None,
        ceiling: Ceiling | None = None,
    ) -> Self:
        """Attach to a sandbox that was found on the engine, also to one of a service; see ``attach`` and ``ceiling``."""
        _check_attached(services)
        _check_known(found, services, cache is not None)
        parts = {"network": kept.network_of(found, network), "services": services, "cache": cache}
        callables = {"approver": approver, "report": report}
        env = cls(**HostParts({**parts, **callables}).arguments(replace(found.spec, env=(), beside=())))
        env.backend.attach_to(found, take_over=take_over)
        env._services.refuse_others(found.names)
        env.ceiling = ceiling
        return env.start()

    def _build(self, image: Image, report: Callable[[str], None]) -> str:
        """Build the image and return its id. Raises SandboxError."""
        from sandbox.docker.local_images.building import build, step_titles  # it imports this module

        asked, whole = self.spec, self._parts.whole
        bundle = None if asked.ca_bundle is None else Path(asked.ca_bundle)
        cache = whole.get("cache", asked.cache)
        titles = step_titles(image, report)
        return build(image, on_log=titles, ca_bundle=bundle, cache=cache, runtime=asked.runtime, pull=asked.pull).id

    def _make_group(
        self, services: Mapping[str, SideService | RunningService], report: Callable[[str], None]
    ) -> SideGroup | None:
        if not services:
            return None
        if self.spec.keep:
            raise SandboxError(
                ErrorCode.invalid_configuration,
                f"A kept sandbox cannot have the side services {', '.join(services)}: they end with the process that made them.",
                "Leave out keep=True, or run the servers inside the sandbox.",
            )
        from sandbox.docker.services.group import ServiceGroup  # it imports this module

        return ServiceGroup(services, report, self.hidden)

    @property
    def container_id(self) -> str:
        """The engine's id of the container. Raises SandboxError before the start."""
        found = self.backend.container_id
        if found is None:
            raise SandboxError(ErrorCode.sandbox_closed, "The sandbox is not started.", "Call start() first.")
        return found

    def list_root_changes(self) -> tuple[RootChange, ...]:
        """Return what differs from the image outside the places for files; () if the root file system is read-only.

        Raises SandboxError as the engine does.
        """
        return () if self.profile.read_only_root else list_root_changes(self.container_id)

    @property
    def services(self) -> Mapping[str, RunningService]:
        """The side services that are ready, by name; all of them once the sandbox is started."""
        return self._services.side

    def service_logs(self, name: str, **options: Unpack[LogsOptions]) -> Envelope[op.LogsResult]:
        """See ``Environment.service_logs``; the failure ``invalid_arguments`` for a name that no service has."""
        service = self.services.get(name)
        if service is not None:
            return self.hidden.envelope(service.logs(**options))
        known = ", ".join(self.services) or "none"
        return Failure(ErrorCode.invalid_arguments, f"There is no side service {name!r}.", f"There are: {known}.")

    def fork(self, count: int = 1, checkpoint: str | None = None) -> Envelope[op.ForkResult]:
        """See ``StateMethods.fork``; image, limits, network, variables, profile and the rest are those of this environment.

        Forks of a kept sandbox are not kept. One that was attached to cannot be forked where it was made with variables or
        certificates, which only its maker knows (failure ``operation_not_supported``).
        """
        from sandbox.state.fork import fork

        found = self.backend.kept
        if self.backend.attached and found is not None and found.missing:
            return Failure.of(reaching.unknown_to_forks(found))
        return self.state.with_history(
            lambda history: fork(self.state, self._twin, history, count, checkpoint), locked=False
        )

    def _twin(self) -> DockerEnvironment:
        spec = replace(self.spec, workspace=None, keep=False, keep_seconds=DEFAULT_KEEP_SECONDS, name=None)
        now = {"network": self.network, "approver": self.approver, "track_changes": self.track_changes}
        twin = self.from_spec(spec, HostParts({**self._parts.whole, **now}))
        self.hidden.copy_to(twin.hidden)
        twin.ceiling = self.ceiling
        return twin

    def remove(self) -> None:
        """See ``SandboxedEnvironment.remove``."""
        forks.check(self._pid)
        super().remove()

    def _starts_empty(self) -> bool:
        return self.spec.workspace is None and not self.backend.starts_filled

    def _fill(self) -> None:
        if self.spec.ca_bundle is not None:
            path = trust.bundle_path(self.profile)
            self.upload(trust.merge_host_certificates(Path(self.spec.ca_bundle)), path).unwrap()
            self.upload(trust.apt_configuration(path), trust.apt_path(self.profile)).unwrap()
        if self.spec.workspace is not None:
            folder = Path(self.spec.workspace)
            # Patches need the files as they were copied in.
            copied = self._upload(folder, WORKSPACE, passing=self._begin_base().copy_passing)
            if not copied.ok and copied.code is ErrorCode.no_space:
                raise fitting.workspace_too_large(
                    folder, self.backend.describe().workspace_bytes or self.limits.workspace_bytes
                )
            copied.unwrap()


def _check_cache(cache: PackageCache | None, network: Network) -> None:
    """Raise SandboxError ``invalid_configuration`` if programs would not find the cache."""
    if cache is not None and network.mode == "bridge":
        raise SandboxError(
            ErrorCode.invalid_configuration,
            "A sandbox with Network.bridge() cannot reach a package cache: its programs go past the host.",
            "Use Network.none(), allow(...) or open() with it.",
        )


def _check_attached(services: Sequence[Service] | Mapping[str, Any] | None) -> None:
    """Raise SandboxError ``invalid_configuration`` for services that an attached sandbox cannot have."""
    if beside := split_services(services)[1]:
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"A kept sandbox cannot have the side services {', '.join(beside)}: they end with the process that made them.",
            "Give attach only the Services of the host that the sandbox was made with; run other servers inside it.",
        )


def _check_known(found: Kept, services: Sequence[Service] | None, cache: bool) -> None:
    """Raise SandboxError ``invalid_configuration`` for what a kept sandbox cannot reach: its names are those it was made with."""
    asked = [service.host for service in split_services(services)[0]] + ([CACHE_HOST] if cache else [])
    unknown = [name for name in asked if name not in found.names]
    if unknown:
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"The sandbox {found.called} does not know {', '.join(unknown)}: "
            "its names of services are those it was made with.",
            f"It knows {', '.join(found.names) or 'none'}: bring only those, or make another sandbox.",
        )
