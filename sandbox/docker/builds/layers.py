"""The images that builds of one owner made: named ones, and the layers in the cache."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime

import docker

from sandbox.docker.engine.client import connect, image_not_found, translated
from sandbox.frozen import dataclass

from . import engine_images as engine
from .engine_images import OWNER_LABEL, EngineImage, owner_digest


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredImage:
    """An image of an owner. ``names`` is empty for a layer in the cache; times are seconds since the epoch.

    ``added_bytes`` are those of the layers that builds added, shared ones too. ``used`` is when a build last used it.
    """

    id: str
    names: tuple[str, ...]
    bytes: int
    added_bytes: int
    created: float
    used: float
    start_command: str = ""
    ready_command: str = ""
    labels: tuple[tuple[str, str], ...] = ()


class ImageStore:
    """The images of ``owner`` on the engine in use. Every method raises SandboxError as the engine does.

    A name is up to 64 of [a-z0-9._-] and starts with a letter or digit; it is in a namespace of the owner. Images of this host's
    own user ("") have the names by which every program knows them on the engine, as in "app" or "team/app:2".
    """

    def __init__(self, owner: str) -> None:
        self.owner = owner

    def find(self, name_or_id: str) -> StoredImage | None:
        """Return an image of the owner by name or by full id; None for another owner's, too."""
        client = connect()
        reference = name_or_id if name_or_id.startswith("sha256:") else self.reference(name_or_id)
        image = engine.owned(engine.inspect(client, reference), self.owner)
        return None if image is None else self._stored(client, image)

    def reference(self, name: str) -> str:
        """Return the name by which the engine knows it, for ``DockerEnvironment(image=...)``."""
        return engine.named(self.owner, name)

    def name(self, image_id: str, name: str) -> None:
        """Give the image a name, which another one loses. Raises ``image_not_found`` for one that is not the owner's."""
        client = connect()
        image = engine.owned(engine.inspect(client, image_id), self.owner)
        if image is None:
            raise image_not_found(image_id)
        engine.give_name(client, image.id, self.reference(name))

    def list(self) -> tuple[StoredImage, ...]:
        """Return the named images, newest first."""
        client = connect()
        named = (image for image in self._images(client) if engine.tags_of(self.owner, image)[1])
        return tuple(sorted((self._stored(client, image) for image in named), key=lambda each: -each.created))

    def bytes_used(self) -> int:
        """Return what the owner's layers take of the engine's disk: each layer once, those of bases that somebody else made not."""
        return sum(self._layers(connect()).values())

    def remove(self, name: str) -> bool:
        """Take away the name, and remove the image and its layers as far as nothing else needs them.

        Layers that the cache has stay until they are pruned. Returns whether there was one. An image in use by a sandbox stays in
        the cache, and goes with the first ``prune`` after that has ended.
        """
        client = connect()
        image = engine.owned(engine.inspect(client, self.reference(name)), self.owner)
        if image is None:
            return False
        if not engine.tags_of(self.owner, image)[0]:  # else it has another tag, and this one goes though it is in use
            engine.tag(client, image.id, self.owner, engine.cache_tag(image.labels.get(engine.KEY_LABEL, "0")))
        return engine.take_name(client, self.reference(name))

    def prune(self, unused_seconds: float = 0.0) -> int:
        """Remove layers in the cache that no build has used for that long and no named image needs. Return the bytes freed.

        Layers on the way to a named image stay: the engine needs them anyway, and the next build of the same finds them. A build
        that is under way fails if a layer it is about to use goes, so ``unused_seconds`` should be more than builds take.
        """
        client = connect()
        before = self._layers(client)
        images = list(self._images(client))
        needed = {
            image.layers[:count]
            for image in images
            if engine.tags_of(self.owner, image)[1]
            for count in range(1, len(image.layers) + 1)
        }
        # The longest first: an image goes before the one that it was built on.
        for image in sorted(images, key=lambda each: -len(each.layers)):
            keys, names = engine.tags_of(self.owner, image)
            on_the_way = image.layers in needed and image.labels.get(engine.FINISHED_LABEL) != "1"
            if not names and not on_the_way and time.time() - _used(image) >= unused_seconds:
                for key in keys:
                    engine.untag(client, self.owner, engine.cache_tag(key))
        after = self._layers(client)
        return sum(each for chain, each in before.items() if chain not in after)

    def remove_all(self) -> int:
        """Remove every image and layer of the owner that no sandbox uses, and return the bytes freed."""
        before = self.bytes_used()
        for image in self.list():
            for name in image.names:
                self.remove(name)
        self.prune()
        return before - self.bytes_used()

    def _images(self, client: docker.DockerClient) -> Iterator[EngineImage]:
        with translated():
            listed = client.api.images(filters={"label": f"{OWNER_LABEL}={owner_digest(self.owner)}"})
        for each in listed:
            image = engine.owned(engine.inspect(client, str(each["Id"])), self.owner)
            if image is not None:
                yield image

    def _layers(self, client: docker.DockerClient) -> dict[str, int]:
        found: dict[str, int] = {}
        for image in self._images(client):
            found |= engine.layer_sizes(client, image, self.owner)
        return found

    def _stored(self, client: docker.DockerClient, image: EngineImage) -> StoredImage:
        return StoredImage(
            id=image.id,
            names=tuple(sorted(engine.tags_of(self.owner, image)[1])),
            bytes=image.bytes,
            added_bytes=engine.added_bytes(client, image, self.owner),
            created=_seconds(image.details.get("Created")),
            used=_used(image),
            start_command=image.labels.get(engine.START_LABEL, ""),
            ready_command=image.labels.get(engine.READY_LABEL, ""),
            labels=tuple((name, value) for name, value in image.labels.items() if not name.startswith("dev.gamebox.")),
        )


def _used(image: EngineImage) -> float:
    """Return when the image was tagged last, which a build does that finds it in the cache."""
    tagged = _seconds((image.details.get("Metadata") or {}).get("LastTagTime"))
    return max(tagged, _seconds(image.details.get("Created")))


def _seconds(text: object) -> float:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except (ValueError, OverflowError):
        return 0.0
