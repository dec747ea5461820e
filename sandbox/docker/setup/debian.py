"""Install packages on a Debian or Ubuntu host, and make a base image there without a registry."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import docker
import docker.errors

from sandbox.docker.engine.client import translated
from sandbox.errors import ErrorCode, SandboxError
from sandbox.packages.apt_sources import host_sources

BOOTSTRAP_NAME = "gamebox/bootstrap"
_INSTALL_SECONDS = 1800.0
"""A mirror at 1 MB/s delivers the 300 MB of the largest installation in five minutes; this is six times that."""

_LEAN = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")


def is_debian_family() -> bool:
    """Return whether this host is Debian, Ubuntu or a derivative, with apt-get."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return False
    family = {release.get("ID", ""), *release.get("ID_LIKE", "").split()}
    return bool(family & {"debian", "ubuntu"}) and shutil.which("apt-get") is not None


def can_install() -> bool:
    """Return whether ``apt_install`` can work: on the Debian family, as root."""
    return is_debian_family() and os.geteuid() == 0


def apt_install(package: str, report: Callable[[str], None]) -> None:
    """Install one package from the host's own mirrors. Raises SandboxError: setup_failed, host_disk_full."""
    report(f"installing {package} (apt-get)")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    for command in (
        ["apt-get", "-q", "update"],
        ["apt-get", "-q", "install", "-y", "--no-install-recommends", package],
    ):
        run_logged(command, environment, f"apt-get could not install {package}")


def run_logged(command: list[str], environment: dict[str, str], failure: str) -> None:
    """Run a program to its end. Raises SandboxError (setup_failed, host_disk_full) with its last line if it fails."""
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_INSTALL_SECONDS,
            check=False,
        )
    except (subprocess.TimeoutExpired, OSError) as error:
        raise SandboxError(
            ErrorCode.setup_failed, f"{failure}: {error}.", "See that this machine reaches its package mirror."
        ) from error
    if done.returncode == 0:
        return
    output = done.stdout.strip()
    if "No space left on device" in output:
        raise SandboxError(
            ErrorCode.host_disk_full, f"{failure}: no space left on device.", "Free some space and try again."
        )
    errors = (
        [line for line in output.splitlines() if line.startswith("E:")]
        or output.splitlines()[-1:]
        or ["it said nothing"]
    )
    raise SandboxError(
        ErrorCode.setup_failed,
        f"{failure}: {errors[0].removeprefix('E:').strip()}",
        "See that this machine reaches its package mirror: `apt-get update` tells.",
    )


def can_bootstrap() -> bool:
    """Return whether this host can make a base image: Debian family, with mmdebstrap or root to install it."""
    return is_debian_family() and (os.geteuid() == 0 or shutil.which("mmdebstrap") is not None)


def bootstrap_image(client: docker.DockerClient, packages: Iterable[str], report: Callable[[str], None]) -> str:
    """Return the name of an image of this host's own release with those packages, made with mmdebstrap if need be.

    It uses the host's package sources as they are now. Raises SandboxError: setup_failed, host_disk_full, engine_*.
    """
    codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    sources = host_sources(codename)
    if not codename or not any(sources.values()):
        raise SandboxError(
            ErrorCode.setup_failed,
            f"No package sources of this host's release ({codename or 'unnamed'}) were found.",
            "Add them below /etc/apt/sources.list.d, or `docker pull debian:bookworm-slim` on a network that has it.",
        )
    included = ",".join(sorted(packages))
    digest = hashlib.sha256(repr((included, sources, _LEAN)).encode()).hexdigest()[:12]
    name = f"{BOOTSTRAP_NAME}:{codename}-{digest}"
    with translated():
        try:
            client.api.inspect_image(name)
        except docker.errors.ImageNotFound:
            _bootstrap(client, name, codename, included, sources, report)
    return name


def _bootstrap(
    client: docker.DockerClient,
    name: str,
    codename: str,
    included: str,
    sources: dict[str, str],
    report: Callable[[str], None],
) -> None:
    if shutil.which("mmdebstrap") is None:
        apt_install("mmdebstrap", report)
    report(f"making a {codename} base image with mmdebstrap (about a minute)")
    with tempfile.TemporaryDirectory(prefix="gamebox-") as folder:
        archive = Path(folder, "base.tar")
        files = []
        for suffix, text in sources.items():
            if text:
                files.append(Path(folder, f"host{suffix}"))
                files[-1].write_text(text)
        lean = [f"--dpkgopt=path-exclude={pattern}" for pattern in _LEAN]
        command = [
            "mmdebstrap",
            "--quiet",
            "--variant=minbase",
            "--format=tar",
            f"--include={included}",
            *lean,
            "--dpkgopt=path-include=/usr/share/doc/*/copyright",
            codename,
            str(archive),
            *map(str, files),
        ]
        environment = {**os.environ, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
        run_logged(command, environment, "mmdebstrap could not make a base image")
        report("importing it into the engine")
        repository, tag = name.split(":")
        # Without a command the engine refuses to build on it.
        client.api.import_image_from_file(str(archive), repository=repository, tag=tag, changes=['CMD ["bash"]'])
        for older in client.api.images(name=BOOTSTRAP_NAME):
            for left in set(older["RepoTags"] or []) - {name}:
                client.api.remove_image(left)  # its layers stay as long as an image is built on them
