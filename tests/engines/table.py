"""The engines that are tried, and how each is configured and started."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Engine:
    """One engine. ``suite`` is the release of Debian that has it; ``runtime`` the OCI runtime that is asked for, None for its default.

    ``files`` returns what lies in its folder, by path; "command" is the shell script that starts it. ``cgroup`` is what it finds
    mounted: the machine's hybrid hierarchies, those without the unified one, or the unified one alone.
    """

    name: str
    subject: str
    suite: str
    files: Callable[[Path], Mapping[str, str]]
    runtime: str | None = None
    cgroup: str = "hybrid"


def _docker(**settings: Any) -> Callable[[Path], Mapping[str, str]]:
    def files(base: Path) -> Mapping[str, str]:
        configuration = {
            "data-root": f"{base}/data", "exec-root": f"{base}/exec", "hosts": [f"unix://{base}/engine.sock"],
            "pidfile": f"{base}/pid", "bridge": "none", "iptables": False, "ip6tables": False,
            **settings,
        }  # fmt: skip
        return {"daemon.json": json.dumps(configuration), "command": f"exec dockerd --config-file {base}/daemon.json\n"}

    return files


def _podman(runtime: str) -> Callable[[Path], Mapping[str, str]]:
    def files(base: Path) -> Mapping[str, str]:
        containers = f"""\
[engine]
cgroup_manager = "cgroupfs"
runtime = "{runtime}"
events_logger = "file"
"""
        storage = f'[storage]\ndriver = "overlay"\ngraphroot = "{base}/data"\nrunroot = "{base}/exec"\n'
        command = (
            f"export CONTAINERS_CONF={base}/containers.conf CONTAINERS_STORAGE_CONF={base}/storage.conf TMPDIR={base}/exec\n"
            f"export PODMAN_IGNORE_CGROUPSV1_WARNING=1\nexec podman system service --time 0 unix://{base}/engine.sock\n"
        )
        return {"containers.conf": containers, "storage.conf": storage, "command": command}

    return files


ENGINES = (
    Engine("docker-20", "Docker of Debian 12", "bookworm", _docker()),
    Engine("docker-26", "Docker of Debian 13", "trixie", _docker()),
    Engine("docker-28", "Docker of Debian unstable", "sid", _docker()),
    Engine("podman-4", "Podman of Debian 12, as root", "bookworm", _podman("runc")),
    Engine("podman-5", "Podman of Debian 13, as root", "trixie", _podman("runc")),
    Engine("podman-unstable", "Podman of Debian unstable, as root", "sid", _podman("runc")),
)
