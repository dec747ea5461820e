"""The images that builds of one owner made: named ones, and the layers in the cache."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredImage:
    """An image of an owner. ``names`` is empty for a layer in the cache; times are seconds since the epoch."""

    id: str
    names: tuple[str, ...]
    bytes: int
    added_bytes: int
    created: float
    used: float


class ImageStore:
    """The images of ``owner`` on the engine in use. Every method raises SandboxError as the engine does.

    A name is up to 64 of [a-z0-9._-] and starts with a letter or digit; it is in a namespace of the owner.
    """

    def __init__(self, owner: str) -> None:
        raise NotImplementedError

    def find(self, name_or_id: str) -> StoredImage | None:
        """Return an image of the owner by name or by full id; None for another owner's, too."""
        raise NotImplementedError

    def reference(self, name: str) -> str:
        """Return the name by which the engine knows it, for ``DockerEnvironment(image=...)``."""
        raise NotImplementedError

    def name(self, image_id: str, name: str) -> None:
        """Give the image a name, which another one loses. Raises ``image_not_found`` for one that is not the owner's."""
        raise NotImplementedError

    def list(self) -> tuple[StoredImage, ...]:
        """Return the named images, newest first."""
        raise NotImplementedError

    def bytes_used(self) -> int:
        """Return what the owner's layers take of the engine's disk: each layer once, those of foreign bases not."""
        raise NotImplementedError

    def remove(self, name: str) -> bool:
        """Take away the name, and remove the image and its layers as far as nothing else needs them.

        Layers that the cache has stay until they are pruned. Returns whether there was one. An image in use by a sandbox goes with
        the next ``prune``.
        """
        raise NotImplementedError

    def prune(self, unused_seconds: float = 0.0) -> int:
        """Remove layers in the cache that no build has used for that long and no named image needs. Return the bytes freed."""
        raise NotImplementedError
