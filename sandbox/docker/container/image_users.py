"""What an image says of how it is to be run: its command, its folder, and the user, whom its own /etc/passwd knows."""

from __future__ import annotations

import functools
import io
import secrets
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import docker
import docker.errors

from sandbox.docker.engine.client import connect, translated
from sandbox.errors import ErrorCode, SandboxError

from .create import labels
from .removal import remove

MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ImageUser:
    """Whom a command runs as; ``home`` is "/" for a number that the image does not know."""

    name: str
    uid: int
    gid: int
    home: str


@dataclass(frozen=True, slots=True)
class Start:
    """What runs when an image is started, in which folder, and as whom."""

    argv: tuple[str, ...]
    folder: str
    user: ImageUser


def start_of(client: docker.DockerClient, image: str, image_id: str, user: str | None) -> Start:
    """How the image wants to be started, as ``user`` where that is given.

    Raises SandboxError: ``invalid_configuration`` for a user that the image does not know; as the engine does.
    """
    with translated():
        config: dict[str, Any] = client.api.inspect_image(image_id).get("Config") or {}
    argv = (*_words(config.get("Entrypoint")), *_words(config.get("Cmd")))
    known = _user(image, image_id, str(config.get("User") or "root") if user is None else user)
    return Start(argv, str(config.get("WorkingDir") or "/"), known)


def _words(listed: Sequence[str] | None) -> tuple[str, ...]:
    return tuple(map(str, listed or ()))


def _user(image: str, image_id: str, text: str) -> ImageUser:
    name, _, group = text.partition(":")
    if name in ("root", "0") and group in ("", "root", "0"):
        return ImageUser("root", 0, 0, "/root")
    # name:password:uid:gid:comment:home:shell, see passwd(5)
    rows = [row.split(":") for row in _file(image_id, "/etc/passwd").splitlines()]
    row = next(
        (row for row in rows if len(row) > 5 and name in (row[0], row[2]) and _is_id(row[2]) and _is_id(row[3])), None
    )
    if row is None and not _is_id(name):
        raise _unknown(image, f"user {name!r}")
    uid, gid, home = (int(row[2]), int(row[3]), row[5] or "/") if row is not None else (int(name), 0, "/")
    if group:
        groups = [line.split(":") for line in _file(image_id, "/etc/group").splitlines()]
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
def _file(image_id: str, path: str) -> str:
    """A text file of an image, which is not run for it; "" where there is none, or what is there is no file of up to 1 MiB."""
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
                if len(data) <= 2 * MOST_BYTES:  # read on: an unread answer leaks its connection
                    data += piece
    finally:
        remove(name)
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            first = archive.next()
            inside = (
                archive.extractfile(first) if first is not None and first.isreg() and first.size <= MOST_BYTES else None
            )
            return "" if inside is None else inside.read().decode("utf-8", "replace")
    except tarfile.TarError:
        return ""
