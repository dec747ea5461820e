"""The steps of a build as frozen values, checked when they are made."""

from __future__ import annotations

import re

from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass
from sandbox.text.wording import value_text

MOST_TEXT = 64 << 10
"""Bytes of a command, a path or a value: the kernel takes no more than 128 KiB for one argument."""
_ARCHIVE = re.compile(r"[0-9a-f]{64}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,200}")
_PORT = re.compile(r"[0-9]{1,5}(/(tcp|udp|sctp))?")
_OWN_LABELS = "dev.gamebox."


@dataclass(frozen=True, slots=True)
class Run:
    """Run a command of the shell, as ``user`` or as the user of the steps before it.

    ``argv`` runs a program without a shell instead. ``timeout_seconds`` is at most what the limits of the build allow.
    ``env`` are variables of this command alone, which are no part of the image; those of the image go before them.
    ``force`` runs it though its layer is in the cache; every later step runs then, too.
    """

    command: str = ""
    argv: tuple[str, ...] = ()
    user: str = ""
    env: tuple[tuple[str, str], ...] = ()
    timeout_seconds: float | None = None
    force: bool = False

    def __post_init__(self) -> None:
        if bool(self.command.strip()) == bool(self.argv):
            raise invalid("RUN has no command.", "Give command or argv.")
        _check_texts("RUN", self.command, self.user, *self.argv)
        _check_variables("RUN", self.env)
        if self.timeout_seconds is not None and not 0 < self.timeout_seconds < float("inf"):
            raise invalid(f"The timeout of a RUN is {self.timeout_seconds}.", "Give seconds, more than 0.")

    def __str__(self) -> str:
        return f"RUN {self.command or list(self.argv)}"


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy files of an archive (tar, may be compressed with gzip) to ``destination``, as COPY of a Dockerfile does.

    ``archive`` is its name in the ``ArchiveStore``. ``source`` names a file, a folder or a pattern in it, relative to its root;
    the content of a folder is merged into the destination. The ``destination`` is a folder if it ends with /, or if the source is a
    pattern; a relative one is below the working directory. ``owner`` is "user", "user:group" or "" for root, ``mode`` None for
    the modes in the archive.
    """

    archive: str
    source: str
    destination: str
    owner: str = ""
    mode: int | None = None
    force: bool = False

    def __post_init__(self) -> None:
        _check_texts("COPY", self.source, self.destination, self.owner)
        if not _ARCHIVE.fullmatch(self.archive):
            raise invalid(f"{value_text(self.archive)} is not the name of an archive.", "Give its 64 hexadecimal digits.")
        if not self.destination:
            raise invalid(f"COPY of {value_text(self.source)} has no destination.", "Name a file or a folder of the image.")
        if self.mode is not None and not 0 <= self.mode <= 0o7777:
            raise invalid(f"{self.mode:#o} is not the mode of a file.", "Give one as in 0o755.")

    def __str__(self) -> str:
        return f"COPY {self.source} {self.destination}"


@dataclass(frozen=True, slots=True)
class Env:
    """Set variables for later steps and for the image. Values may use earlier variables: $NAME, ${NAME}, ${NAME:-default}."""

    variables: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        _check_variables("ENV", self.variables)

    def __str__(self) -> str:
        return f"ENV {' '.join(name for name, _ in self.variables)}"


@dataclass(frozen=True, slots=True)
class Workdir:
    """Set the working directory, relative to the one before. It is made if it is missing, and belongs to the current user."""

    path: str

    def __post_init__(self) -> None:
        _check_texts("WORKDIR", self.path)
        if not self.path:
            raise invalid("WORKDIR has no path.", "Name a folder of the image.")

    def __str__(self) -> str:
        return f"WORKDIR {self.path}"


@dataclass(frozen=True, slots=True)
class User:
    """Set the user of later steps and of the image: a name or a number of the image."""

    name: str

    def __post_init__(self) -> None:
        _check_texts("USER", self.name)
        if not self.name:
            raise invalid("USER has no name.", "Name a user of the image, such as root.")

    def __str__(self) -> str:
        return f"USER {self.name}"


Step = Run | Copy | Env | Workdir | User


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a build does. ``base`` is an image on the engine, by name or id, or one that the same owner built.

    ``start_command`` is what a sandbox of the image runs at its start, and ``ready_command`` tells by its exit status 0 that it is
    ready; both are kept with the image and not part of its layers. ``labels`` are further ones of the image. ``entrypoint`` and
    ``command`` replace those of the base if they are given, ``ports`` are added. ``shell`` runs the commands of ``Run``.
    ``force`` runs every step.
    """

    base: str
    steps: tuple[Step, ...] = ()
    start_command: str = ""
    ready_command: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    entrypoint: tuple[str, ...] | None = None
    command: tuple[str, ...] | None = None
    ports: tuple[str, ...] = ()
    shell: tuple[str, ...] = ("/bin/sh", "-c")
    force: bool = False

    def __post_init__(self) -> None:
        texts = (self.base, self.start_command, self.ready_command, *(self.entrypoint or ()), *(self.command or ()), *self.shell)
        _check_texts("The plan", *texts, *(value for _, value in self.labels))
        if not self.base.strip():
            raise invalid("The plan has no base image.", "Name one, such as gamebox/base.")
        if not self.shell:
            raise invalid("The plan has an empty shell.", 'Give program and options, as in ("/bin/sh", "-c").')
        for name, _ in self.labels:
            if not _LABEL.fullmatch(name) or name.startswith(_OWN_LABELS):
                raise invalid(f"An image cannot have the label {value_text(name)}.", f"{_OWN_LABELS} is for Gamebox itself.")
        for port in self.ports:
            if not _PORT.fullmatch(port):
                raise invalid(f"{value_text(port)} is not a port.", "Give one such as 8080 or 53/udp.")


def invalid(message: str, hint: str = "") -> SandboxError:
    """Return the error for a plan that cannot be carried out."""
    return SandboxError(ErrorCode.invalid_arguments, message, hint)


def _check_variables(where: str, variables: tuple[tuple[str, str], ...]) -> None:
    for name, value in variables:
        if not _VARIABLE.fullmatch(name):
            raise invalid(f"{value_text(name)} is not a name for a variable.", "Use letters, digits and underscores.")
        _check_texts(where, value)


def _check_texts(where: str, *texts: str) -> None:
    for text in texts:
        if "\0" in text:
            raise invalid(f"{where} has a NUL character.", "Take it out.")
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise invalid(f"{where} has text that is not valid Unicode.", "Take it out.") from None
        if size > MOST_TEXT:
            raise invalid(f"{where} has a text of {size} bytes; at most {MOST_TEXT} fit.", "Put it into a file and copy that.")
