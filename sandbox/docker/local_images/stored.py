"""The images of Gamebox on the engine: those that its user built or imported, and Gamebox's own."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

import docker

from sandbox.docker.builds import engine_images as engine
from sandbox.docker.builds.layers import ImageStore
from sandbox.docker.engine.client import connect, translated
from sandbox.docker.images.manifests import read_manifest
from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass
from sandbox.text.wording import value_text

from .building import OWNER
from .image_config import IMPORTED_LABEL
from .names import OURS

_UNNAMED = "<none>:<none>"  # so older engines list what has lost its name


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedImage:
    """An image with its name. ``created`` is in seconds since the epoch; ``contents`` is what the image says of itself."""

    name: str
    id: str
    kind: Literal["built", "imported", "gamebox"]
    bytes: int
    created: float
    contents: str


def list_images() -> list[NamedImage]:
    """Return the images with names, by name. Raises SandboxError as the engine does."""
    client = connect()
    with translated():
        listed = client.api.images()
    found: list[NamedImage] = []
    for each in listed:
        names = [str(tag).removesuffix(":latest") for tag in each.get("RepoTags") or () if tag != _UNNAMED]
        labels = {str(name): str(value) for name, value in (each.get("Labels") or {}).items()}
        is_own = labels.get(engine.OWNER_LABEL) == engine.owner_digest(OWNER)
        for name in names:
            if name.startswith(engine.REPOSITORY) or not (is_own or OURS.fullmatch(name)):
                continue
            kind = "gamebox" if OURS.fullmatch(name) else "imported" if labels.get(IMPORTED_LABEL) else "built"
            found.append(
                NamedImage(
                    name=name,
                    id=str(each["Id"]),
                    kind=kind,  # type: ignore[arg-type]
                    bytes=int(each.get("Size") or 0),
                    created=float(each.get("Created") or 0),
                    contents=read_manifest(labels),
                )
            )
    return sorted(found, key=lambda each: each.name)


def remove_image(name: str) -> None:
    """Take away a name, and the image with its last one. Layers in the cache stay until they are pruned.

    Raises SandboxError: ``image_not_found``, ``invalid_arguments`` for an image that is not Gamebox's, or that a sandbox uses.
    """
    client = connect()
    image = engine.inspect(client, name) if name.strip() else None
    names = [] if image is None else [tag.removesuffix(":latest") for tag in image.tags]
    if image is None or name.removesuffix(":latest") not in names:
        raise SandboxError(
            ErrorCode.image_not_found, f"There is no image named {value_text(name)}.", "Use a name that `gamebox image ls` lists."
        )
    if OURS.fullmatch(name) or image.labels.get(IMPORTED_LABEL):  # no layer in the cache
        if len(image.tags) == 1 and _is_used(client, image.id):  # the engine would take the name alone
            raise SandboxError(
                ErrorCode.invalid_arguments,
                f"The image {value_text(name)} is in use.",
                "End the sandboxes that use it, and remove the images that were built on it, first.",
            )
        engine.take_name(client, name)
    elif engine.owned(image, OWNER) is None:
        raise SandboxError(
            ErrorCode.invalid_arguments, f"Gamebox did not build the image {value_text(name)}.", f"Use docker image rm {name}."
        )
    else:
        ImageStore(OWNER).remove(name)


def _is_used(client: docker.DockerClient, image_id: str) -> bool:
    """Return whether a container or another image needs an image."""
    with translated():
        containers = client.api.containers(all=True, quiet=True, filters={"ancestor": image_id})
        children = client.api.images(all=True)
    return bool(containers) or any(each.get("ParentId") == image_id for each in children)


def prune_images(unused_seconds: float) -> int:
    """Remove layers that no named image needs and no build has used for that long. Return the bytes freed. Raises SandboxError."""
    return ImageStore(OWNER).prune(unused_seconds)


def date(seconds: float) -> str:
    """Return a time for a reader, in the local time zone."""
    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M")
