"""What a build does with images on the engine: look one up, commit a container as a layer, configure the finished one.

The names and labels of an owner's images are made here. The labels say whose an image is: a name can be given to any image by
everybody who uses the engine.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import secrets
from collections.abc import Mapping
from typing import Any

import docker
import docker.errors

from sandbox.docker.container.create import labels as sandbox_labels
from sandbox.docker.container.removal import remove
from sandbox.docker.engine.client import image_not_found, translated
from sandbox.docker.images.images import BUILD_LABEL
from sandbox.docker.images.manifests import MANIFEST_LABEL
from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass
from sandbox.readers import Hint
from sandbox.text.wording import value_text

from .configuration import Configuration
from .names import check_engine_name, check_name
from .steps import Plan

OWNER_LABEL = BUILD_LABEL
KEY_LABEL = "dev.gamebox.build.key"
FINISHED_LABEL = "dev.gamebox.build.finished"
START_LABEL, READY_LABEL = "dev.gamebox.build.start", "dev.gamebox.build.ready"
MOST_LAYERS = 120
"""overlay2 mounts at most 128 layers, and a container has two of its own."""
REPOSITORY = "gamebox-build/"
_CACHE_TAG, _NAME_TAG = "k-", "n-"


@dataclass(frozen=True)
class EngineImage:
    """An image as the engine inspects it."""

    id: str
    bytes: int
    layers: tuple[str, ...]
    labels: Mapping[str, str]
    config: Mapping[str, Any]
    tags: tuple[str, ...]
    details: Mapping[str, Any]

def owner_digest(owner: str) -> str:
    """Return what stands for an owner in names and labels."""
    return hashlib.sha256(f"gamebox build owner\0{owner}".encode()).hexdigest()[:32]


def repository(owner: str) -> str:
    """Return the repository that has the owner's images and no others."""
    return f"{REPOSITORY}{owner_digest(owner)}"


def cache_tag(key: str) -> str:
    """Return the tag of the layer with that key."""
    return f"{_CACHE_TAG}{key}"


def named(owner: str, name: str) -> str:
    """Return the name by which the engine knows an owner's image: that of this host's own user is no other.

    Raises SandboxError ``invalid_arguments``.
    """
    return f"{repository(owner)}:{_NAME_TAG}{check_name(name)}" if owner else check_engine_name(name)


def tags_of(owner: str, image: EngineImage) -> tuple[list[str], list[str]]:
    """Return the keys and the names that an image has as an owner's."""
    start = f"{repository(owner)}:"
    own = [tag.removeprefix(start) for tag in image.tags if tag.startswith(start)]
    keys = [tag.removeprefix(_CACHE_TAG) for tag in own if tag.startswith(_CACHE_TAG)]
    if not owner:
        return keys, [tag.removesuffix(":latest") for tag in image.tags if not tag.startswith(REPOSITORY)]
    return keys, [tag.removeprefix(_NAME_TAG) for tag in own if tag.startswith(_NAME_TAG)]


def check_replaceable(client: docker.DockerClient, owner: str, name: str) -> None:
    """Raise SandboxError ``invalid_arguments`` if the name is that of an image which no build of the owner made."""
    there = inspect(client, named(owner, name))
    if there is not None and owned(there, owner) is None:
        raise SandboxError(
            ErrorCode.invalid_arguments,
            f"{value_text(name)} is the name of an image that Gamebox did not build.",
            Hint(
                "Choose another name; or remove that image first, with docker image rm.",
                cli="Choose another --tag; or remove that image first, with docker image rm.",
            ),
        )


def inspect(client: docker.DockerClient, reference: str) -> EngineImage | None:
    """Return an image by name or id, or None. Raises SandboxError."""
    try:
        with translated():
            found = client.api.inspect_image(reference)
    except SandboxError as error:
        if isinstance(error.__cause__, docker.errors.NotFound):
            return None
        raise
    config = found.get("Config") or {}
    return EngineImage(
        str(found["Id"]),
        int(found.get("Size") or 0),
        tuple((found.get("RootFS") or {}).get("Layers") or ()),
        {str(name): str(value) for name, value in (config.get("Labels") or {}).items()},
        config,
        tuple(found.get("RepoTags") or ()),
        found,
    )


def owned(image: EngineImage | None, owner: str) -> EngineImage | None:
    """Return the image if a build of the owner made it, else None."""
    return image if image is not None and image.labels.get(OWNER_LABEL) == owner_digest(owner) else None


def check_usable(image: EngineImage | None, owner: str, reference: str) -> EngineImage:
    """Return the image if the owner may build on it or run it: it was not built, or by the owner, or by this host's own user ("").

    One of another owner is answered as a missing one. Raises SandboxError ``image_not_found``.
    """
    if image is None or image.labels.get(OWNER_LABEL, "") not in ("", owner_digest(""), owner_digest(owner)):
        raise image_not_found(reference)
    return image


def find_cached(client: docker.DockerClient, owner: str, key: str) -> EngineImage | None:
    """Return the layer with that key and note that it was used, which is when it was tagged last. Raises SandboxError."""
    image = owned(inspect(client, f"{repository(owner)}:{cache_tag(key)}"), owner)
    if image is None or image.labels.get(KEY_LABEL) != key:
        return None
    tag(client, image.id, owner, cache_tag(key))
    return image


def tag(client: docker.DockerClient, image_id: str, owner: str, name: str) -> None:
    """Tag an image in the owner's repository. Raises SandboxError."""
    give_name(client, image_id, f"{repository(owner)}:{name}")


