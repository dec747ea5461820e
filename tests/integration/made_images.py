"""Images that tests make out of a few files, and the static busybox that goes into them."""

from __future__ import annotations

import functools
import io
import shutil
import subprocess
import tarfile
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path

import docker
import docker.errors

BARE_FOLDERS = ("bin", "etc", "tmp")


@functools.cache
def static_busybox() -> Path | None:
    """The host's busybox where it needs no libraries (Debian: busybox-static), else None."""
    found = shutil.which("busybox")
    if found is None:
        return None
    asked = subprocess.run(["ldd", found], capture_output=True, text=True, check=False)
    return Path(found) if asked.returncode != 0 or "statically" in asked.stdout else None


def busybox_image(client: docker.DockerClient, busybox: Path, applets: Iterable[str], name: str | None = None) -> str:
    """Make an image of busybox under the names of these applets; answers its name."""
    links = {f"bin/{applet}": "busybox" for applet in applets}
    return import_image(client, {"bin/busybox": busybox.read_bytes()}, links=links, folders=BARE_FOLDERS, name=name)


def import_image(
    client: docker.DockerClient,
    files: Mapping[str, bytes],
    *,
    links: Mapping[str, str] | None = None,
    folders: Iterable[str] = ("empty",),
    name: str | None = None,
) -> str:
    """Make an image of these programs, links and folders; answers its name."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for path in folders:
            folder = tarfile.TarInfo(path)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(folder)
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(content), 0o755
            archive.addfile(member, io.BytesIO(content))
        for path, to in (links or {}).items():
            link = tarfile.TarInfo(path)
            link.type, link.linkname = tarfile.SYMTYPE, to
            archive.addfile(link)
    image = name or f"gamebox-test/{uuid.uuid4().hex}"
    client.api.import_image_from_data(target.getvalue(), repository=image, tag="latest")
    return image


def remove_image(client: docker.DockerClient, name: str) -> None:
    """Remove it; one that is still in use is the engine's to remove."""
    try:
        client.api.remove_image(name, force=True)
    except docker.errors.APIError:
        pass
