"""Images that tests make out of a few files, and the static busybox that goes into them."""

from __future__ import annotations

import functools
import hashlib
import io
import shutil
import subprocess
import tarfile
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path

import docker
import docker.errors

from sandbox.docker.engine import locks
from sandbox.docker.images.images import ensure_image

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
    pipes: Iterable[str] = (),
    name: str | None = None,
    changes: Iterable[str] = (),
) -> str:
    """Make an image of these programs, links, folders and named pipes, with lines of a Dockerfile; answers its name."""
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
        for path in pipes:
            pipe = tarfile.TarInfo(path)
            pipe.type = tarfile.FIFOTYPE
            archive.addfile(pipe)
    image = name or f"gamebox-test/{uuid.uuid4().hex}"
    repository, _, tag = image.partition(":")
    client.api.import_image_from_data(target.getvalue(), repository=repository, tag=tag or "latest", changes=[*changes] or None)
    return image


def remove_image(client: docker.DockerClient, name: str) -> None:
    """Remove it; one that is still in use is the engine's to remove."""
    try:
        client.api.remove_image(name, force=True)
    except docker.errors.APIError:
        pass


POSTGRES = """
FROM gamebox/postgres
USER postgres
WORKDIR /var/lib/postgresql
ENV PGDATA=/var/lib/postgresql/data
RUN echo secret >/tmp/password && cd /usr/lib/postgresql/*/bin && ln -s $PWD /var/lib/postgresql/bin && \\
    ./initdb --auth-host=scram-sha-256 --pwfile=/tmp/password && rm /tmp/password
CMD ["/var/lib/postgresql/bin/postgres", "-c", "fsync=off", "-c", "unix_socket_directories=/tmp"]
"""


def postgres_image(client: docker.DockerClient) -> str:
    """An image with Debian's PostgreSQL and its driver for Python; its server trusts its own user, all others by "secret".

    Made once for a gamebox/postgres (a minute if that has to be made first), whichever process needs it first.
    """
    base = ensure_image(client, "gamebox/postgres", report=print)
    tag = hashlib.sha256(f"{base}{POSTGRES}".encode()).hexdigest()[:12]
    name = f"gamebox-test/postgres:{tag}"
    with locks.exclusive("test-images"):
        if client.api.images(name=name):
            return name
        for older in client.api.images(name="gamebox-test/postgres"):
            remove_image(client, str(older["Id"]))
        build_image(client, POSTGRES, name)
    return name


def build_image(client: docker.DockerClient, dockerfile: str, name: str) -> None:
    """Build an image from the text of a Dockerfile alone."""
    target, content = io.BytesIO(), dockerfile.encode()
    with tarfile.open(fileobj=target, mode="w") as archive:
        member = tarfile.TarInfo("Dockerfile")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    target.seek(0)
    built = client.api.build(
        fileobj=target, custom_context=True, tag=name, rm=True, forcerm=True, decode=True, timeout=600
    )
    said = list(built)
    if wrong := [event["error"] for event in said if "error" in event]:
        lines = "".join(str(event.get("stream", "")) for event in said)[-3000:]
        raise AssertionError(f"{name} could not be built: {wrong[0]}\n{lines}")
