"""What an image declares or has at places where it would hang the engine, or reach past the limits of a sandbox.

Such an image is refused in one sentence, or what it declares is made harmless.
"""

from __future__ import annotations

import base64
import json
import posixpath
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import docker
from docker.types import Mount

from sandbox.docker.engine.events import SANDBOX_LABEL
from sandbox.errors import ErrorCode, SandboxError
from sandbox.text.wording import value_text

# The engine opens these on its host, before it starts a container: one that is no file would block it for good.
_OPENED = ("/etc/passwd", "/etc/group")
# Modes of Go's io/fs: symbolic link, device, named pipe, socket, irregular.
_LINK, _SPECIAL = 1 << 27, 1 << 26 | 1 << 25 | 1 << 24 | 1 << 19
# A volume at or below one of these would replace what the sandbox is made of.
_OWN = ("/proc", "/sys", "/dev", "/.gamebox")
_NOT_MOUNTED = re.compile(r'to rootfs at "([^"]{1,300})"')
_HINT = "Build an image FROM it in which that is a plain folder or does not exist."
_looked_at: set[str] = set()
_MOST_KNOWN = 256


def volume_mounts(declared: Iterable[str], taken: Collection[str], name: str) -> list[Mount]:
    """Return read-only mounts, with the image's files, for the volumes that an image declares (VOLUME).

    The engine would make each on its disk, writable and without a limit. They are named after the sandbox ``name``, since the
    engine makes no unnamed one that is read-only. ``taken`` are the places that the sandbox mounts itself: no volume is made
    there. Raises SandboxError ``start_failed`` for one that lies in such a place or around it, or replaces a part of the system.
    """
    found: list[Mount] = []
    for path in declared:
        place = posixpath.normpath("/" + path.lstrip("/"))
        above = {"/" if place == "/" else place[:at] for at in range(1, len(place) + 1) if at == len(place) or place[at] == "/"}
        if place in taken:
            continue
        holds_ours = any(each.startswith(f"{place}/") for each in taken)
        if not path.startswith("/") or place == "/" or holds_ours or above & {*_OWN, *taken}:
            raise SandboxError(
                ErrorCode.start_failed,
                f"The image declares a volume at {value_text(path)}, which the sandbox needs for itself.",
                "Build the image without that VOLUME.",
            )
        found.append(Mount(place, f"{name}-{len(found)}", type="volume", read_only=True, labels={SANDBOX_LABEL: name}))
    return found


def check_files_of_users(client: docker.DockerClient, container_id: str, image: str, image_id: str) -> None:
    """Raise SandboxError ``start_failed`` for an image whose /etc/passwd or /etc/group is a pipe or a device, once for each image.

    Asked of a container that is not started: an engine that has opened a pipe neither starts nor removes it any more. Raises
    docker-py's errors.
    """
    if image_id in _looked_at:
        return
    for path in _OPENED:
        found = _stat(client, container_id, path)
        if found.get("mode", 0) & _LINK and found.get("linkTarget"):
            found = _stat(client, container_id, str(found["linkTarget"]))
        if found.get("mode", 0) & _SPECIAL:
            message = f"In the image {value_text(image)}, {path} is not a file, and the engine would wait for it forever."
            raise SandboxError(ErrorCode.start_failed, message, "Build an image FROM it in which that is a file or does not exist.")
    if len(_looked_at) >= _MOST_KNOWN:
        _looked_at.clear()
    _looked_at.add(image_id)


def _stat(client: docker.DockerClient, container_id: str, path: str) -> dict[str, Any]:
    """Return what the engine says of a path in a container, {} if it is missing."""
    api: Any = client.api
    answer = api.head(f"{api.base_url}/v{api.api_version}/containers/{container_id}/archive", params={"path": path})
    try:
        found = json.loads(base64.b64decode(answer.headers.get("X-Docker-Container-Path-Stat") or "e30="))
    except ValueError:
        return {}
    return found if isinstance(found, dict) and isinstance(found.get("mode", 0), int) else {}


def explain_failed_start(error: SandboxError, image: str) -> SandboxError:
    """Return an engine's failure to mount a place of the sandbox in one sentence, any other error as it is."""
    found = _NOT_MOUNTED.search(error.message)
    if error.code is not ErrorCode.start_failed or found is None:
        return error
    message = f"The image {value_text(image)} has something at {value_text(found[1])} that the sandbox cannot mount over."
    return SandboxError(ErrorCode.start_failed, message, _HINT)


def check_links(facts: Mapping[str, object]) -> None:
    """Raise SandboxError ``start_failed`` if places of the sandbox are links in the image, as the guest says in its HELLO."""
    links = facts.get("links")
    if isinstance(links, list) and links:
        message = f"In the image, {value_text(str(links[0]))} is a link, and the sandbox needs a folder there."
        raise SandboxError(ErrorCode.start_failed, message, _HINT)
