"""Set-ups: the dependencies of a repository, installed once by a command in a sandbox and kept as an image.

The command gets the files that say what the repository depends on, and nothing else of it, so the key of what is kept has all that
the command can read: no repository is ever given what another one with other files made.
"""

from __future__ import annotations

import hashlib
import shlex
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sandbox.docker.builds.archives import ArchiveStore
from sandbox.docker.builds.build import IN_CACHE, Build, BuildLimits
from sandbox.docker.builds.layers import ImageStore, StoredImage
from sandbox.docker.builds.log import LogEntry
from sandbox.docker.builds.steps import Copy, Plan, Run, User, Workdir, invalid
from sandbox.docker.container.profiles import find_profile
from sandbox.docker.spec import DEFAULT_IMAGE
from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass
from sandbox.limits import GIB, Limits
from sandbox.network.policy import Network
from sandbox.packages.cache import PackageCache
from sandbox.readers import Hint
from sandbox.text.wording import one_line

from .building import find_bundle, provide_base
from .dependency_files import MOST_BYTES, pack_files, read_dependency_files

OWNER = "setup"
"""The owner of these images among those that builds made."""
MOST_SETUPS, MOST_SETUP_BYTES = 20, 30 * GIB
COMMAND_LABEL = "setup.command"
TIMEOUT_SECONDS = 1800.0
_TAIL_LINES, _MOST_COMMAND = 8, 16 << 10
# Layers that no set-up needs go when they were not used for that long: another process may be building on them.
_PRUNE_SECONDS = 6 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUp:
    """A set-up that is ready: ``image`` is the id of its image. ``cached`` says that nothing had to be run."""

    name: str
    image: str
    cached: bool


def check_command(command: str) -> None:
    """Raise SandboxError ``invalid_arguments`` for a command that cannot be run."""
    if not command.strip() or len(command.encode("utf-8", "replace")) > _MOST_COMMAND or "\0" in command:
        raise invalid("--setup has no command that can be run.", "Give one, as in --setup 'pip install -r requirements.txt'.")


def set_up(
    command: str,
    folder: str | Path,
    *,
    image: str = DEFAULT_IMAGE,
    profile: str = "default",
    cache: PackageCache | None = None,
    network: Network | None = None,
    ca_bundle: Path | None = None,
    limits: Limits | None = None,
    runtime: str | None = None,
    pull: bool = False,
    report: Callable[[str], None] = lambda _line: None,
) -> SetUp:
    """Run ``command`` once for the dependency files in ``folder``, in a sandbox of ``image``, and return what is kept of it.

    The command runs in /workspace, which has copies of these files, as the user of commands in ``profile``, and with its home. It
    reaches ``cache`` (by default this user's own) and what ``network`` opens. What it changed in the workspace, the home and
    elsewhere is in every sandbox of the image. At most 20 are kept; the least recently used go first.

    Raises SandboxError: ``image_build_failed`` with the last lines of the command, after which nothing is kept; ``timeout`` after
    30 minutes; ``path_not_found`` and ``workspace_invalid`` for the folder, and as the engine does.
    """
    check_command(command)
    chosen = find_profile(profile)
    archive = pack_files(read_dependency_files(Path(folder)))
    user = "root" if chosen.uid == 0 else str(chosen.uid)
    name = hashlib.sha256(f"{image}\0{chosen.name}\0{command}\0".encode() + archive).hexdigest()[:24]
    policy = network or Network.none()
    packages = None if policy.mode == "bridge" else cache or PackageCache()
    with tempfile.TemporaryDirectory(prefix="gamebox-setup-") as store:
        archives = ArchiveStore(Path(store), most_bytes=2 * MOST_BYTES)
        steps = (
            User(user),
            Workdir(chosen.home),
            Workdir(chosen.workspace),
            Copy(archives.put([archive]), ".", f"{chosen.workspace}/", owner=f"{chosen.uid}:{chosen.gid or chosen.uid}"),
            Run(_with_home(command, chosen.home), timeout_seconds=TIMEOUT_SECONDS),
        )
        work = Build(
            Plan(base=image, steps=steps, labels=((COMMAND_LABEL, one_line(command)[:200]),)),
            owner=OWNER,
            name=name,
            archives=archives,
            limits=BuildLimits(sandbox=limits or Limits()),
            network=policy,
            cache=packages,
            ca_bundle=find_bundle(ca_bundle),
            runtime=runtime,
            report=_listener(command, len(steps), report),
            provide_base=lambda client, base, say: provide_base(client, base, say, pull=pull),
        )
        try:
            built = work.run()
        except SandboxError as error:
            raise _failed(command, error) from error
    if built.steps_run:
        prune(keep=name)
    return SetUp(name=name, image=built.id, cached=not built.steps_run)


def list_setups() -> tuple[StoredImage, ...]:
    """Return the set-ups that are kept, the last used first. Raises SandboxError as the engine does."""
    return tuple(sorted(ImageStore(OWNER).list(), key=lambda each: -each.used))


def remove_setup(name: str) -> bool:
    """Remove a set-up by its name; return whether there was one. Raises SandboxError."""
    store = ImageStore(OWNER)
    removed = store.remove(name)
    store.prune(_PRUNE_SECONDS)
    return removed


def prune(keep: str = "") -> None:
    """Remove the least recently used set-ups until at most 20, and 30 GiB of them, are left. Raises SandboxError."""
    store, total = ImageStore(OWNER), 0
    for count, each in enumerate(list_setups(), 1):
        total += each.added_bytes
        if (count > MOST_SETUPS or total > MOST_SETUP_BYTES) and keep not in each.names:
            for name in each.names:
                store.remove(name)
    store.prune(_PRUNE_SECONDS)


def _with_home(command: str, home: str) -> str:
    place = shlex.quote(home)
    return f'export HOME={place} PATH={place}/.local/bin:"$PATH"\n{command}'


def _listener(command: str, step: int, report: Callable[[str], None]) -> Callable[[LogEntry], None]:
    """Return a listener to the log that reports once that the command runs, if it does, and warnings."""
    lines, begun = 0, time.monotonic()

    def hear(entry: LogEntry) -> None:
        nonlocal lines
        if entry.step == str(step):
            lines += 1
            if lines == 2 and entry.text != IN_CACHE:
                report(f"setting up: {one_line(command)[:200]}")
        if entry.step == "finalize" and entry.text.startswith("built") and lines > 1 and time.monotonic() - begun > 1:
            report("set up; it is kept for these dependency files")
        if entry.level == "warn":
            report(entry.text)

    return hear


def _failed(command: str, error: SandboxError) -> SandboxError:
    found = error.result if isinstance(error.result, dict) else {}
    if error.code not in (ErrorCode.image_build_failed, ErrorCode.timeout) or "exit_code" not in found:
        return error
    status, lines = found.get("exit_code"), [str(line) for line in found.get("log", ())][-_TAIL_LINES:]
    why = "did not end in time" if error.code is ErrorCode.timeout else f"ended with exit status {status}"
    if status is None and error.code is not ErrorCode.timeout:
        return error
    printed = "\n  ".join((" It printed:", *lines)) if lines else ""
    advice = (
        "Nothing was kept. It sees only files such as requirements.txt, pyproject.toml and package.json, so install what the "
        "project needs and not the project itself, as in 'uv sync --no-install-project' or 'npm ci --ignore-scripts'"
    )
    return SandboxError(
        error.code,
        f"The set-up command {one_line(command)[:200]!r} {why}.{printed}",
        Hint(f"{advice}.", f"{advice}; hosts other than the package indexes need --allow."),
        result={**found, "log": lines},
    )

