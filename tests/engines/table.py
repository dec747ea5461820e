"""The engines that are tried: how each is configured and started, and how it is reached."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

# What of the tests is about the engine, by what a row of the page says.
PARTS: Mapping[str, Sequence[str]] = {
    "commands and files": ["contract/test_run.py", "contract/test_files.py", "contract/test_transfer.py"],
    "network and forwarding": ["contract/test_network.py", "contract/test_forwarding.py"],
    "checkpoints": ["contract/test_state.py"],
    "pause": ["integration/test_pausing.py"],
    "deaths": ["integration/test_deaths.py"],
    "disk": ["integration/test_disk.py"],
    "keep and attach": ["integration/test_keeping.py"],
    "pool": ["integration/test_pool.py"],
    "builds": ["integration/test_builds.py"],
}
# The oldest engine of each kind runs all of them, the others what has differed between engines. Where a runtime or a way to the
# engine is the only difference, two parts are enough.
_ALL = tuple(PARTS)
_FEW = ("commands and files", "pause")
_SOME = (*_FEW, "network and forwarding", "checkpoints", "deaths")


@dataclass(frozen=True)
class Engine:
    """One engine. ``suite`` is the release of Debian that has it; ``runtime`` the OCI runtime to ask for, None for its default.

    ``files`` returns what lies in its folder, by path; "command" is the shell script that starts it. ``cgroup`` is what it finds
    mounted: "hybrid", version 1 with an empty version 2 beside it; "v1" without that; "unified", version 2 alone, to which this
    machine's kernel leaves no controller of memory, processors and processes. ``reached`` says by what. ``refuses`` says which
    words must be in the refusal of a sandbox, "" if one must start. ``parts`` are the tests that run on it after ``doctor``.
    """

    name: str
    subject: str
    suite: str
    files: Callable[[Path], Mapping[str, str]]
    runtime: str | None = None
    cgroup: Literal["hybrid", "v1", "unified"] = "hybrid"
    reached: Literal["socket", "tls", "ssh"] = "socket"
    refuses: str = ""
    parts: tuple[str, ...] = ()


def _docker(*options: str, **settings: Any) -> Callable[[Path], Mapping[str, str]]:
    def files(base: Path) -> Mapping[str, str]:
        configuration = {
            "data-root": f"{base}/data", "exec-root": f"{base}/exec", "pidfile": f"{base}/pid", "bridge": "none",
            "hosts": [f"unix://{base}/engine.sock"], "iptables": False, "ip6tables": False, **settings,
        }  # fmt: skip
        command = f"exec dockerd --config-file {base}/daemon.json {' '.join(options)}\n"
        return {"daemon.json": json.dumps(configuration), "command": command}

    return files


def _docker_with_tls(base: Path) -> Mapping[str, str]:
    """Return the files of a Docker that takes the socket which is descriptor 3: one of the host's network, not of its own."""
    files = dict(_docker()(base))
    configuration = json.loads(files["daemon.json"])
    configuration["hosts"].append("fd://")
    names = {"tlscacert": "ca", "tlscert": "server", "tlskey": "server-key"}
    configuration |= {"tlsverify": True, **{key: f"{base}/tls/{name}.pem" for key, name in names.items()}}
    command = f"export LISTEN_FDS=1 LISTEN_PID=$$\nexec dockerd --config-file {base}/daemon.json\n"
    return {"daemon.json": json.dumps(configuration), "command": command}


def _podman(runtime: str) -> Callable[[Path], Mapping[str, str]]:
    def files(base: Path) -> Mapping[str, str]:
        containers = f'[engine]\ncgroup_manager = "cgroupfs"\nruntime = "{runtime}"\nevents_logger = "file"\n'
        storage = f'[storage]\ndriver = "overlay"\ngraphroot = "{base}/data"\nrunroot = "{base}/exec"\n'
        command = (
            f"export CONTAINERS_CONF={base}/containers.conf CONTAINERS_STORAGE_CONF={base}/storage.conf TMPDIR={base}/exec\n"
            f"export PODMAN_IGNORE_CGROUPSV1_WARNING=1\nexec podman system service --time 0 unix://{base}/engine.sock\n"
        )
        return {"containers.conf": containers, "storage.conf": storage, "command": command}

    return files


