"""Root file systems of Debian's releases, made once with mmdebstrap and kept in the user's cache."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from sandbox.docker.setup.debian import apt_install

# What the engines of every release need beside themselves.
_COMMON = (
    "docker.io", "podman", "crun", "runc", "e2fsprogs", "iptables", "iproute2", "procps", "uidmap", "slirp4netns",
    "fuse-overlayfs", "ca-certificates", "openssh-server", "dbus",
)  # fmt: skip
PACKAGES = {
    "bookworm": (*_COMMON, "runsc"),
    "trixie": (*_COMMON, "docker-cli", "passt"),
    "sid": (*_COMMON, "docker-cli", "passt"),
}
_LEAN = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
# The release file of unstable is valid for a week, and a mirror may be older.
_APT = ('Acquire::Check-Valid-Until "false"', 'APT::Install-Recommends "false"')
_SECONDS = 1800


def cache() -> Path:
    """Return the folder of what is kept between runs: root file systems and saved images."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "gamebox-engines")


def root_of(suite: str) -> Path:
    """Return the root file system of a release, which is made if it is missing (three minutes, 600 MB)."""
    wanted = hashlib.sha256(repr((suite, PACKAGES[suite], _LEAN, _APT)).encode()).hexdigest()[:12]
    folder, mark = cache() / suite, cache() / f"{suite}.made"
    if mark.is_file() and mark.read_text() == wanted:
        return folder
    mark.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    cache().mkdir(parents=True, exist_ok=True)
    if shutil.which("mmdebstrap") is None:
        apt_install("mmdebstrap", report)
    report(f"making a root file system of Debian's {suite} (about three minutes)")
    command = [
        "mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", "--format=directory", f"--include={','.join(PACKAGES[suite])}",
        *(f"--aptopt={option}" for option in _APT),
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in _LEAN),
        suite, str(folder), _mirror(),
    ]  # fmt: skip
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(command, env=environment, check=True, timeout=_SECONDS, stdout=sys.stderr)
    mark.write_text(wanted)
    return folder


def _mirror() -> str:
    """Return the address from which this machine's apt gets its own release: other releases are beside it."""
    codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    command = ["apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)", "Created-By: Packages"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return next(line.split()[1] for line in listed if line.split()[0] == codename)


def report(line: str) -> None:
    """Say what is going on."""
    print(line, file=sys.stderr, flush=True)
