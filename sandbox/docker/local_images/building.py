"""Build an image of this host's own user: the same steps, sandboxes and layers as any build, with what its user may reach."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker

from sandbox.argument_types import check_callable, check_types, check_variables
from sandbox.docker.builds.archives import ArchiveStore
from sandbox.docker.builds.build import IN_CACHE, Build, BuildLimits, BuiltImage
from sandbox.docker.builds.log import LogEntry
from sandbox.docker.builds.step_sandbox import Surroundings
from sandbox.docker.builds.steps import Plan, Step
from sandbox.docker.images.images import ensure_image
from sandbox.docker.images.recipes import CA_BUNDLE_VARIABLE, HOST_CA_BUNDLE
from sandbox.errors import ErrorCode, SandboxError, configuration_error
from sandbox.limits import GIB, Limits
from sandbox.network.policy import Network
from sandbox.packages.cache import PackageCache
from sandbox.pipe.watching import CancelToken
from sandbox.text.wording import value_text

from .contexts import pack
from .image import CopyFiles, Image

OWNER = ""
"""Of the images of this host's own user."""
# The user's own time and disk, which no tenant shares: what bounds a build is the step that never ends.
_BOUNDS = BuildLimits(timeout_seconds=6 * 3600.0, step_timeout_seconds=2 * 3600.0, image_bytes=64 * GIB, log_bytes=32 << 20)
_MEMORY_BYTES = 4 * GIB


def own_limits() -> Limits:
    """Return the limits of the sandbox of a step if its user names none: compilers need more than most commands."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Limits(
        memory_bytes=max(2 * GIB, min(_MEMORY_BYTES, there)),
        cpus=float(max(2, os.cpu_count() or 0)),
        pids=4096,
        file_bytes=16 * GIB,
        transfer_bytes=4 * GIB,
    )


def build(
    image: Image,
    name: str = "",
    *,
    on_log: Callable[[LogEntry], None] | None = None,
    network: Network | None = None,
    env: Mapping[str, str] | None = None,
    ca_bundle: Path | None = None,
    cache: PackageCache | None = None,
    limits: Limits | None = None,
    runtime: str | None = None,
    pull: bool = False,
    force: bool = False,
    cancel: CancelToken | None = None,
) -> BuiltImage:
    """Build an image; see ``Image.build``. Raises SandboxError."""
    check_types("build", name=(name, str), network=(network, Network | None), limits=(limits, Limits | None))
    check_callable("build", "on_log", on_log)
    check_variables("build", env or {})
    if cache is not None and network is not None and network.mode == "bridge":
        raise configuration_error("A build with Network.bridge() cannot reach a package cache.", "Leave one of them out.")
    asked = network is not None
    with tempfile.TemporaryDirectory(prefix="gamebox-build-") as folder:
        limits = limits or own_limits()
        store = ArchiveStore(Path(folder), most_bytes=limits.transfer_bytes)
        work = Build(
            _plan(image, store, force),
            owner=OWNER,
            name=name,
            archives=store,
            limits=replace(_BOUNDS, sandbox=limits),
            network=network or Network.none(),
            env=env,
            ca_bundle=find_bundle(ca_bundle),
            cache=cache,
            runtime=runtime,
            report=on_log,
            provide_base=lambda client, base, report: provide_base(client, base, report, pull=pull),
            complete=None if asked else _with_package_sources,
        )
        if cancel is None:
            return work.run()
        with cancel.calling(work.cancel):
            return work.run()


def step_titles(image: Image, report: Callable[[str], None]) -> Callable[[LogEntry], None]:
    """Return a listener to a build's log that reports each step which is not in the cache, once, before its first output."""
    waiting: dict[str, str] = {}

    def hear(entry: LogEntry) -> None:
        title = waiting.pop(entry.step, None)
        if entry.step.isdecimal() and entry.step not in seen:
            seen.add(entry.step)
            waiting[entry.step] = entry.text
        elif title is not None and entry.text != IN_CACHE:
            report(f"building the image, step {entry.step} of {len(image.steps)}: {title[:200]}")
        if entry.level in ("warn", "error"):
            report(entry.text)

    seen: set[str] = set()
    return hear


def provide_base(client: docker.DockerClient, name: str, report: Callable[[str], None], *, pull: bool = False) -> str:
    """Return the id of a base image; one of ours is made if it is missing. Raises SandboxError.

    Where no registry has the parent of ``gamebox/base``, only ``gamebox setup`` makes one: a build installs nothing on the host.
    """
    return ensure_image(client, name, report=report, pull=pull)


def find_bundle(named: Path | None) -> Path | None:
    """Return the certificates that steps trust: those named, or this host's own. Raises SandboxError ``invalid_configuration``."""
    asked = named or (Path(os.environ[CA_BUNDLE_VARIABLE]) if os.environ.get(CA_BUNDLE_VARIABLE) else None)
    if asked is not None:
        if not asked.is_file():
            raise SandboxError(
                ErrorCode.invalid_configuration,
                f"The CA bundle {value_text(str(asked), 300)} is not a file.",
                "Give a file of PEM certificates.",
            )
        return asked
    own = Path(os.environ.get("SSL_CERT_FILE") or HOST_CA_BUNDLE)
    return own if os.access(own, os.R_OK) and own.is_file() else None


def _with_package_sources(surroundings: Surroundings) -> Surroundings:
    from .package_sources import find_package_sources

    sources = find_package_sources()
    served = {} if surroundings.cache is not None else sources.variables
    secret = {} if surroundings.cache is not None else sources.secrets
    return replace(
        surroundings, network=sources.network(), variables=served, env={**secret, **surroundings.env}
    )


def _plan(image: Image, store: ArchiveStore, force: bool) -> Plan:
    """Return what to do, with the files that are copied in the store. Raises SandboxError."""
    packed: dict[tuple[Path, str], str] = {}
    steps: list[Step] = []
    for step in image.steps:
        if not isinstance(step, CopyFiles):
            steps.append(step)
            continue
        place = step.root, step.source
        if place not in packed:
            packed[place] = store.put(pack(*place))
        steps.append(replace(step.step, archive=packed[place]))
    settings: dict[str, Any] = dict(image.settings)
    return Plan(base=image.base, steps=tuple(steps), force=force, **settings)
