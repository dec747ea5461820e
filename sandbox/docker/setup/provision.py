"""Provide what a sandbox needs before its first start: an engine, the images, the guest's runtime."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import docker

from sandbox.docker.engine import locks
from sandbox.docker.engine.client import connect, describe, engine_address, translated
from sandbox.docker.engine.retries import retry_engine
from sandbox.docker.images.images import ensure_image
from sandbox.docker.images.runtime import ensure_runtime
from sandbox.errors import ErrorCode, SandboxError

from . import debian

BASE_IMAGE = "gamebox/base"
# What clients of E2B get from a service: a layer on the base image.
E2B_IMAGE = "gamebox/e2b"
# Images that take hundreds of MB and minutes: only for those who ask for them.
INTERPRETER_IMAGE = "gamebox/code-interpreter"
NODE_IMAGE = "gamebox/node"
TOOLCHAINS_IMAGE = "gamebox/toolchains"
BROWSER_IMAGE = "gamebox/browser"
_START_SECONDS = 60.0
"""A first dockerd on a slow disk needs about 20 s, for its storage, its network and its firewall rules."""
_DISK_BYTES = 3 << 30
"""The base image, its build and the runtime take 1.3 GB, and sandboxes need some as well."""
_DAEMON_LOG = Path("/var/log/gamebox-dockerd.log")


def setup(report: Callable[[str], None], more: Iterable[str] = ()) -> None:
    """Make sure that an engine answers and has our images and the guest's runtime; do only what is missing.

    If no engine answers, root on Debian or Ubuntu installs docker.io and starts its daemon. Images older than their recipe are
    rebuilt. ``more`` names further images of ours to make. ``report`` gets one line for each step that takes time, or one that
    lists what is there if nothing was missing.
    Raises SandboxError.
    """
    steps: list[str] = []

    def note(step: str) -> None:
        steps.append(step)
        report(step)

    client = ensure_engine(note)
    if not _has_image(client):
        _check_disk(client)
    make_base = debian.bootstrap_image if debian.can_bootstrap() else None
    ensure_image(client, BASE_IMAGE, report=note, rebuild_stale=True, make_base=make_base)
    ensure_image(client, E2B_IMAGE, report=note, rebuild_stale=True)
    images = [BASE_IMAGE, E2B_IMAGE]
    for image in more:
        ensure_image(client, image, report=note, rebuild_stale=True)
        images.append(image)
    volume = ensure_runtime(client, report=note)
    if not steps:
        version = describe(client).version
        there = f"images {', '.join(images[:-1])} and {images[-1]}, runtime volume {volume.name}"
        report(f"nothing to do: Docker Engine {version} at {engine_address()}, {there}")


def ensure_engine(report: Callable[[str], None]) -> docker.DockerClient:
    """Return a client of an engine that answers; install and start one if there is none and this host permits it.

    Raises SandboxError: engine_unavailable, engine_permission_denied, engine_timeout, setup_failed, host_disk_full,
    invalid_configuration.
    """
    try:
        return _connect()
    except SandboxError as error:
        if error.code is not ErrorCode.engine_unavailable or engine_address() != "unix:///var/run/docker.sock":
            raise  # an engine that the user named, or that refuses, is not ours to replace
        if not debian.can_install() and shutil.which("dockerd") is None:
            raise SandboxError(
                ErrorCode.engine_unavailable,
                error.message,
                "Install Docker Engine and start it, or run this as root on Debian or Ubuntu, where it is installed for you.",
            ) from error
    with locks.exclusive("engine"):
        try:
            return _connect()  # another process was first
        except SandboxError:
            return _install_and_start(report)


def _connect() -> docker.DockerClient:
    client = connect()
    with translated():
        client.ping()
    return client


def _install_and_start(report: Callable[[str], None]) -> docker.DockerClient:
    if shutil.which("dockerd") is None:
        debian.apt_install("docker.io", report)
    if Path("/run/systemd/system").is_dir():
        report("starting the Docker daemon (systemctl)")
        started = subprocess.run(
            ["systemctl", "enable", "--now", "docker"], capture_output=True, text=True, check=False
        )
        if started.returncode != 0:
            raise SandboxError(
                ErrorCode.setup_failed,
                f"systemctl could not start docker: {started.stderr.strip()}.",
                "See `journalctl -u docker` for the cause.",
            )
        return _wait_for_engine(None)
    report(f"starting the Docker daemon (dockerd, log in {_DAEMON_LOG})")
    with _DAEMON_LOG.open("ab") as log:
        # Its own session and none of our descriptors: it outlives this program and holds no pipe of a CI job open.
        daemon = subprocess.Popen(
            ["dockerd"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/"
        )
    return _wait_for_engine(daemon)


def _wait_for_engine(daemon: subprocess.Popen[bytes] | None) -> docker.DockerClient:
    def is_starting(error: BaseException) -> bool:
        return isinstance(error, SandboxError) and (daemon is None or daemon.poll() is None)

    try:
        return retry_engine(_START_SECONDS, is_starting)(_connect)
    except SandboxError as error:
        if daemon is not None and daemon.poll() is not None:
            raise SandboxError(
                ErrorCode.setup_failed,
                f"dockerd ended with status {daemon.returncode}: {cause_in(_DAEMON_LOG.read_text(errors='replace'))}",
                f"See {_DAEMON_LOG} for the cause.",
            ) from error
        raise SandboxError(
            ErrorCode.engine_unavailable,
            f"The Docker daemon did not answer {_START_SECONDS:.0f} s after its start.",
            f"See {_DAEMON_LOG} or `journalctl -u docker` for the cause.",
        ) from error


def cause_in(log: str) -> str:
    """Return the line of a daemon's log that says why it ended: the last one that is not mere information.

    What other threads of the daemon still write may come after it.
    """
    lines = [line for line in log.splitlines() if line.strip()]
    telling = [line for line in lines if " level=info " not in line and " level=debug " not in line]
    return (telling or lines or ["no output"])[-1]


def _has_image(client: docker.DockerClient) -> bool:
    with translated():
        return bool(client.api.images(name=BASE_IMAGE))


def _check_disk(client: docker.DockerClient) -> None:
    """Raise SandboxError (host_disk_full) for too little space, rather than fail in the middle of a build."""
    with translated():
        folder = Path(client.info()["DockerRootDir"])
    if not folder.is_dir():  # the engine is on another host, or another user's
        return
    free = shutil.disk_usage(folder).free
    if free < _DISK_BYTES:
        raise SandboxError(
            ErrorCode.host_disk_full,
            f"Only {free >> 20} MiB are free in {folder}, and set-up needs {_DISK_BYTES >> 20}.",
            "Free some space, for example with `docker image prune`.",
        )
