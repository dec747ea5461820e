"""Where the workspace and the home of a sandbox are kept, and whether the kernel holds them to their size.

``memory``   sized tmpfs: hard, as far as memory reaches.
``ext4``     a file system of that size behind a loop device: hard; needs root beside the engine.
``volume``   a folder on the engine's disk that the guest measures now and then: soft.
"""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
from docker.types import DriverConfig, Mount

from sandbox.errors import ErrorCode, SandboxError
from sandbox.limits import Limits

from . import loop
from .engine import is_local, translated
from .events import SANDBOX_LABEL
from .profiles import Profile

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Disk:
    """``places`` are (path, size in bytes); ``mounts`` is empty where they are tmpfs. ``watched`` folders are only measured.

    ``why`` says why it is not bounded by the kernel ("" where it is).
    """

    kind: str
    places: tuple[tuple[str, int], ...]
    mounts: tuple[Mount, ...] = ()
    watched: tuple[str, ...] = ()
    why: str = ""
    devices: tuple[loop.LoopDevice, ...] = ()

    @property
    def hard(self) -> bool:
        """Whether the kernel bounds all of it."""
        return not self.watched

    def for_guest(self, limits: Limits, others: Iterable[str]) -> dict[str, Any]:
        """What the guest is told of it (see ``guest.disk``); it reads back the sizes of its places and of ``others``."""
        limit = (limits.disk_bytes or limits.memory_bytes // 2) if self.watched else None
        bounded = [*(path for path, _ in self.places), *others]
        return {"kind": self.kind, "watched": list(self.watched), "limit": limit, "bounded": bounded}

    def release(self) -> None:
        """Let go of the devices: after the start, when the engine holds them, or when there is none."""
        for device in self.devices:
            device.release()

    def describe(self) -> str:
        """One sentence for the model."""
        if self.hard:
            return "The sizes of workspace and home are enforced: a full one refuses further writes."
        what = "the whole file system" if "/" in self.watched else "workspace and home"
        return f"The disk limit is soft: {what} is measured now and then, and commands that write past it are ended."


def prepare(client: docker.DockerClient, limits: Limits, profile: Profile, workspace: str, name: str) -> Disk:
    """The disk that these limits ask for; volumes are labelled with the sandbox's ``name``.

    Raises SandboxError: limit_not_enforced, host_disk_full, start_failed.
    """
    labels = {SANDBOX_LABEL: name}
    places: tuple[tuple[str, int], ...] = ((workspace, limits.workspace_bytes), (profile.home, limits.home_bytes))
    watched: tuple[str, ...] = ()
    why = ""
    if not profile.read_only_root:
        if profile.uid == 0:  # root's home is part of the image: a place of its own would hide what is in it
            places = places[:1]
        watched, why = ("/",), f"profile {profile.name} has a writable root"
    if limits.disk_in_memory:
        _hard_or_refuse(limits, why)
        return Disk("memory", places, watched=watched, why=why)
    folder, problem = _folder_for_blocks(client)
    _hard_or_refuse(limits, why or problem)
    if folder is None:
        log.info("the disk of the sandbox is soft: %s", problem)
        mounts = tuple(Mount(path, None, type="volume", no_copy=True, labels=labels) for path, _ in places)
        return Disk("volume", places, mounts, watched or tuple(path for path, _ in places), problem)
    return _on_devices(places, lambda size: loop.make(size, folder, profile.uid), watched, why, labels)


def remove_left(client: docker.DockerClient, name: str) -> None:
    """Remove the volumes of the sandbox ``name`` that are still there: somebody else removed its container without them.

    Raises SandboxError.
    """
    with translated():
        for volume in client.api.volumes(filters={"label": f"{SANDBOX_LABEL}={name}"}).get("Volumes") or []:
            client.api.remove_volume(volume["Name"])


def _on_devices(
    places: tuple[tuple[str, int], ...],
    make: Callable[[int], loop.LoopDevice],
    watched: tuple[str, ...],
    why: str,
    labels: dict[str, str],
) -> Disk:
    devices: list[loop.LoopDevice] = []
    try:
        for _, size in places:
            devices.append(make(size))
    except BaseException:
        for device in devices:
            device.release()
        raise
    mounts = []
    for (path, _), device in zip(places, devices, strict=True):
        options = {"type": "ext4", "device": device.path, "o": "nosuid,nodev,discard"}
        driver = DriverConfig("local", options)
        mounts.append(Mount(path, None, type="volume", no_copy=True, labels=labels, driver_config=driver))
    return Disk("ext4", places, tuple(mounts), watched, why, tuple(devices))


def _hard_or_refuse(limits: Limits, why: str) -> None:
    if limits.disk == "hard" and why:
        raise SandboxError(
            ErrorCode.limit_not_enforced,
            f"disk_bytes={limits.disk_bytes} cannot be enforced: {why}.",
            'Take disk="auto" for a limit that is only watched, or as many disk_bytes as memory holds in profile default.',
        )


def _folder_for_blocks(client: docker.DockerClient) -> tuple[Path | None, str]:
    """The engine's own folder, where this process can make a device that the engine can mount; else why not."""
    if not is_local(client):
        return None, "the engine is on another host"
    if problem := loop.problem():
        return None, problem
    with translated():
        info = client.info()
    # The guest's boot id is compared after the start; this keeps an engine in a virtual machine from ever trying.
    if info.get("KernelVersion") != platform.release() or info.get("Name") != platform.node():
        return None, "the engine has another kernel than this process"
    folder = Path(info["DockerRootDir"])
    if not os.access(folder, os.W_OK):
        return None, f"the engine's folder {folder} cannot be written from here"
    return folder, ""