def give_name(client: docker.DockerClient, image_id: str, reference: str) -> None:
    """Have the engine know an image by a name, which another one loses. Raises SandboxError."""
    where, _, name = reference.rpartition(":")
    with translated():
        client.api.tag(image_id, where, name, force=True)


def commit(
    client: docker.DockerClient, container: str, owner: str, key: str, parent: EngineImage, settings: Mapping[str, Any]
) -> EngineImage:
    """Commit a container as the layer with that key, and return it. ``settings`` replace those of the container.

    The container is paused meanwhile. Raises SandboxError.
    """
    with translated():
        made = client.api.inspect_container(container)["Config"]
        # What is not set here would come from the container: the guest as the program, and the labels of a sandbox.
        inherited = (*(made.get("Labels") or {}), *parent.labels)
        blank = {name: "" for name in inherited if name.startswith("dev.gamebox.")}
        own = {
            OWNER_LABEL: owner_digest(owner),
            KEY_LABEL: key,
        }
        config = {**settings, "Labels": {**blank, **dict(settings["Labels"]), **own}}
        mark = f"{owner_digest(owner)}/{secrets.token_hex(16)}"  # by which its layer is counted once, see layer_sizes
        client.api.commit(container, repository(owner), cache_tag(key), message=mark, conf=config)
    image = inspect(client, f"{repository(owner)}:{cache_tag(key)}")
    if image is None:
        raise SandboxError(ErrorCode.image_build_failed, "A layer was removed as soon as it was committed.", "Build again.")
    return image


def settings_of(parent: EngineImage, plan: Plan, configuration: Configuration, *, finished: bool) -> dict[str, Any]:
    """Return what an image is configured with, in the words of the engine. All fields that a commit merges are set."""
    config = parent.config
    kept = {name for name in parent.labels if not name.startswith("dev.gamebox.") or name == MANIFEST_LABEL}
    labels = {name: parent.labels[name] for name in kept}
    ports = dict(config.get("ExposedPorts") or {})
    entrypoint, command = config.get("Entrypoint"), config.get("Cmd")
    if finished:
        labels |= {**dict(plan.labels), FINISHED_LABEL: "1", START_LABEL: plan.start_command, READY_LABEL: plan.ready_command}
        ports |= {port if "/" in port else f"{port}/tcp": {} for port in plan.ports}
        if plan.entrypoint is not None:  # as in a Dockerfile, the base's arguments are not those of another program
            entrypoint, command = list(plan.entrypoint), None
        command = list(plan.command) if plan.command is not None else command
    return {
        "Env": [f"{name}={value}" for name, value in configuration.env.items()],
        "WorkingDir": configuration.workdir,
        "User": configuration.user,
        "Entrypoint": entrypoint or [],
        "Cmd": command or [],
        "ExposedPorts": ports,
        "Healthcheck": config.get("Healthcheck") or {"Test": ["NONE"]},
        "StopSignal": config.get("StopSignal") or "SIGTERM",
        "Labels": labels,
    }


@contextlib.contextmanager
def unstarted(client: docker.DockerClient, image_id: str, name: str) -> Any:
    """Create a container of the image that never runs, and remove it after the block. Yields its id. Raises SandboxError."""
    try:
        with translated():
            yield str(
                client.api.create_container(
                    image_id, entrypoint=["-"], command=[], name=name, labels=sandbox_labels(name), network_disabled=True
                )["Id"]
            )
    finally:
        remove(name)


def has_path(client: docker.DockerClient, container: str, path: str) -> bool:
    """Return whether the container's root file system has a path. Raises SandboxError."""
    api = client.api
    with translated():
        answer = api.head(f"{api.base_url}/v{api.api_version}/containers/{container}/archive", params={"path": path})
        answer.close()
    return bool(answer.ok)


def added_bytes(client: docker.DockerClient, image: EngineImage, owner: str) -> int:
    """Return the bytes of the layers that the owner's builds added to an image. Raises SandboxError."""
    return sum(layer_sizes(client, image, owner).values())


def layer_sizes(client: docker.DockerClient, image: EngineImage, owner: str) -> dict[str, int]:
    """Return the size of each layer that the owner's builds added, by the mark of its commit.

    The history has one entry for each commit, and images on the same layer share it. The engine leaves out layers without a
    change, so that layers and entries cannot be matched by their number. Raises SandboxError.
    """
    with translated():
        history = client.api.history(image.id)
    mark = re.compile(rf"{owner_digest(owner)}/[0-9a-f]{{32}}")
    marked = [entry for entry in history if mark.fullmatch(str(entry.get("Comment") or ""))]
    return {str(entry["Comment"]): int(entry.get("Size") or 0) for entry in marked}


def untag(client: docker.DockerClient, owner: str, name: str) -> bool:
    """Remove a tag of the owner's, as ``take_name`` does."""
    return take_name(client, f"{repository(owner)}:{name}")


def take_name(client: docker.DockerClient, reference: str) -> bool:
    """Remove a name, and the image with its last one. Returns False if a sandbox uses it. Raises SandboxError."""
    try:
        with translated():
            client.api.remove_image(reference, noprune=False)
    except SandboxError as error:
        cause = error.__cause__
        if isinstance(cause, docker.errors.NotFound):
            return True
        if isinstance(cause, docker.errors.APIError) and cause.status_code == 409:
            return False
        raise
    return True


def container_bytes(client: docker.DockerClient, container: str) -> int:
    """Return the bytes that a container's own layer has. Raises SandboxError."""
    api = client.api
    with translated():
        answer = api.get(f"{api.base_url}/v{api.api_version}/containers/{container}/json", params={"size": 1})
        answer.raise_for_status()
        return int(answer.json().get("SizeRw") or 0)
