"""Find out what an engine really enforces: test every promise in a throw-away sandbox, and trust no version number."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, Literal

import docker

from sandbox.docker.container.arguments import check_runtime
from sandbox.docker.engine.client import connect, engine_address, translated
from sandbox.docker.environment import DockerEnvironment
from sandbox.errors import SandboxError
from sandbox.frozen import dataclass
from sandbox.limits import MIB, Limits

from . import probes
from .probes import Finding

BASE_IMAGE = "gamebox/base"
PROBED = Limits(
    disk="memory",
    memory_bytes=128 * MIB,
    cpus=0.5,
    pids=64,
    open_files=512,
    file_bytes=32 * MIB,
    tmp_bytes=16 * MIB,
    shm_bytes=4 * MIB,
)
Exit = Literal[0, 1]


@dataclass(frozen=True)
class Engine:
    """The engine and its kernel, as they report themselves."""

    address: str
    version: str
    api_version: str
    operating_system: str
    architecture: str
    kernel: str
    cgroup_version: int
    cgroup_driver: str
    storage_driver: str
    runtimes: tuple[str, ...]
    security: tuple[str, ...]
    rootless: bool
    same_kernel: bool


@dataclass(frozen=True)
class Diagnosis:
    """An engine, and the finding on each promise with that OCI runtime (None: the engine's default)."""

    engine: Engine
    findings: tuple[Finding, ...]
    runtime: str | None = None

    @property
    def exit_code(self) -> Exit:
        """0 if everything is enforced, else 1."""
        return 0 if self.findings and all(finding.state == "enforced" for finding in self.findings) else 1

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that ``gamebox doctor --json`` prints."""
        found = [asdict(finding) for finding in self.findings]
        return {"engine": asdict(self.engine), "runtime": self.runtime, "promises": found, "exit_code": self.exit_code}


def describe_engine(info: Mapping[str, Any], version: Mapping[str, Any], address: str) -> Engine:
    """Return the engine from the answers of ``/info`` and ``/version``. Fields that an older one lacks are "" or cgroup 1."""
    options = [str(option) for option in info.get("SecurityOptions") or []]
    named = [option.partition("name=")[2].partition(",")[0] or option for option in options]
    status = dict(pair for pair in info.get("DriverStatus") or [] if len(pair) == 2)
    store = " (containerd image store)" if "io.containerd.snapshotter" in status.get("driver-type", "") else ""
    return Engine(
        address=address,
        version=str(version.get("Version", "")),
        api_version=str(version.get("ApiVersion", "")),
        operating_system=str(info.get("OperatingSystem", "")),
        architecture=str(info.get("Architecture", "")),
        kernel=str(info.get("KernelVersion", "")),
        cgroup_version=int(info.get("CgroupVersion") or 1),
        cgroup_driver=str(info.get("CgroupDriver", "")),
        storage_driver=f"{info.get('Driver', '')}{store}",
        runtimes=tuple(sorted(info.get("Runtimes") or {})),
        security=tuple(named),
        rootless="rootless" in named,
        same_kernel=info.get("KernelVersion") == platform.release(),
    )


def examine(report: Callable[[str], None], runtime: str | None = None) -> Diagnosis:
    """Test every promise on the engine with ``runtime`` or its default one, in about ten seconds. ``report`` gets a line per step.

    Raises SandboxError if no engine answers: engine_unavailable, engine_permission_denied, engine_timeout, invalid_configuration.
    """
    client = connect()
    with translated():
        engine = describe_engine(client.info(), client.version(), engine_address())
    if runtime is not None:
        check_runtime(client, runtime)
    problem = _missing(client)
    findings = (
        probes.untested(problem, "Run `gamebox setup`.") if problem else list(_run_probes(report, runtime))
    )
    return Diagnosis(engine, tuple(findings), runtime)


def _missing(client: docker.DockerClient) -> str:
    with translated():
        return "" if client.api.images(name=BASE_IMAGE) else f"the image {BASE_IMAGE} is missing"


def _run_probes(report: Callable[[str], None], runtime: str | None) -> Iterator[Finding]:
    env = DockerEnvironment(BASE_IMAGE, limits=PROBED, report=report, runtime=runtime)
    try:
        env.start()
    except SandboxError as error:
        yield from probes.untested(error.message, error.hint)
        return
    yield Finding(probes.STARTS, "enforced", f"one of the image {BASE_IMAGE} started, and its limits were read back")
    with env:
        for name, probe in probes.INSIDE.items():
            report(f"trying: {name}")
            yield _run_probe(name, partial(probe, env))
    for name, alone in probes.ALONE.items():
        report(f"trying: {name}")
        yield _run_probe(name, partial(alone, runtime))


def _run_probe(name: str, probe: Callable[[], tuple[str, str, str]]) -> Finding:
    """Return the finding of a probe. A probe that fails counts as a promise that is not enforced."""
    try:
        return Finding(name, *probe())
    except SandboxError as error:
        return Finding(name, "not", f"the probe failed: {error.message}", error.hint)
