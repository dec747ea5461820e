"""The container of a sandbox: what it is created with."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

import docker
from docker.types import LogConfig, Mount, Ulimit

from sandbox.docker.engine import podman
from sandbox.docker.engine.client import is_local, is_podman
from sandbox.docker.engine.events import SANDBOX_LABEL
from sandbox.docker.images.images import image_variables, image_volumes
from sandbox.docker.images.runtime import CA_BUNDLE, ETC, START_GUEST, RuntimeVolume
from sandbox.docker.kept.labels import KEEP_LABEL, NAME_LABEL, PID_LABEL, SERVICE_LABEL, STARTED_LABEL
from sandbox.frozen import dataclass
from sandbox.limits import KIB, Limits
from sandbox.network.policy import Network
from sandbox.network.services.names import Name, no_proxy_value
from sandbox.network.variables import proxy_variables, trust_variables

from .certificates import apt_path, bundle_path
from .disks.disk import TMP, Disk
from .enforcement import boot_id
from .image_problems import volume_mounts
from .profiles import Profile

VAR_TMP, SPILL, SHM = "/var/tmp", "/run/gamebox", "/dev/shm"
UTF_8_LOCALE = "C.UTF-8"
"""The value of LC_CTYPE. As LANG it would make each program that uses glibc load twelve categories: 0.15 ms more."""
# What an image wants to have loaded into its own programs does not belong in the guest, which has a libc of its own.
_DEAF = ("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "GLIBC_TUNABLES")


@dataclass(frozen=True)
class Shape:
    """What a container is created with. ``oci_runtime`` is the engine's name of an OCI runtime, None for its default.

    ``kept`` says that it outlives its orchestrator; ``labels`` are further ones. ``auto_remove`` says whether the engine is to
    remove it when it ends. ``names`` stand in its /etc/hosts.
    """

    limits: Limits
    network: Network
    profile: Profile
    disk: Disk
    oci_runtime: str | None = None
    kept: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    auto_remove: bool = True
    names: tuple[Name, ...] = ()
    volumes: tuple[Mount, ...] = ()


def create(client: docker.DockerClient, image_id: str, name: str, runtime: RuntimeVolume, shape: Shape) -> str:
    """Create the container and return its id; the image's entry point does not run. Raises docker-py's errors.

    ``create`` and not ``run``: that would pull. Standard input is open once, so that the pipe's end is the guest's end, and
    the engine removes the container then; that of a kept sandbox stays open when a stream to it ends.
    """
    limits, profile, on_podman = shape.limits, shape.profile, is_podman(client)
    etc = runtime.etc if _needs_no_network(shape) else ""
    declared = declared_mounts(client, image_id, name, runtime, shape)
    host_config = client.api.create_host_config(
        auto_remove=shape.auto_remove,
        network_mode="bridge" if shape.network.mode == "bridge" else "none",
        runtime=shape.oci_runtime,
        read_only=profile.read_only_root,
        cap_drop=None if profile.capabilities is None else ["ALL"],
        cap_add=_added(profile, shape.disk, on_podman),
        security_opt=["no-new-privileges"],
        log_config=LogConfig(type="none"),
        mem_limit=limits.memory_bytes,
        memswap_limit=limits.memory_bytes,
        nano_cpus=int(limits.cpus * 1e9),
        pids_limit=limits.pids,
        shm_size=limits.shm_place_bytes,
        sysctls=_sysctls(shape) | _ipv6_loopback(client, shape),
        extra_hosts={name.name: name.address for name in shape.names},
        ulimits=[
            Ulimit(name="nofile", soft=limits.open_files, hard=limits.open_files),
            Ulimit(name="fsize", soft=limits.file_bytes, hard=limits.file_bytes),
            Ulimit(name="core", soft=0, hard=0),
            *podman.ulimits(client),
        ],
        tmpfs=_tmpfs(shape, on_podman),
        mounts=[
            Mount(runtime.mount, runtime.name, type="volume", read_only=True, no_copy=True),
            *(Mount(f"/etc/{name}", f"{etc}/{name}", type="bind", read_only=True) for name in ETC if etc),
            *shape.disk.mounts,
            *shape.volumes,
            *(declared if profile.read_only_root else ()),
        ],
    )
    created = client.api.create_container(
        image_id,
        entrypoint=[*runtime.argv, "-c", START_GUEST],
        command=[],
        name=name,
        hostname="sandbox",
        network_disabled=bool(etc),
        user="0:0",
        working_dir="/",
        environment=_deafened(image_variables(client, image_id)),
        stdin_open=True,
        detach=shape.kept,  # docker-py's way to say whether standard input closes with the first stream to it
        # It has nothing to finish: an engine that stops does not wait for it.
        stop_signal="SIGKILL",
        labels=labels(name, shape.kept) | dict(shape.labels),
        host_config=host_config,
        healthcheck={"test": ["NONE"]},
    )
    return str(created["Id"])


def declared_mounts(client: docker.DockerClient, image_id: str, name: str, runtime: RuntimeVolume, shape: Shape) -> list[Mount]:
    """Return mounts for the volumes that the image declares. Raises SandboxError ``start_failed`` for one that cannot be."""
    mounted = (str(mount["Target"]) for mount in (*shape.disk.mounts, *shape.volumes))
    taken = {runtime.mount, *_tmpfs(shape, on_podman=False), *mounted}
    return volume_mounts(image_volumes(client, image_id), taken, name)


def _deafened(image_env: list[str]) -> dict[str, str]:
    """Return empty values for those of an image's variables that the guest is not to hear."""
    return {name: "" for name in _DEAF if any(line.startswith(f"{name}=") for line in image_env)}


