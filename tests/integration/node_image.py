"""The base image with the host's Node.js and npm in it: no registry that has one need be reached."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
import uuid
from pathlib import Path

import docker

from .own_engine import lacking


def node_image(client: docker.DockerClient, base: str) -> str:
    """Makes it, to be removed by who asked; skips the test where the host has no npm (a failure in CI)."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        lacking("there is no npm on this machine to make an image of")
    program = Path(npm).resolve()
    modules = next((one for one in program.parents if one.name in ("node_modules", "nodejs")), None)
    if modules is None:
        lacking(f"{program} is no npm that can be copied")
    asked = subprocess.run(["ldd", node], capture_output=True, text=True, check=False).stdout
    libraries = [Path(found) for found in re.findall(r"=> (/\S+)", asked)]
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        archive.add(Path(node).resolve(), "node/bin/node")
        archive.add(modules, "node/modules")
        for library in libraries:  # beside those of the image, and only where it has none of that name
            archive.add(library.resolve(), f"node/lib/{library.name}")
        _text(archive, "npm", f'#!/bin/sh\nexec node {program} "$@"\n')
        # Debian's npm finds what it needs beside itself, by the place of its own node.
        paths = f"LD_LIBRARY_PATH=/opt/node/missing NODE_PATH={modules}"
        _text(archive, "node.sh", f'#!/bin/sh\n{paths} exec /opt/node/bin/node "$@"\n')
        _text(archive, "Dockerfile", _DOCKERFILE.format(base=base, modules=modules))
    target.seek(0)
    name = f"gamebox-test/{uuid.uuid4().hex}"
    said = list(client.api.build(fileobj=target, custom_context=True, tag=name, rm=True, decode=True))
    assert client.images.list(name), said[-3:]
    return name


_DOCKERFILE = """FROM {base}
COPY node/bin /opt/node/bin
COPY node/lib /opt/node/lib
COPY node/modules {modules}
COPY npm /usr/local/bin/npm
COPY node.sh /usr/local/bin/node
RUN chmod 755 /usr/local/bin/* && mkdir /opt/node/missing && cd /opt/node/lib && for one in *; do \\
    ldconfig -p | grep -q "$one " || cp "$one" ../missing/; done; node --version && npm --version
"""


def _text(archive: tarfile.TarFile, name: str, text: str) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(text), 0o755
    archive.addfile(member, io.BytesIO(text.encode()))
