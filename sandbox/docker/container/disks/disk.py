"""Choose where the workspace, the home and /tmp of a sandbox lie, and whether the kernel enforces their sizes.

``ext4``     a file system of that size behind a loop device: hard; needs root beside the engine.
``volume``   folders on the engine's disk that the guest measures now and then: soft.
``memory``   sized tmpfs, charged to the sandbox's memory: hard. On request, or if the engine's disk has no room.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import platform
import shutil
import threading
import weakref
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import docker
import docker.errors
from docker.types import DriverConfig, Mount

from sandbox.docker.container.profiles import Profile
from sandbox.docker.engine.client import is_local, is_podman, translated
from sandbox.docker.engine.events import SANDBOX_LABEL
from sandbox.docker.engine.shared import Shared
from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass
from sandbox.interrupts import Shield
from sandbox.limits import GIB, MIB, Limits
from sandbox.text.wording import size

from . import loop_device as loop

log = logging.getLogger(__name__)

TMP = "/tmp"  # noqa: S108  (of the sandbox)
LEAST_FREE_BYTES = 2 * GIB
"""With less free space on the engine's disk, a sandbox without a disk size keeps its files in memory."""
_STEP = 64 * MIB
# Why an engine cannot mount our devices, and its facts (kernel, folder): asked once per client.
_refusals: weakref.WeakKeyDictionary[docker.DockerClient, str] = weakref.WeakKeyDictionary()
_facts: weakref.WeakKeyDictionary[docker.DockerClient, dict[str, Any]] = weakref.WeakKeyDictionary()
_asking: Shared[int, threading.Lock] = Shared()


@dataclass(frozen=True)
class Disk:
    """The places of a sandbox's files: (path, size in bytes), workspace first.

    Those in ``in_memory`` are tmpfs, the others have ``mounts``. ``watched`` folders are only measured. ``why`` says why the kernel
    does not bound them, or why files are in memory without a request for that; otherwise it is "".
    """

    kind: str
    places: tuple[tuple[str, int], ...]
    mounts: tuple[Mount, ...] = ()
    watched: tuple[str, ...] = ()
    why: str = ""
    devices: tuple[loop.LoopDevice, ...] = ()
    in_memory: frozenset[str] = frozenset()

    @property
    def hard(self) -> bool:
        """Whether the kernel enforces all sizes."""
        return not self.watched

    @property
    def workspace_bytes(self) -> int:
        """Size of the workspace in bytes."""
        return self.places[0][1] if self.places else 0

    def may_be_replaced(self, limits: Limits) -> bool:
        """Return whether a measured volume may replace this disk if the engine cannot mount it."""
        return self.kind == "ext4" and limits.disk != "hard"

    def for_guest(self, limits: Limits, others: Iterable[str], host_disk: str | None = None) -> dict[str, Any]:
        """Return what the guest needs (see ``guest.watch.disk``). It reads back the sizes of the places and of ``others``."""
        limit = limits.files_bytes if self.watched else None
        bounded = [*(path for path, _ in self.places), *others]
        return {"kind": self.kind, "watched": list(self.watched), "limit": limit, "bounded": bounded, "host_disk": host_disk}

    def release(self) -> None:
        """Close the devices: after the start, when the engine holds them, or after a failed one."""
        for device in self.devices:
            device.release()

    def describe(self) -> str:
        """Return one or two sentences for the model."""
        memory = ""
        if self.kind == "memory":
            because = f" because {self.why}" if self.why and self.hard else ""
            memory = f" Their files are kept in memory{because} and count against it."
        if self.hard:
            return f"The sizes of workspace and home are enforced: a full one refuses further writes.{memory}"
        soft = "is measured from time to time, and commands that write past it are ended."
        if self.kind == "volume":
            places = "workspace, home and /tmp" if TMP in self.watched else "workspace and home"
            what = "the whole file system" if "/" in self.watched else places
            return f"The disk limit is soft: {what} {soft}"
        *first, last = (path for path, _ in self.places)
        return (
            f"The sizes of {', '.join(first)} and {last} are enforced: a full one refuses further writes.{memory} "
            f"The disk limit of everything else is soft: it {soft}"
        )


