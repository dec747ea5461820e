"""Volumes that outlive sandboxes and are shared by them: folders on the engine's disk, mounted ``nosuid,nodev``.

Each is two volumes of the engine. One has the files; the other one is an overlay file system over a folder in it, which is what
sandboxes mount: an engine mounts a plain volume with no options at all, and a bind mount ignores these (docs/decisions/0018).
"""

from __future__ import annotations

import contextlib
import io
import secrets
import tarfile
from collections.abc import Collection, Mapping
from typing import Any

import docker.errors
from docker.types import Mount

from sandbox.docker.container.create import labels
from sandbox.docker.container.profiles import E2B
from sandbox.docker.engine.client import connect, translated
from sandbox.docker.images.images import ensure_image
from sandbox.errors import ErrorCode, SandboxError

FILES, MOUNTED = "gamebox-volume-files-", "gamebox-volume-"
OWNER_LABEL, VOLUME_LABEL = "dev.gamebox.volume-of", "dev.gamebox.volume"
_PLACE = "/volume"
_COUNT_SECONDS = 300


def make(ident: str, owner: str, image: str) -> None:
    """Make a volume; nothing is left of one that fails. ``image`` is any, of which nothing runs. Raises SandboxError."""
    api = connect().api
    marks = {OWNER_LABEL: owner, VOLUME_LABEL: ident}
    image_id = ensure_image(connect(), image, report=lambda _: None)
    try:
        with translated():
            api.create_volume(FILES + ident, labels=marks)
            _fill(api, image_id, FILES + ident)
            folder = api.inspect_volume(FILES + ident)["Mountpoint"]
            parts = {"lowerdir": f"{folder}/empty", "upperdir": f"{folder}/files", "workdir": f"{folder}/work"}
            options = ",".join(["nosuid", "nodev", *(f"{name}={path}" for name, path in parts.items())])
            api.create_volume(MOUNTED + ident, "local", {"type": "overlay", "device": "overlay", "o": options}, labels=marks)
    except SandboxError:
        remove(ident)
        raise


def _fill(api: Any, image_id: str, volume: str) -> None:
    """Have the engine make the folders in a new volume, through a container that is never started."""
    name = f"gamebox-{secrets.token_hex(8)}"
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for folder, user in (("empty", 0), ("files", E2B.uid), ("work", 0)):
            member = tarfile.TarInfo(folder)
            member.type, member.mode, member.uid, member.gid = tarfile.DIRTYPE, 0o755, user, user
            archive.addfile(member)
    mounts = [Mount(_PLACE, volume, type="volume", no_copy=True)]
    config = api.create_host_config(mounts=mounts, network_mode="none")
    made = api.create_container(image_id, ["-"], name=name, labels=labels(name), host_config=config)
    try:
        api.put_archive(made["Id"], _PLACE, data.getvalue())
    finally:
        api.remove_container(made["Id"], force=True)


def mounts(volumes: Mapping[str, str]) -> tuple[Mount, ...]:
    """Return the mounts of volumes, whose ids are by their paths.

    Raises SandboxError if one is missing: the engine would make a plain one.
    """
    api = connect().api
    for ident in volumes.values():
        try:
            with translated():
                api.inspect_volume(MOUNTED + ident)
        except SandboxError as error:
            if not isinstance(error.__cause__, docker.errors.NotFound):
                raise
            raise SandboxError(
                ErrorCode.start_failed, f"The volume {ident} is not on the engine any more.", "Leave it out, or make another one."
            ) from error
    return tuple(Mount(path, MOUNTED + ident, type="volume", no_copy=True) for path, ident in volumes.items())


def remove(ident: str) -> bool:
    """Remove a volume and its files; return whether it is gone, which it is not while a container has it. Raises SandboxError."""
    api = connect().api
    for name in (MOUNTED + ident, FILES + ident):
        try:
            with translated():
                api.remove_volume(name)
        except SandboxError as error:
            cause = error.__cause__
            if isinstance(cause, docker.errors.APIError) and cause.status_code == 409:
                return False
            if not isinstance(cause, docker.errors.NotFound):
                raise
    return True


def remove_others(owner: str, idents: Collection[str]) -> None:
    """Remove the volumes that this owner has made, but for these. Raises SandboxError."""
    with translated():
        found = connect().api.volumes(filters={"label": f"{OWNER_LABEL}={owner}"}).get("Volumes") or []
    for ident in {str((each.get("Labels") or {}).get(VOLUME_LABEL)) for each in found} - set(idents):
        with contextlib.suppress(SandboxError):
            remove(ident)


def sizes() -> dict[str, int]:
    """Return the bytes of all volumes by their ids, as the engine counts them, which may take minutes. Raises SandboxError."""
    api = connect(_COUNT_SECONDS).api
    with translated():
        # docker-py asks for all that there is. So does this of Docker 20.10, which does not know the parameter.
        answer = api.get(f"{api.base_url}/v{api.api_version}/system/df", params={"type": "volume"})
        answer.raise_for_status()
        listed = answer.json().get("Volumes") or []
    return {
        str(each["Name"]).removeprefix(FILES): max(0, int((each.get("UsageData") or {}).get("Size", 0)))
        for each in listed
        if str(each["Name"]).startswith(FILES)
    }
