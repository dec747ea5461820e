"""Image: what an image is made of, as an immutable value. It is built when it is asked for, or when a sandbox of it starts."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from sandbox.argument_types import HOST_PATH, check_types
from sandbox.docker.builds.steps import Copy, Env, Run, User, Workdir, invalid
from sandbox.frozen import dataclass
from sandbox.text.wording import value_text

if TYPE_CHECKING:
    from sandbox.docker.builds.build import BuiltImage
    from sandbox.docker.builds.log import LogEntry
    from sandbox.limits import Limits
    from sandbox.network.policy import Network
    from sandbox.packages.cache import PackageCache
    from sandbox.pipe.watching import CancelToken

DEBIAN = "gamebox/base"
_NO_ARCHIVE = "0" * 64
_APT = (
    "apt-get -o Acquire::Languages=none update -q && "
    "DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends {packages} "
    "&& apt-get clean && rm -rf /var/lib/apt/lists/*"
)
_PIP = "python3 -m pip install --root-user-action=ignore --no-cache-dir {packages}"


@dataclass(frozen=True, slots=True)
class CopyFiles:
    """Copy files of this host: what ``source``, a name or a pattern below ``root``, stands for when the image is built."""

    root: Path
    source: str
    step: Copy

    def __str__(self) -> str:
        return str(self.step)


ImageStep = Run | CopyFiles | Env | Workdir | User


@dataclass(frozen=True, slots=True)
class Image:
    """What an image is made of. Begin with ``debian``, ``of`` or ``from_dockerfile``; every further call returns a new value.

    ``build`` makes the image, and ``DockerEnvironment(image=...)`` does when it starts. Each step runs in a sandbox of the image
    before it, as root unless ``user`` says otherwise, and its layer is kept: a step whose layer is there already is not run again.
    """

    base: str
    steps: tuple[ImageStep, ...] = ()
    settings: tuple[tuple[str, object], ...] = field(default=(), repr=False)
    """Of a Dockerfile: labels, ports, the entry point and the command, and the shell, by the names of ``Plan``."""

    @classmethod
    def of(cls, name: str) -> Self:
        """Begin with an image that is on the engine, by its name or id. ``gamebox/*`` images are made if they are missing."""
        check_types("Image.of", name=(name, str))
        if not name.strip():
            raise invalid("Image.of() has an empty name.", "Name an image, as in gamebox/base.")
        return cls(name)

    @classmethod
    def debian(cls) -> Self:
        """Begin with ``gamebox/base``: Debian with Python, git and the usual tools, which ``gamebox setup`` makes."""
        return cls(DEBIAN)

    @classmethod
    def from_dockerfile(
        cls,
        path: str | os.PathLike[str] = "Dockerfile",
        *,
        context: str | os.PathLike[str] | None = None,
        arguments: Mapping[str, str] | None = None,
    ) -> Self:
        """Read a Dockerfile with one stage. ``context`` is the folder of its files, by default the one that it is in.

        ``arguments`` are values for its ARGs. Files that ``.dockerignore`` in the context names are left out. Raises SandboxError
        ``invalid_arguments`` with the line that cannot be carried out, and ``path_not_found``.
        """
        from .dockerfiles import read_dockerfile

        check_types("Image.from_dockerfile", path=(path, HOST_PATH), context=(context, HOST_PATH | None))
        file = Path(path)
        folder = Path(context) if context is not None else file.parent
        plan = read_dockerfile(file, folder, arguments or {}, _NO_ARCHIVE)
        root = folder.absolute()
        steps = tuple(CopyFiles(root, _packed(each.source), each) if isinstance(each, Copy) else each for each in plan.steps)
        kept = ("labels", "entrypoint", "command", "ports")
        return cls(plan.base, steps, tuple((name, getattr(plan, name)) for name in kept if getattr(plan, name)))

    def apt(self, *packages: str) -> Self:
        """Install Debian packages without what they only recommend. Raises SandboxError ``invalid_arguments``."""
        return self.run(_APT.format(packages=_quoted("apt", packages)), user="root")

    def pip(self, *requirements: str) -> Self:
        """Install Python packages for the whole system, as in ``pip("requests", "rich>=13")``; in ``/etc/pip.conf`` of
        ``gamebox/base`` this is allowed. Raises SandboxError ``invalid_arguments``.
        """
        return self.run(_PIP.format(packages=_quoted("pip", requirements)), user="root")

    def run(self, command: str | Sequence[str], *, user: str = "", timeout_seconds: float | None = None) -> Self:
        """Run a command of ``/bin/sh``, or a list of a program and its arguments without a shell.

        Raises SandboxError ``invalid_arguments``.
        """
        check_types("Image.run", command=(command, str | Sequence), user=(user, str))
        if isinstance(command, str):
            return self._with(Run(command, user=user, timeout_seconds=timeout_seconds))
        argv = tuple(command)
        for word in argv:
            check_types("Image.run", **{"a word of command": (word, str)})
        return self._with(Run(argv=argv, user=user, timeout_seconds=timeout_seconds))

    def copy(
        self, source: str | os.PathLike[str], destination: str, *, owner: str = "", mode: int | None = None
    ) -> Self:
        """Copy a file, or the content of a folder, of this host to ``destination``.

        The ``destination`` of a file is a folder if it ends with "/". The source is read when the image is built, without following
        links; files that ``.dockerignore`` in a folder names are left out. All files get the same date: only their names, modes
        and bytes decide whether the layer is in the cache. ``owner`` is "user", "user:group" or "" for root; ``mode`` that of
        every file.
        Raises SandboxError ``path_not_found``, ``invalid_arguments``.
        """
        from sandbox.docker.builds.dockerfile import literal

        from .contexts import locate

        check_types("Image.copy", source=(source, HOST_PATH), destination=(destination, str), owner=(owner, str))
        root, name = locate(Path(source))
        return self._with(CopyFiles(root, name, Copy(_NO_ARCHIVE, literal(name), destination, owner, mode)))

    def env(self, variables: Mapping[str, str] | None = None, /, **more: str) -> Self:
        """Set variables for later steps and for the image; values may use earlier ones: ``$NAME``, ``${NAME:-default}``.

        Anybody who has the image can read them: a secret of a build goes into ``build(env=...)``. Raises SandboxError
        ``invalid_arguments``.
        """
        pairs = {**(variables or {}), **more}
        for name, value in pairs.items():
            check_types("Image.env", **{value_text(name): (value, str)})
        if not pairs:
            raise invalid("Image.env() has no variable.", "Give some, as in env(MODE='test').")
        return self._with(Env(tuple(pairs.items())))

    def workdir(self, path: str) -> Self:
        """Set the folder of later steps, which is made if it is missing. Raises SandboxError ``invalid_arguments``."""
        check_types("Image.workdir", path=(path, str))
        return self._with(Workdir(path))

    def user(self, name: str) -> Self:
        """Set the user of later steps, as in "agent" or "root". Commands of a sandbox run as its profile says, whatever the image
        says. Raises SandboxError ``invalid_arguments``.
        """
        check_types("Image.user", name=(name, str))
        return self._with(User(name))

    def build(
        self,
        name: str | None = None,
        *,
        on_log: Callable[[LogEntry], None] | None = None,
        network: Network | None = None,
        env: Mapping[str, str] | None = None,
        ca_bundle: str | os.PathLike[str] | None = None,
        cache: PackageCache | None = None,
        limits: Limits | None = None,
        pull: bool = False,
        force: bool = False,
        cancel: CancelToken | None = None,
    ) -> BuiltImage:
        """Build the image and return it. ``name``, as in "app" or "team/app:2", is for the engine and ``DockerEnvironment``.

        ``on_log`` gets each line of the log as it comes. The steps reach the hosts that ``network`` opens, by default every public
        host and the package sources of this host (docs/how-to/make-an-image.md). ``env`` are variables for the commands of this
        build alone, which may be secret. Commands trust this host's certificates and those of ``ca_bundle``; ``cache`` serves
        pip, uv and npm. ``limits`` are those of each step's sandbox. ``pull`` gets a missing base from its registry, ``force``
        runs every step again, and ``cancel`` ends the build.

        Raises SandboxError: ``image_build_failed`` with the step and the last lines of its output in ``result``,
        ``image_not_found`` for the base, ``invalid_arguments``, ``cancelled``, and as the engine does.
        """
        from .building import build

        return build(
            self,
            name or "",
            on_log=on_log,
            network=network,
            env=env,
            ca_bundle=None if ca_bundle is None else Path(ca_bundle),
            cache=cache,
            limits=limits,
            pull=pull,
            force=force,
            cancel=cancel,
        )

    def _with(self, step: ImageStep) -> Self:
        return replace(self, steps=(*self.steps, step))

    def __str__(self) -> str:
        """Return the base and a digest of the steps; files that they copy count by their places alone."""
        if not self.steps:
            return self.base
        import hashlib

        digest = hashlib.sha256(repr((self.base, self.steps, self.settings)).encode("utf-8", "replace")).hexdigest()[:12]
        return f"{self.base} with {len(self.steps)} {'step' if len(self.steps) == 1 else 'steps'} ({digest})"


def _packed(source: str) -> str:
    """Return what to pack for a source of a Dockerfile: all of its context if it has variables, which the image's decide."""
    return "." if "$" in source or "\\" in source else source


def _quoted(what: str, packages: tuple[str, ...]) -> str:
    """Return packages as words of a command. Raises SandboxError for one that would be read as an option."""
    for package in packages:
        check_types(f"Image.{what}", package=(package, str))
        if not package.strip() or package.startswith("-"):
            raise invalid(f"{value_text(package)} is not a package.", f'Name some, as in {what}("jq"); options need run(...).')
    if not packages:
        raise invalid(f"Image.{what}() has no package.", f'Name some, as in {what}("jq").')
    return shlex.join(packages)