def prepare(client: docker.DockerClient, limits: Limits, profile: Profile, name: str, *, copies: bool = False) -> Disk:
    """Prepare the disk that the limits ask for. Its volumes are labelled with the sandbox's ``name``.

    With ``copies`` the engine copies what the image has at their paths into them; what is in memory begins empty.

    Raises SandboxError: limit_not_enforced, host_disk_full, start_failed.
    """
    watched: tuple[str, ...] = ()
    why = ""
    if not profile.read_only_root:
        watched, why = ("/",), f"profile {profile.name} has a writable root"
    if limits.disk_in_memory:
        _hard_or_refuse(limits, why)
        return _in_memory(limits, profile, watched, why)
    folder, problem = _folder_for_devices(client)
    _hard_or_refuse(limits, why or problem)
    fitted = _fit_to_free_space(client, limits)
    if fitted.disk_in_memory:
        no_room = "the engine's disk has no room"
        log.warning("the files of the sandbox are kept in memory: %s", no_room)
        return _in_memory(fitted, profile, watched, why or no_room)
    labels = {SANDBOX_LABEL: name}
    if folder is not None:
        try:
            return _on_devices(fitted, folder, profile, watched, why, labels, copies)
        except SandboxError as error:
            if error.code is not ErrorCode.start_failed or limits.disk == "hard":
                raise
            problem = error.message
    return _measured(fitted, profile, watched, problem, labels, copies)


def host_disk(client: docker.DockerClient, disk: Disk, volume: str) -> str | None:
    """Return ``volume``, the path of a volume in the sandbox, if it lies on the disk that stores the sandbox's disks; else None.

    The guest sees there how much room the host has (docs/decisions/0013).
    """
    if disk.kind != "ext4":
        return None
    folder = Path(_engine_facts(client)["DockerRootDir"])
    try:
        return volume if folder.stat().st_dev == (folder / "volumes").stat().st_dev else None
    except OSError:
        return None


def look_ahead(client: docker.DockerClient, limits: Limits, profile: Profile) -> None:
    """Begin with what takes ``prepare`` the most time the first time, beside other work: the engine's facts, and mkfs."""
    if limits.disk_in_memory or client in _facts or not is_local(client):
        return

    def format_all() -> None:
        for path, size_bytes in _places(limits, profile):
            if path not in _tmp_in_memory(limits):
                loop.formatted(size_bytes, _owner_of(path, profile))

    for call in (lambda: _engine_facts(client), *([] if loop.problem() else [format_all])):
        with Shield():  # the start of a thread waits for an Event
            threading.Thread(target=_try, args=(call,), name="gamebox-disks", daemon=True).start()


def _try(call: Callable[[], object]) -> None:
    with contextlib.suppress(SandboxError, OSError):  # ``prepare`` meets it again
        call()


def note_refused_devices(client: docker.DockerClient, reason: str) -> None:
    """Note that this engine does not mount our devices, so that `prepare` uses measured volumes there."""
    _refusals[client] = reason


def remove_volumes(client: docker.DockerClient, name: str) -> None:
    """Remove the volumes that are left of the sandbox ``name``, whose container was removed from outside.

    Raises SandboxError.
    """
    with translated():
        for volume in client.api.volumes(filters={"label": f"{SANDBOX_LABEL}={name}"}).get("Volumes") or []:
            client.api.remove_volume(volume["Name"])


def remove_unused_volumes(client: docker.DockerClient) -> None:
    """Remove the volumes of sandboxes without a container: an engine that restarts removes containers without their volumes.

    The engine lists unused volumes, and refuses to remove one in use. Raises SandboxError if it does not answer.
    """
    with translated():
        found = client.api.volumes(filters={"dangling": True, "label": SANDBOX_LABEL}).get("Volumes") or []
    for volume in found:
        if SANDBOX_LABEL not in (volume.get("Labels") or {}):  # Podman lists what matches either of the two
            continue
        try:
            client.api.remove_volume(volume["Name"])
        except docker.errors.APIError as error:
            log.debug("volume %s stays: %s", volume["Name"], error)


def _places(limits: Limits, profile: Profile) -> tuple[tuple[str, int], ...]:
    if profile.bare_root:
        return ((profile.workspace, limits.workspace_bytes),)
    # The home of root, or of a service's own user, is part of the image: a mount would hide its files.
    has_home = profile.read_only_root or (profile.any_user and profile.uid != 0)
    home = ((profile.home, limits.home_bytes),) if has_home else ()
    return ((profile.workspace, limits.workspace_bytes), *home, (TMP, limits.tmp_place_bytes))


def _in_memory(limits: Limits, profile: Profile, watched: tuple[str, ...], why: str) -> Disk:
    places = _places(limits, profile)
    return Disk("memory", places, watched=watched, why=why, in_memory=frozenset(path for path, _ in places))


def _on_devices(
    limits: Limits,
    folder: Path,
    profile: Profile,
    watched: tuple[str, ...],
    why: str,
    labels: dict[str, str],
    copies: bool,
) -> Disk:
    places, in_memory = _places(limits, profile), _tmp_in_memory(limits)
    devices: list[loop.LoopDevice] = []
    mounts = []
    try:
        for path, size_bytes in places:
            if path in in_memory:
                continue
            devices.append(loop.make(size_bytes, folder, _owner_of(path, profile), bare=copies and path != TMP))
            options = {"type": "ext4", "device": devices[-1].path, "o": loop.MOUNT_OPTIONS}
            driver = DriverConfig("local", options)
            mounts.append(Mount(path, None, type="volume", no_copy=not copies or path == TMP, labels=labels, driver_config=driver))
    except BaseException:
        for device in devices:
            device.release()
        raise
    return Disk("ext4", places, tuple(mounts), watched, why, tuple(devices), in_memory)


