"""The recipes in the images/ folder: which images are ours, what each is made of, and a digest of that."""

from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
from importlib import metadata
from pathlib import Path

from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass

CA_BUNDLE_VARIABLE = "GAMEBOX_CA_BUNDLE"
HOST_CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")

C_SOURCES = tuple(Path(__file__).parents[2] / "guest" / path for path in ("commands/launch/launcher.c", "state/tree_states.c"))
"""What is compiled in the runtime image's build, for the machine that runs it: see ``images/runtime/collect.py``."""

BUNDLED_DISTRIBUTIONS = ("beautifulsoup4", "markdownify", "six", "soupsieve", "typing-extensions")
"""Pure Python packages that read web pages in sandboxes, copied from this installation, where a lock pins their hashes."""


@dataclass(frozen=True)
class Recipe:
    """How to make one of our images. ``parent`` is the default of the Dockerfile's BASE.

    A ``by_content`` recipe has its digest as a tag, so that an engine can hold several versions.
    """

    name: str
    parent: str
    files: dict[str, bytes]
    optional: dict[str, bytes]
    """Files of the build context that do not make an image stale: the host's own certificates."""
    by_content: bool = False
    tag: str = "latest"

    @property
    def reference(self) -> str:
        """The name with the tag."""
        return f"{self.name}:{self.tag}"

    def digest(self, parent: str) -> str:
        """Return a digest of everything the image is made of. ``parent`` is the digest of a parent of ours, else ""."""
        total = hashlib.sha256(parent.encode())
        for path, content in sorted(self.files.items()):
            total.update(f"\0{path}\0{len(content)}\0".encode() + content)
        return total.hexdigest()

    def context(self) -> io.BytesIO:
        """Return the build context as a tar: the same bytes for the same files, so that the engine's build cache applies."""
        target = io.BytesIO()
        with tarfile.open(fileobj=target, mode="w") as archive:
            for path, content in sorted({**self.files, **self.optional}.items()):
                member = tarfile.TarInfo(path)
                member.size, member.mode = len(content), 0o644
                archive.addfile(member, io.BytesIO(content))
        target.seek(0)
        return target


def images_folder() -> Path:
    """Return the folder with a folder per image: in an installed package, or beside the package in a checkout."""
    package = Path(__file__).parents[2]
    for folder in (package / "_images", package.parent / "images"):
        if (folder / "base" / "Dockerfile").is_file():
            return folder
    raise SandboxError(
        ErrorCode.setup_failed, f"The image recipes are missing beside {package}.", "Install gamebox again."
    )


def find_recipe(image: str, ca_bundle: Path | None = None) -> Recipe | None:
    """Return the recipe of ``gamebox/NAME`` (with no tag but ``:latest``), or None for an image that is not ours.

    ``ca_bundle``: certificates for the image to trust; by default GAMEBOX_CA_BUNDLE, SSL_CERT_FILE or the host's own.
    Raises SandboxError (invalid_configuration) if a bundle that was named cannot be read.
    """
    found = re.fullmatch(r"gamebox/([a-z0-9][a-z0-9-]*)(?::latest)?", image)
    if found is None or not (folder := images_folder() / found.group(1)).joinpath("Dockerfile").is_file():
        return None
    name = found.group(1)
    files = read_files(folder)
    optional: dict[str, bytes] = {}
    if name == "base":
        named, bundle = _certificates(ca_bundle)
        (files if named else optional)["ca/host.crt"] = bundle
    if name == "runtime":
        files |= bundled_files()
        files |= {path.name: path.read_bytes() for path in C_SOURCES}
    parent = re.search(r"^ARG BASE=(\S+)", files["Dockerfile"].decode(), re.MULTILINE)
    return Recipe(f"gamebox/{name}", parent.group(1) if parent else "", files, optional, by_content=name == "runtime")


def read_files(folder: Path, suffix: str = "") -> dict[str, bytes]:
    """Return the content of the files below ``folder`` whose names end with ``suffix``, in the order of their paths from there.

    Not with pathlib, which takes three times as long; each new process reads some 200 files for its first sandbox.
    """
    found: dict[str, bytes] = {}
    top = os.fspath(folder)
    for place, folders, names in os.walk(top):
        if "__pycache__" in folders:
            folders.remove("__pycache__")
        for name in names:
            path = f"{place}/{name}"
            if name.endswith(suffix) and os.path.isfile(path):  # noqa: PTH113
                with open(path, "rb", buffering=0) as file:  # noqa: PTH123
                    found[path[len(top) + 1 :]] = file.read()
    return dict(sorted(found.items()))


def _certificates(ca_bundle: Path | None) -> tuple[bool, bytes]:
    """Return whether a bundle was named, and its content; the host's own may be missing, and is empty then."""
    named = ca_bundle or (Path(os.environ[CA_BUNDLE_VARIABLE]) if os.environ.get(CA_BUNDLE_VARIABLE) else None)
    path = named or Path(os.environ.get("SSL_CERT_FILE") or HOST_CA_BUNDLE)
    try:
        return named is not None, path.read_bytes()
    except OSError as error:
        if named is None:
            return False, b""
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"The CA bundle {path} cannot be read: {error.strerror}.",
            f"Name a PEM file with {CA_BUNDLE_VARIABLE}.",
        ) from error


def bundled_files() -> dict[str, bytes]:
    """Return the Python files of BUNDLED_DISTRIBUTIONS below ``site/``. Raises SandboxError (setup_failed) if one is missing."""
    files: dict[str, bytes] = {}
    for name in BUNDLED_DISTRIBUTIONS:
        try:
            listed = metadata.files(name) or []
        except metadata.PackageNotFoundError as error:
            raise SandboxError(
                ErrorCode.setup_failed, f"The Python package {name} is not installed.", "Install gamebox again."
            ) from error
        for entry in listed:
            if entry.suffix == ".py" and ".." not in entry.parts and "tests" not in entry.parts:
                files[f"site/{entry}"] = Path(str(entry.locate())).read_bytes()
    return files