def _rootless_podman(base: Path) -> Mapping[str, str]:
    """Return the files of a Podman that belongs to uid 1000, whose folders are made before it is started."""
    files = dict(_podman("crun")(base))
    files["storage.conf"] += '[storage.options.overlay]\nmount_program = "/usr/bin/fuse-overlayfs"\n'
    variables = "HOME=/home/agent XDG_RUNTIME_DIR=/run/user/1000"
    files["rootless"] = f"export {variables}\n" + files["command"]
    files["command"] = (
        "useradd --uid 1000 --create-home agent || true\n"
        "echo agent:100000:65536 >/etc/subuid\necho agent:100000:65536 >/etc/subgid\n"
        # Nodes of its own: /dev is that of this host.
        "mknod -m 666 /run/fuse c 10 229\nmount --bind /run/fuse /dev/fuse\n"
        "mknod -m 666 /run/tun c 10 200\nmount --bind /run/tun /dev/net/tun\n"
        "mount --make-rshared /\n"
        # Not recursively: the engine's root is below the base, and newuidmap in it would lose its owner and its setuid bit.
        f"mkdir -p /run/user/1000\nchown 1000:1000 /run/user/1000 {base}/data {base}/exec {base}\n"
        f"exec setpriv --reuid 1000 --regid 1000 --clear-groups --inh-caps=-all sh {base}/rootless\n"
    )
    return files


_RUNSC = {"runtimes": {"runsc": {"path": "/usr/bin/runsc", "runtimeArgs": ["--platform=ptrace", "--network=none"]}}}
_CRUN = {"runtimes": {"crun": {"path": "/usr/bin/crun"}}}

ENGINES = (
    Engine("docker-20", "Docker of Debian 12", "bookworm", _docker(), parts=_ALL),
    Engine("docker-26", "Docker of Debian 13", "trixie", _docker(), parts=_SOME),
    Engine("docker-28", "Docker of Debian unstable", "sid", _docker(), parts=_SOME),
    Engine(
        "docker-28-containerd", "the same with the image store of containerd", "sid",
        _docker(features={"containerd-snapshotter": True}), parts=(*_FEW, "builds"),
    ),
    Engine("docker-26-crun", "Docker of Debian 13 with crun", "trixie", _docker(**_CRUN), "crun", "v1", parts=_FEW),
    Engine(
        "docker-20-runsc", "Docker of Debian 12 with gVisor's runsc", "bookworm", _docker(**_RUNSC), "runsc", refuses="not enforce",
    ),
    Engine("docker-26-tls", "Docker of Debian 13 over TCP with TLS", "trixie", _docker_with_tls, reached="tls", parts=_FEW),
    Engine("docker-26-ssh", "Docker of Debian 13 over ssh", "trixie", _docker(), reached="ssh", parts=_FEW),
    Engine("podman-4", "Podman of Debian 12, as root", "bookworm", _podman("runc"), parts=_ALL),
    Engine("podman-5", "Podman of Debian 13, as root", "trixie", _podman("runc"), parts=(*_SOME, "keep and attach")),
    Engine("podman-5-crun", "the same with crun", "trixie", _podman("crun"), cgroup="v1", parts=_FEW),
    Engine(
        "podman-5-unstable", "Podman of Debian unstable, as root", "sid", _podman("runc"), parts=(*_FEW, "deaths"),
    ),
    Engine(
        "podman-5-rootless", "Podman of Debian 13, rootless", "trixie", _rootless_podman, cgroup="v1", refuses="not enforce",
    ),
    Engine(
        "docker-28-unified", "Docker of Debian unstable, cgroup v2 without controllers", "sid", _docker(), cgroup="unified",
        refuses="cgroup",
    ),
)  # fmt: skip

# Tests, or all of a file, that may fail on an engine, and why.
_PODMAN = {
    "test_disk": "a disk of its own is refused: Podman makes a sandbox's own volumes without their options",
    "test_builds": "builds are refused: Podman does not keep the marks by which layers are found",
    "test_keeping::test_time_without_an_orchestrator_is_not_idle": (
        "behind the last test of its file, three volumes without a name were left, in one of three runs"
    ),
}
_CONTAINERD = {"test_builds::test_an_image_has_a_largest_size": "layers count a little larger there: one near the limit is refused"}
EXCUSED: Mapping[str, Mapping[str, str]] = {
    **dict.fromkeys(("podman-4", "podman-5", "podman-5-unstable"), _PODMAN),
    "docker-28-containerd": _CONTAINERD,
}


def is_excused(engine: str, test: str) -> bool:
    """Return whether a test, "FILE::NAME", may fail on an engine."""
    excused = EXCUSED.get(engine, {})
    return test in excused or test.partition("::")[0] in excused
