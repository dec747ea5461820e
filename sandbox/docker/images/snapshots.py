"""Keep what a container changed of its root file system as an image of the engine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import docker.errors

from sandbox.docker.container.profiles import DEFAULT, E2B
from sandbox.docker.container.root_changes import list_root_changes
from sandbox.docker.engine.client import connect, translated
from sandbox.errors import SandboxError

log = logging.getLogger(__name__)

# No registry has such a name, so no other name of an image means one of these; see ``is_snapshot``.
REPOSITORY = "gamebox.invalid/snapshot"
# The service that made it, and the snapshot.
OWNER_LABEL, SNAPSHOT_LABEL = "dev.gamebox.snapshot-of", "dev.gamebox.snapshot"
# What the engine makes in every container that is started.
_MOUNT_POINTS = frozenset({"/workspace", "/home", E2B.home, DEFAULT.home, "/run", "/run/gamebox", "/etc"})


def is_snapshot(image: str) -> bool:
    """Return whether the name of an image is that of a snapshot: only who made it may use it, and not by this name."""
    return image.partition("/")[0].lower() == REPOSITORY.partition("/")[0]


def commit(container_id: str, base: str, ident: str, owner: str) -> tuple[str, int]:
    """Keep the root file system of a container, which stands still meanwhile, as an image with that ``ident``.

    Return the name of the image, and the bytes that it takes beside ``base``. If nothing was changed, that is the container's own
    image with another name: an image has at most some 120 layers, however often a sandbox is stopped. Raises SandboxError.
    """
    api = connect().api
    labels = {OWNER_LABEL: owner, SNAPSHOT_LABEL: ident}
    changed = any(each.path not in _MOUNT_POINTS for each in list_root_changes(container_id))
    with translated():
        image = str(api.inspect_container(container_id)["Image"])
        before = api.inspect_image(image)
        if changed:
            image = str(api.commit(container_id, repository=REPOSITORY, tag=ident, conf={"Labels": labels})["Id"])
        elif (before["Config"].get("Labels") or {}).get(SNAPSHOT_LABEL):
            api.tag(image, REPOSITORY, ident)
        else:
            return "", 0
        whole = int(api.inspect_image(image)["Size"])
        return f"{REPOSITORY}:{ident}", max(0, whole - _size(api, base))


def _size(api: Any, image: str) -> int:
    """Return the bytes of an image, 0 if there is none: what is shared with others counts then."""
    try:
        return int(api.inspect_image(image)["Size"])
    except docker.errors.ImageNotFound:
        return 0


def remove(name: str) -> bool:
    """Remove the image of a snapshot; return whether it is gone, which it is not while a sandbox or an image needs it.

    Raises SandboxError.
    """
    api = connect().api
    try:
        with translated():
            api.remove_image(name, noprune=False)
    except SandboxError as error:
        cause = error.__cause__
        if isinstance(cause, docker.errors.NotFound):
            return True
        if isinstance(cause, docker.errors.APIError) and cause.status_code == 409:
            return False
        raise
    return True


def remove_others(owner: str, is_known: Callable[[str], bool]) -> None:
    """Remove the images that this owner has made for snapshots which are not known just before that. Raises SandboxError."""
    with translated():
        found = connect().api.images(filters={"label": f"{OWNER_LABEL}={owner}"})
    for image in found:
        for name in image.get("RepoTags") or ():
            repository, _, ident = str(name).partition(":")
            if repository == REPOSITORY and not is_known(ident) and not remove(name):
                log.info("the image of the snapshot %s is still in use", ident)
