"""The steps of a build as frozen values, checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Run:
    """Run a command of the shell, as ``user`` or as the user of the steps before it.

    ``argv`` runs a program without a shell instead. ``timeout_seconds`` is at most what the limits of the build allow.
    ``force`` runs it though its layer is in the cache; every later step runs then, too.
    """

    command: str = ""
    argv: tuple[str, ...] = ()
    user: str = ""
    timeout_seconds: float | None = None
    force: bool = False


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy files of an archive (tar, may be compressed with gzip) to ``destination``, as COPY of a Dockerfile does.

    ``archive`` is the hash of its content in the ``ArchiveStore``. ``source`` names a file, a folder or a pattern in it, relative
    to its root; the content of a folder is merged into the destination. A ``destination`` that ends with / is a folder; a relative
    one is below the working directory. ``owner`` is "user", "user:group" or "" for root, ``mode`` None for the modes in
    the archive.
    """

    archive: str
    source: str
    destination: str
    owner: str = ""
    mode: int | None = None
    force: bool = False


@dataclass(frozen=True, slots=True)
class Env:
    """Set variables for later steps and for the image. Values may use earlier variables: $NAME, ${NAME}, ${NAME:-default}."""

    variables: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Workdir:
    """Set the working directory, relative to the one before. It is made if it is missing, and belongs to the current user."""

    path: str


@dataclass(frozen=True, slots=True)
class User:
    """Set the user of later steps and of the image: a name or a number of the image."""

    name: str


Step = Run | Copy | Env | Workdir | User


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a build does. ``base`` is an image on the engine, by name or id, or one that the same owner built.

    ``start_command`` is what a sandbox of the image runs at its start, and ``ready_command`` tells by its exit status 0 that it is
    ready; both are kept with the image and not part of its layers. ``labels`` are further ones of the image. ``entrypoint``,
    ``command`` and ``ports`` replace those of the base if they are given. ``force`` runs every step.
    """

    base: str
    steps: tuple[Step, ...] = ()
    start_command: str = ""
    ready_command: str = ""
    labels: tuple[tuple[str, str], ...] = field(default=())
    entrypoint: tuple[str, ...] | None = None
    command: tuple[str, ...] | None = None
    ports: tuple[str, ...] = ()
    force: bool = False