def _measured(
    limits: Limits, profile: Profile, watched: tuple[str, ...], problem: str, labels: dict[str, str], copies: bool
) -> Disk:
    log.info("the disk of the sandbox is soft: %s", problem)
    places, in_memory = _places(limits, profile), _tmp_in_memory(limits)
    on_disk = tuple(path for path, _ in places if path not in in_memory)
    mounts = tuple(
        Mount(path, None, type="volume", no_copy=not copies or path == TMP, labels=labels) for path in on_disk
    )
    # Measuring the root does not enter them, since each is a file system of its own.
    return Disk("volume", places, mounts, (*watched, *on_disk), problem, in_memory=in_memory)


def _owner_of(path: str, profile: Profile) -> int:
    return 0 if path == TMP else profile.uid


def _tmp_in_memory(limits: Limits) -> frozenset[str]:
    return frozenset({TMP} if limits.tmp_in_memory else ())


def _fit_to_free_space(client: docker.DockerClient, limits: Limits) -> Limits:
    """Return ``limits`` with a disk size that fits the free space, or in memory if none does. A size that was given stays."""
    free = free_bytes(client)
    if limits.disk_bytes is not None or free is None:
        return limits
    if free < LEAST_FREE_BYTES:
        return dataclasses.replace(limits, disk="memory")
    return dataclasses.replace(limits, disk_bytes=min(limits.files_bytes, free // _STEP * _STEP))


def free_bytes(client: docker.DockerClient) -> int | None:
    """Return the free bytes of the engine's disk, or None if this host does not see it."""
    found = space(client)
    return None if found is None else found[0]


def space(client: docker.DockerClient) -> tuple[int, int] | None:
    """Return the free bytes of the engine's disk and its size, or None if this host does not see it."""
    if not is_local(client):
        return None
    try:
        found = shutil.disk_usage(_engine_facts(client)["DockerRootDir"])
    except OSError:
        return None
    return found.free, found.total


def written_bytes(client: docker.DockerClient, names: Collection[str]) -> int:
    """Return what of the engine's disk the sandboxes in the containers of these names have taken, as far as this host sees it.

    That is what is in the file systems that are theirs alone; folders that are only measured are left out. Raises SandboxError.
    """
    if not names or not is_local(client):
        return 0
    with translated():
        listed = client.api.volumes(filters={"label": SANDBOX_LABEL}).get("Volumes") or []
    theirs = {each["Mountpoint"] for each in listed if (each.get("Labels") or {}).get(SANDBOX_LABEL) in names}
    found = 0
    for line in _mounts():
        device, place, *_ = line.split(" ")
        if place in theirs and device.startswith("/dev/loop"):
            with contextlib.suppress(OSError):
                found += shutil.disk_usage(place).used
    return found


def _mounts() -> list[str]:
    """Return the mounts that this process sees, one in a line; none without /proc."""
    try:
        return Path("/proc/self/mounts").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []


def _hard_or_refuse(limits: Limits, why: str) -> None:
    if limits.disk == "hard" and why:
        raise SandboxError(
            ErrorCode.limit_not_enforced,
            f"A disk of {size(limits.files_bytes)} cannot be enforced: {why}.",
            'Use disk="auto" for a limit that is only measured, or disk="memory" in profile default.',
        )


def _engine_facts(client: docker.DockerClient) -> dict[str, Any]:
    with _asking.obtain(id(client), threading.Lock):  # the engine runs two programs for the answer
        found = _facts.get(client)
        if found is None:
            with translated():
                found = _facts[client] = client.info()
    return found


def _folder_for_devices(client: docker.DockerClient) -> tuple[Path | None, str]:
    """Return the engine's folder if this process can make devices there that the engine can mount, else None and why not."""
    if not is_local(client):
        return None, "the engine is on another host"
    if is_podman(client):
        return None, "Podman makes a sandbox's own volumes without their options"
    if problem := loop.problem() or _refusals.get(client, ""):
        return None, problem
    info = _engine_facts(client)
    # The guest's boot id is compared after the start; this rules out an engine in a virtual machine beforehand.
    if info.get("KernelVersion") != platform.release() or info.get("Name") != platform.node():
        return None, "the engine runs on another kernel than this process"
    for option in info.get("SecurityOptions") or []:
        if option in (
            "name=rootless",
            "name=userns",
        ):  # it may not mount devices, or maps their files to other users
            return None, f"the engine maps users ({option.removeprefix('name=')})"
    folder = Path(info["DockerRootDir"])
    if not os.access(folder, os.W_OK):
        return None, f"the engine's folder {folder} cannot be written from here"
    return folder, ""
