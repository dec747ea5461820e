"""What Podman needs to be told that a Docker Engine does by itself."""

from __future__ import annotations

import resource
from pathlib import Path

import docker
from docker.types import Ulimit

from .client import is_local, is_podman

_MOST = 1 << 20


def ulimits(client: docker.DockerClient, open_files: int | None = None) -> list[Ulimit]:
    """Return the limit of processes of a container, and of ``open_files``: no more than this process may set; [] for Docker.

    Podman 4 asks for 1,048,576 of what it is not told, lowers its own limit to the most process ids of the kernel, and starts
    nothing where root may not raise its limits. What bounds the processes of a sandbox is its ``pids_limit``.
    """
    if not is_podman(client) or not is_local(client):
        return []
    most = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    processes = min(_most_ids(), _MOST if most == resource.RLIM_INFINITY else most)
    files = [] if open_files is None else [Ulimit(name="nofile", soft=open_files, hard=open_files)]
    return [Ulimit(name="nproc", soft=processes, hard=processes), *files]


def _most_ids() -> int:
    try:
        return int(Path("/proc/sys/kernel/pid_max").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return _MOST