def _needs_no_network(shape: Shape) -> bool:
    """Return whether the engine's network code can be left out: half of the time of a start (docs/decisions/0011).

    The kernel makes the network namespace all the same, with a loopback interface and nothing else. What that code also does is to
    write /etc/hosts and /etc/resolv.conf for each container; those of the runtime volume, which is mounted anyway, take their
    place unless the sandbox has names of its own, or may change the files.
    """
    return shape.network.mode != "bridge" and not shape.names and shape.profile.read_only_root and shape.oci_runtime is None


def _sysctls(shape: Shape) -> dict[str, str]:
    """Return kernel settings that bound what outlives the process that made it and would hold the sandbox's memory for good.

    With ``names`` they also let the guest, which has no such right of root, listen on low ports.
    """
    limits = shape.limits
    low_ports = {"net.ipv4.ip_unprivileged_port_start": "0"} if shape.names else {}
    return {
        **low_ports,
        "kernel.shm_rmid_forced": "1",  # shared memory goes with the last process that uses it
        "kernel.shmall": str(limits.shm_place_bytes // (4 * KIB)),
        "kernel.msgmni": "64",
        "kernel.sem": "250 16000 100 64",
    }


def _ipv6_loopback(client: docker.DockerClient, shape: Shape) -> dict[str, str]:
    """Have ::1 on the loopback interface: /etc/hosts gives it to localhost, and the engine leaves it out, so that every client
    of a server that is not there would read "Cannot assign requested address". Only where this kernel is known to have IPv6.
    """
    known = shape.oci_runtime is None and is_local(client) and os.path.isdir("/proc/sys/net/ipv6/conf")
    return {"net.ipv6.conf.lo.disable_ipv6": "0"} if known else {}


def _added(profile: Profile, disk: Disk, on_podman: bool) -> list[str] | None:
    if profile.capabilities is None:
        return None
    # A plain volume comes owned by root, and so does memory on Podman; the guest hands it over once.
    return [*profile.capabilities, *(["CHOWN"] if disk.kind == "volume" or on_podman else [])]


def places(limits: Limits, profile: Profile) -> dict[str, int]:
    """Return the sizes in bytes of the writable places beside those of the disk."""
    var_tmp = {} if profile.bare_root else {VAR_TMP: limits.var_tmp_place_bytes}
    return {**var_tmp, SPILL: limits.spill_place_bytes, SHM: limits.shm_place_bytes}


def _tmpfs(shape: Shape, on_podman: bool) -> dict[str, str]:
    def place(size: int, uid: int, mode: str) -> str:
        if on_podman:  # knows no options for inodes, which count as memory of the sandbox, and for the owner
            return f"rw,exec,nosuid,nodev,notmpcopyup,size={size},mode={mode}"
        inodes = max(1024, size // (4 * KIB))
        return f"rw,exec,nosuid,nodev,size={size},nr_inodes={inodes},uid={uid},gid={uid},mode={mode}"

    limits = shape.limits
    mounted = {SPILL: place(limits.spill_place_bytes, 0, "0755")}
    if not shape.profile.bare_root:
        mounted[VAR_TMP] = place(limits.var_tmp_place_bytes, 0, "1777")
    for path, size in shape.disk.places:
        if path in shape.disk.in_memory:
            mounted[path] = place(size, 0, "1777") if path == TMP else place(size, shape.profile.uid, "0755")
    return mounted


IMAGE_LABEL = "dev.gamebox.image"
HOST_LABEL, BOOT_LABEL = "dev.gamebox.host", "dev.gamebox.boot"
# On a sandbox that is to end with the process that made it; see ``orphans``.
OWNER_LABEL = "dev.gamebox.owner"


def owner(pid: int) -> str:
    """Identify a process of this boot, also among others with its number before and after; "" if there is none.

    Its namespace of process ids, its id there, and when it started (in clock ticks since the boot; see proc(5)). Raises OSError
    if that cannot be read, for example for want of file descriptors.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return f"{os.readlink('/proc/self/ns/pid')}/{pid}/{stat.rpartition(')')[2].split()[19]}"
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _own_owner() -> str:
    try:
        return owner(os.getpid())
    except OSError:  # a sandbox that names no owner is never taken for an orphan
        return ""


def labels(name: str, kept: bool = False) -> dict[str, str]:
    """Return the labels that name the owner, so that orphans can be told from sandboxes in use. A kept one outlives its maker.

    A label that does not apply is empty, not missing: else the image's own label of that name would count.
    """
    return {
        SANDBOX_LABEL: name,
        HOST_LABEL: socket.gethostname(),
        BOOT_LABEL: boot_id(),
        PID_LABEL: str(os.getpid()),
        OWNER_LABEL: "" if kept else _own_owner(),
        KEEP_LABEL: "",
        NAME_LABEL: "",
        SERVICE_LABEL: "",
        STARTED_LABEL: str(int(time.time())),
    }


def place_of(
    runtime: RuntimeVolume,
    profile: Profile,
    network: Network,
    image_env: list[str],
    env: Mapping[str, str],
    bundle: bool,
    names: tuple[Name, ...] = (),
) -> dict[str, Any]:
    """Return the description of the sandbox for the guest (see ``guest.context.Place``)."""
    environ = _environ(profile, image_env)
    if "LANG" in env and environ.get("LC_CTYPE") == UTF_8_LOCALE:  # which would win over the caller's LANG
        del environ["LC_CTYPE"]
    environ.update(proxy_variables(network))
    if bundle:
        environ.update(trust_variables(bundle_path(profile)) | {"APT_CONFIG": apt_path(profile)})
    environ.update(env)
    if names:
        before = ",".join(filter(None, (environ.get("no_proxy"), environ.get("NO_PROXY"))))
        direct = no_proxy_value(names, before)
        environ.update(no_proxy=direct, NO_PROXY=direct)
    return {
        "workspace": profile.workspace,
        "home": profile.home,
        "spill": SPILL,
        "roots": list(profile.file_roots or (profile.workspace, profile.home, TMP, VAR_TMP, SPILL)),
        "uid": profile.uid,
        "gid": profile.uid if profile.gid is None else profile.gid,
        "user": profile.user,
        "any_user": profile.any_user,
        "interpreter": list(runtime.argv),
        "launcher": runtime.launcher,
        "environ": environ,
        "ca_bundle": bundle_path(profile) if bundle else CA_BUNDLE,
    }


def _environ(profile: Profile, image_env: list[str]) -> dict[str, str]:
    """Return the variables of the image and those of every command."""
    environ = dict(line.split("=", 1) for line in image_env if "=" in line)
    environ.setdefault("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    environ.update(
        HOME=profile.home, USER=profile.user, LOGNAME=profile.user, TERM="dumb", PAGER="cat", GIT_PAGER="cat"
    )
    if environ.keys().isdisjoint(("LANG", "LC_ALL", "LC_CTYPE")):
        environ["LC_CTYPE"] = UTF_8_LOCALE
    # Python takes a cached module for fresh when size and second of the source agree: an agent that runs, edits and runs again
    # within a second would be shown the old program.
    environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    return environ
