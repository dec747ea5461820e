"""Read how an image wants to be started: its command, its folder, and its user, whom its own /etc/passwd describes."""

from __future__ import annotations

import functools
import io
import secrets
import tarfile
from collections.abc import Sequence
from typing import Any

import docker
import docker.errors

from sandbox.docker.engine.client import connect, translated
from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass

from .create import labels
from .removal import remove

MOST_FILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ImageUser:
    """The user that a command runs as. ``home`` is "/" for a number that the image does not know."""

    name: str
    uid: int
    gid: int
    home: str


@dataclass(frozen=True, slots=True)
class ImageStart:
    """The command of an image, its folder and its user."""

    argv: tuple[str, ...]
    folder: str
    user: ImageUser


def read_image_start(client: docker.DockerClient, image: str, image_id: str, user: str | None) -> ImageStart:
    """Read how the image wants to be started. ``user`` replaces the image's own.

    Raises SandboxError: ``invalid_configuration`` for a user that the image does not know, and the engine's errors.
    """
    with translated():
        config: dict[str, Any] = client.api.inspect_image(image_id).get("Config") or {}
    argv = (*_words(config.get("Entrypoint")), *_words(config.get("Cmd")))
    found = _find_user(image, image_id, str(config.get("User") or "root") if user is None else user)
    return ImageStart(argv, str(config.get("WorkingDir") or "/"), found)


def _words(listed: Sequence[str] | None) -> tuple[str, ...]:
    return tuple(map(str, listed or ()))


def _find_user(image: str, image_id: str, text: str) -> ImageUser:
    name, _, group = text.partition(":")
    if name in ("root", "0") and group in ("", "root", "0"):
        return ImageUser("root", 0, 0, "/root")
    # name:password:uid:gid:comment:home:shell, see passwd(5)
    rows = [row.split(":") for row in _read_file(image_id, "/etc/passwd").splitlines()]
    row = next(
        (row for row in rows if len(row) > 5 and name in (row[0], row[2]) and _is_id(row[2]) and _is_id(row[3])), None
    )
    if row is None and not _is_id(name):
        raise _unknown(image, f"user {name!r}")
    uid, gid, home = (int(row[2]), int(row[3]), row[5] or "/") if row is not None else (int(name), 0, "/")
    if group:
        groups = [line.split(":") for line in _read_file(image_id, "/etc/group").splitlines()]
        found = next((g[2] for g in groups if len(g) > 2 and group == g[0]), group)
        if not _is_id(found):
            raise _unknown(image, f"group {group!r}")
        gid = int(found)
    return ImageUser(name if row is None else row[0], uid, gid, home)


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) < 1 << 31


def _unknown(image: str, what: str) -> SandboxError:
    return SandboxError(
        ErrorCode.invalid_configuration,
        f"The image {image!r} has no {what}.",
        "Give user as a number, as in user='999', or as a name that is in the image's /etc/passwd.",
    )


@functools.lru_cache(maxsize=64)
def _read_file(image_id: str, path: str) -> str:
    """Return a text file of an image without running it, or "" if it is missing, not a regular file, or over 1 MiB."""
    client, name = connect(), f"gamebox-{secrets.token_hex(8)}"
    try:
        with translated():
            made = client.api.create_container(
                image_id, entrypoint=["-"], command=[], name=name, labels=labels(name), network_disabled=True
            )
            try:
                pieces, _ = client.api.get_archive(made["Id"], path)
            except docker.errors.NotFound:
                return ""
            data = b""
            for piece in pieces:
                if len(data) <= 2 * MOST_FILE_BYTES:  # read on: an unread answer leaks its connection
                    data += piece
    finally:
        remove(name)
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            first = archive.next()
            inside = (
                archive.extractfile(first)
                if first is not None and first.isreg() and first.size <= MOST_FILE_BYTES
                else None
            )
            return "" if inside is None else inside.read().decode("utf-8", "replace")
    except tarfile.TarError:
        return ""
