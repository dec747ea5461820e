"""Profiles: which user, privileges and writable places the commands of a sandbox get."""

from __future__ import annotations

import dataclasses

from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass
from sandbox.limits import MIB, Limits

WORKSPACE = "/workspace"
# The guest keeps nothing of root but this: to become the user, and to kill the user's processes.
GUEST_CAPABILITIES = ("SETUID", "SETGID", "KILL")
_SUITE_BYTES = 64 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A named set of privileges.

    ``capabilities=None`` means the engine's default ones, ``file_roots=None`` the workspace, the home, /tmp and /var/tmp, and
    ``gid=None`` the uid. ``any_user`` permits the host's program to run commands as another user of the image. With ``bare_root``
    nothing is mounted where programs look for files, so that the root file system has all that they write; ``workspace`` is then
    the one folder with a disk of its own. ``gives`` is a sentence for the model, ``warning`` one for the person who chose the
    profile, or "".
    """

    name: str
    uid: int
    user: str
    home: str
    read_only_root: bool
    capabilities: tuple[str, ...] | None
    gid: int | None = None
    any_user: bool = False
    file_roots: tuple[str, ...] | None = None
    workspace: str = WORKSPACE
    bare_root: bool = False
    least_file_bytes: int = 0
    gives: str = ""
    warning: str = ""

    def with_least_limits(self, limits: Limits) -> Limits:
        """Return ``limits`` with the read and write limits raised to what the profile needs."""
        least = self.least_file_bytes
        read, write = max(limits.read_bytes, least), max(limits.write_bytes, least)
        if (read, write) == (limits.read_bytes, limits.write_bytes):
            return limits
        return dataclasses.replace(limits, read_bytes=read, write_bytes=write)


DEFAULT = Profile(
    name="default",
    uid=1000,
    user="agent",
    home="/home/agent",
    read_only_root=True,
    capabilities=GUEST_CAPABILITIES,
    gives="You are uid 1000 without any privilege; only /workspace, /home/agent, /tmp and /var/tmp are writable.",
)
ROOT_ON_REQUEST = dataclasses.replace(
    DEFAULT,
    name="root-on-request",
    read_only_root=False,
    capabilities=None,
    any_user=True,
    gives=(
        "You are uid 1000 without any privilege, and sudo does not work; you may write below /workspace, /home/agent, /tmp and "
        "/var/tmp. "
        "The program that runs this sandbox can change the rest of the system as root."
    ),
)
ROOT = Profile(
    name="root",
    uid=0,
    user="root",
    home="/root",
    read_only_root=False,
    capabilities=None,
    any_user=True,
    gives=(
        "You are root in the container with the engine's default capabilities and may change the whole system, as with apt-get "
        "install. You share the uid of the process that serves this sandbox: signals cannot end it and its memory cannot be "
        "read, but killing other processes of root, or taking resources from it, can end your own commands."
    ),
)
CONFORMANCE = dataclasses.replace(
    ROOT,
    name="conformance",
    file_roots=("/",),
    gives=f"{ROOT.gives} File tools reach every path of the container, too.",
    least_file_bytes=_SUITE_BYTES,
    warning="The profile conformance is for foreign test suites: file tools reach every path of the container, as root.",
)
_E2B_GIVES = "You are the user 'user' (uid 1000), and your home is /home/user. File tools reach every path that you may use."
E2B = dataclasses.replace(
    DEFAULT,
    name="e2b",
    user="user",
    home="/home/user",
    file_roots=("/",),
    least_file_bytes=_SUITE_BYTES,
    gives=f"{_E2B_GIVES} The system is read-only, and sudo gives no privilege.",
)
E2B_ROOT = dataclasses.replace(
    E2B,
    name="e2b-root",
    read_only_root=False,
    capabilities=None,
    any_user=True,
    gives=f"{_E2B_GIVES} sudo gives no privilege; the program that runs this sandbox can start commands as root.",
)
# Of the sandboxes that run the steps of a build, and of nothing else: it cannot be chosen by its name.
BUILD = dataclasses.replace(
    ROOT,
    name="build",
    file_roots=("/",),
    workspace="/.gamebox-build",
    bare_root=True,
    gives="You are root in the container with the engine's default capabilities; what you write becomes a layer of an image.",
)
# For the service alone: no ceiling has it. Owners are set by root, and file tools reach nothing but the volume.
VOLUME = dataclasses.replace(
    DEFAULT,
    name="volume",
    uid=0,
    user="root",
    home="/root",
    capabilities=(*GUEST_CAPABILITIES, "CHOWN", "FOWNER", "DAC_OVERRIDE"),
    any_user=False,
    file_roots=("/volume",),
    least_file_bytes=_SUITE_BYTES,
    gives="The content of a volume is in /volume.",
)
_PROFILES = {profile.name: profile for profile in (DEFAULT, ROOT_ON_REQUEST, ROOT, CONFORMANCE, E2B, E2B_ROOT, VOLUME)}


def find_profile(name: str | Profile) -> Profile:
    """Return the profile of that name; a Profile as it is. Raises SandboxError ``invalid_configuration`` that lists the names."""
    if isinstance(name, Profile):
        return name
    found = _PROFILES.get(name)
    if found is None:
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"There is no profile {name!r}.",
            f"Use one of: {', '.join(each for each in _PROFILES if each != VOLUME.name)}.",
        )
    return found
