"""A shell that is dynamically linked with musl: dash of Debian's sources, built by musl-gcc (Debian: musl-tools)."""

from __future__ import annotations

import functools
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from sandbox.docker.engine import locks
from sandbox.packages.apt_sources import host_sources

LOADER = Path(f"/lib/ld-musl-{platform.machine()}.so.1")


@functools.cache
def musl_shell() -> Path | None:
    """The shell, built once for a user of this host (20 s); None where musl-gcc or the sources are missing."""
    if shutil.which("musl-gcc") is None or shutil.which("apt-get") is None or not LOADER.exists():
        return None
    with locks.exclusive("test-musl-shell"):
        built = locks.locks_folder().parent / "tests" / "dash-musl"
        if not built.exists():
            built.parent.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory(prefix="gamebox-musl-") as folder:
                done = _build(Path(folder))
                if done is None:
                    return None
                shutil.copy(done, built.with_suffix(".new"))
            os.replace(built.with_suffix(".new"), built)
    return built


def _build(folder: Path) -> Path | None:
    """Build it in a folder. Returns None if the host has no sources of Debian, or cannot reach them."""
    codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    parts, lists = folder / "parts", folder / "lists"
    parts.mkdir()
    (lists / "partial").mkdir(parents=True)
    for suffix, text in host_sources(codename).items():
        sources = text.replace("Types: deb\n", "Types: deb-src\n").replace("deb ", "deb-src ")
        (parts / f"host{suffix}").write_text(sources)
    apt = ["apt-get", "-qq", "-o", f"Dir::Etc::sourceparts={parts}", "-o", f"Dir::State::lists={lists}"]
    apt += ["-o", "Dir::Etc::sourcelist=/dev/null", "-o", "APT::Sandbox::User=root"]
    for arguments in (["update"], ["source", "--download-only", "dash"]):
        if subprocess.run([*apt, *arguments], cwd=folder, capture_output=True, check=False).returncode != 0:
            return None
    source = folder / "dash"
    source.mkdir()
    subprocess.run(["tar", "xf", next(folder.glob("dash_*.orig.tar.*")), "-C", source, "--strip-components=1"], check=True)
    env = {**os.environ, "CC": "musl-gcc"}
    for command in (["./configure", "--quiet"], ["make", "CC_FOR_BUILD=gcc"], ["strip", "src/dash"]):
        made = subprocess.run(command, cwd=source, env=env, capture_output=True, text=True, check=False)
        if made.returncode != 0:
            pytest.fail(f"{command} failed: {(made.stdout + made.stderr)[-2000:]}", pytrace=False)
    return source / "src" / "dash"
