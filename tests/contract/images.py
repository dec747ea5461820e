"""Images that the contract is kept in, besides gamebox/base: each has less of what a program may find in an image.

All are made here, of Debian's packages, and stay on the engine: their names are digests of what is in them.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Mapping
from pathlib import Path

from sandbox.docker.engine import locks
from sandbox.docker.engine.client import connect
from tests.integration.made_images import BARE_FOLDERS, import_image, remove_image, static_busybox
from tests.integration.musl_shell import LOADER, musl_shell
from tests.integration.own_engine import lacking

PASSWD = b"root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000:agent:/home/agent:/bin/sh\n"


def busybox() -> str:
    """A static busybox under the names of its programs, ash as the shell; no /etc/passwd, and no C library."""
    program = _static_busybox()
    return _made("busybox", {"bin/busybox": program.read_bytes()}, _applets(program))


def musl() -> str:
    """What Alpine is like: a shell that musl's loader starts, and busybox beside it."""
    program, shell = _static_busybox(), musl_shell()
    if shell is None:
        lacking("needs musl-gcc (Debian: musl-tools) and Debian's sources")
    files = {
        "bin/busybox": program.read_bytes(),
        "bin/dash": shell.read_bytes(),
        LOADER.relative_to("/").as_posix(): LOADER.read_bytes(),
        "etc/passwd": PASSWD,
    }
    return _made("musl", files, {**_applets(program), "bin/sh": "dash"})


def static() -> str:
    """One static program, /busybox, and no name for a shell."""
    return _made("static", {"busybox": _static_busybox().read_bytes()}, {})


def _static_busybox() -> Path:
    found = static_busybox()
    if found is None:
        lacking("needs a static busybox (Debian: busybox-static)")
    return found


def _applets(program: Path) -> dict[str, str]:
    listed = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split()
    return {f"bin/{name}": "busybox" for name in listed if name != "busybox"}


def _made(name: str, files: Mapping[str, bytes], links: Mapping[str, str]) -> str:
    """Make the image, unless the engine has it; older ones of that name go."""
    digest = hashlib.sha256(repr((sorted(files.items()), sorted(links.items()))).encode()).hexdigest()[:16]
    repository, client = f"gamebox-test/{name}", connect()
    try:
        with locks.exclusive("test-images"):
            there = {tag for found in client.api.images(name=repository) for tag in found["RepoTags"] or ()}
            wanted = f"{repository}:{digest}"
            if wanted not in there:
                import_image(client, files, links=links, folders=() if name == "static" else BARE_FOLDERS, name=wanted)
                for older in there:
                    remove_image(client, older)
    finally:
        client.close()
    return wanted
