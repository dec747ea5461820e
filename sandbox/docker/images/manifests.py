"""What an image contains, in one label: written when we build one of ours, and shown to models.

Anybody can give an image a label, so its text is cleaned and bounded when it is read.
"""

from __future__ import annotations

import contextlib
import io
import logging
import tarfile
from collections.abc import Mapping

import docker
import docker.errors
import requests.exceptions

from sandbox.text.invisible import escape_invisible
from sandbox.text.plain_text import plain

log = logging.getLogger(__name__)

MANIFEST_LABEL = "dev.gamebox.contents"
MOST_CHARS = 800
_PROBE_SECONDS = 120
_PLACES = {"/tmp": "", "/root": ""}  # noqa: S108 - in the container
# The name for a reader, and the command that says the version: the first number with a dot in what it prints.
_TOOLS = (
    ("Python", "python3 --version"),
    ("pip", "pip --version"),
    ("uv", "uv --version"),
    ("pytest", "pytest --version"),
    ("pyflakes", "python3 -m pyflakes --version"),
    ("ipykernel", "python3 -m ipykernel --version"),
    ("Node.js", "node --version"),
    ("npm", "npm --version"),
    ("Go", "go version"),
    ("Rust", "rustc --version"),
    ("cargo", "cargo --version"),
    ("Java", "javac --version"),
    ("Maven", "mvn --version"),
    ("gcc", "gcc -dumpfullversion"),
    ("g++", "g++ -dumpfullversion"),
    ("make", "make --version"),
    ("CMake", "cmake --version"),
    ("Ninja", "ninja --version"),
    ("pkg-config", "pkg-config --version"),
    ("git", "git --version"),
    ("ripgrep", "rg --version"),
    ("jq", "jq --version"),
    ("curl", "curl --version"),
    ("Chromium", "chromium --version"),
    ("PostgreSQL", "psql --version"),
    ("Redis", "redis-server --version"),
)
_SCRIPT = r"""
(. /etc/os-release 2>/dev/null && echo "$NAME $VERSION_ID" | sed 's,GNU/Linux ,,')
say() {
    name=$1; shift
    command -v "$1" >/dev/null 2>&1 || return 0
    found=$(timeout 20 "$@" 2>/dev/null | grep -oE '[0-9]+(\.[0-9]+)+' | head -n 1)
    [ -z "$found" ] || echo "$name $found"
}
"""


def read_manifest(labels: Mapping[str, str]) -> str:
    """Return what the labels of an image say that it contains: one line of printable text, "" for nothing."""
    text = escape_invisible(plain(str(labels.get(MANIFEST_LABEL) or "")[: MOST_CHARS * 2]))
    line = " ".join(text.split())
    return line if len(line) <= MOST_CHARS else f"{line[:MOST_CHARS]}…"


def write_manifest(client: docker.DockerClient, image_id: str, reference: str, labels: Mapping[str, str]) -> None:
    """Give one of our own images, just built, the label. ``reference`` is its name, ``labels`` its others.

    An image that cannot say what is in it is left without. Raises docker-py's errors for the engine's faults.
    """
    found = _probe(client, image_id)
    if not found:
        return
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as archive:
        content = f"FROM {image_id}\n".encode()
        member = tarfile.TarInfo("Dockerfile")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    context.seek(0)
    given = {**labels, MANIFEST_LABEL: found}
    for event in client.api.build(fileobj=context, custom_context=True, tag=reference, rm=True, decode=True, labels=given):
        if "error" in event:
            log.warning("%s got no list of its contents: %s", reference, event["error"])


def _probe(client: docker.DockerClient, image_id: str) -> str:
    """Run a script in the image, without a network, and return what it contains as one line."""
    script = _SCRIPT + "".join(f"say {name} {command}\n" for name, command in _TOOLS)
    made = client.api.create_container(
        image_id,
        entrypoint=["/bin/sh", "-c", script],
        command=[],
        user="0:0",
        network_disabled=True,
        working_dir="/",
        labels={"dev.gamebox.probe": "1"},
        host_config=client.api.create_host_config(network_mode="none", read_only=True, tmpfs=_PLACES),
    )
    try:
        client.api.start(made["Id"])
        client.api.wait(made["Id"], timeout=_PROBE_SECONDS)
        lines = client.api.logs(made["Id"], stdout=True, stderr=False).decode("utf-8", "replace").splitlines()
    except (docker.errors.APIError, requests.exceptions.RequestException) as error:  # such as one without a shell
        log.info("%s does not say what is in it: %s", image_id, error)
        lines = []
    finally:
        with contextlib.suppress(docker.errors.APIError):
            client.api.remove_container(made["Id"], force=True)
    words = [line.strip() for line in lines if line.strip()]
    return read_manifest({MANIFEST_LABEL: f"{words[0]}: {', '.join(words[1:])}"}) if len(words) > 1 else ""
