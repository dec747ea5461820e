"""Read the archive of an image, in the format of ``docker save``, which anybody may have written. Nothing of it is unpacked.

Everything is bounded before it is read: bytes by the limit of the caller, headers by ``sandbox.transfers.tars``, members and layers
by number.
"""

from __future__ import annotations

import hashlib
import io
import json
import posixpath
import re
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, BinaryIO, TypeGuard, cast

from sandbox.docker.builds.engine_images import MOST_LAYERS
from sandbox.errors import ErrorCode, SandboxError
from sandbox.readers import Hint
from sandbox.text.wording import size, value_text
from sandbox.transfers.tars import ForwardFile, GuardedFile, UnsafeTarError, each_member, open_tar

from .packed import damaged, unpacked

_MOST_JSON = 4 << 20
_MOST_MEMBERS = 10_000
_MOST_FILES = 2_000_000
_MOST_NAMES = 4 << 20
"""Characters of all names of the outer archive, which are kept."""
_CHUNK = 1 << 20
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def unsafe(problem: str) -> SandboxError:
    """Return the error for an archive that is not an image that can be imported."""
    return SandboxError(
        ErrorCode.unsafe_archive,
        f"The archive cannot be imported: {problem}.",
        "Use one that `gamebox image export` or `docker save` wrote, of one image.",
    )


class ArchiveReader:
    """The one image of an archive, checked when this is made: its ``config``, ``names``, layers and the bytes of those.

    Raises SandboxError ``unsafe_archive`` for what contradicts itself, is damaged, or has more than ``most_bytes`` unpacked.
    """

    def __init__(self, file: BinaryIO, most_bytes: int) -> None:
        self._file, self._most_bytes = file, most_bytes
        self.bytes = self._files = 0
        with _worded():
            members = self._members()
            listed = self._listed(members)
            self.names = tuple(str(name)[:512] for name in listed.get("RepoTags") or ())
            self.layers = tuple(_resolved(members, name) for name in listed["Layers"])
            self.config = self._config(members, listed["Config"])
            self.diff_ids = tuple(self.config["rootfs"]["diff_ids"])
            self._sizes = self._check_layers()

    # The outer archive

    @contextmanager
    def _tar(self) -> Iterator[tarfile.TarFile]:
        """Open the archive from its beginning."""
        self._file.seek(0)
        with ExitStack() as ending:
            try:
                tar = ending.enter_context(open_tar(_Bounded(unpacked(self._file), self._most_bytes)))
            except tarfile.ReadError:
                raise unsafe("it is not a tar, plain or compressed with gzip or zstd") from None
            yield tar

    def _members(self) -> dict[str, tarfile.TarInfo]:
        members: dict[str, tarfile.TarInfo] = {}
        kept = 0
        with self._tar() as tar:
            for count, member in enumerate(each_member(tar)):
                name = _normal(member.name)
                if count >= _MOST_MEMBERS:
                    raise unsafe(f"it has more than {_MOST_MEMBERS} members")
                if name in members and not member.isdir():
                    raise unsafe(f"it has {value_text(name)} twice")
                if member.issparse() or member.size < 0:
                    raise unsafe(f"{value_text(name)} is not a plain file")
                kept += len(member.name) + len(member.linkname) + len(member.uname) + len(member.gname)
                if kept > _MOST_NAMES:
                    raise unsafe(f"the names of its members have more than {_MOST_NAMES} characters")
                member.pax_headers = {}  # tarfile has applied them, and a dict of small ones is many times their bytes
                members[name] = member
        return members

    def _listed(self, members: dict[str, tarfile.TarInfo]) -> dict[str, Any]:
        if "manifest.json" not in members:
            raise unsafe("it has no manifest.json")
        listed = self._json(members, "manifest.json")
        if not isinstance(listed, list) or not listed or not all(isinstance(each, dict) for each in listed):
            raise unsafe("its manifest.json lists no image")
        if len(listed) > 1:
            raise unsafe(f"it has {len(listed)} images")
        found: dict[str, Any] = listed[0]
        layers, names = found.get("Layers"), found.get("RepoTags")
        if not _are_texts(layers) or not layers or not isinstance(found.get("Config"), str):
            raise unsafe("its manifest.json does not say what the image is made of")
        if names is not None and not _are_texts(names):
            raise unsafe("its manifest.json does not say what the image is made of")
        if len(layers) > MOST_LAYERS:
            raise unsafe(f"it has {len(layers)} layers, and an engine takes {MOST_LAYERS}")
        return found

    def _config(self, members: dict[str, tarfile.TarInfo], name: str) -> dict[str, Any]:
        found = self._json(members, name)
        rootfs = found.get("rootfs") if isinstance(found, dict) else None
        ids = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
        if not isinstance(found, dict) or not _are_texts(ids) or not all(_DIGEST.fullmatch(each) for each in ids):
            raise unsafe("its configuration does not name its layers")
        if len(ids) != len(self.layers):
            raise unsafe(f"its configuration names {len(ids)} layers, and its manifest {len(self.layers)}")
        return found

    def _json(self, members: dict[str, tarfile.TarInfo], name: str) -> Any:
        wanted = _resolved(members, name)
        if members[wanted].size > _MOST_JSON:
            raise unsafe(f"{value_text(wanted)} has {size(members[wanted].size)}")
        with self._tar() as tar:
            content = _content(tar, wanted).read(_MOST_JSON)
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise unsafe(f"{value_text(wanted)} is not JSON") from None

    # The layers

    def _check_layers(self) -> dict[str, int]:
        """Read each layer whole, and return its bytes unpacked. Their hashes must be those that the configuration names."""
        wanted: dict[str, str] = {}
        for name, digest in zip(self.layers, self.diff_ids, strict=True):
            if wanted.setdefault(name, digest) != digest:
                raise unsafe(f"{value_text(name)} is two layers")
        sizes: dict[str, int] = {}
        with self._tar() as tar:
            for member in each_member(tar):
                name = _normal(member.name)
                if name not in wanted or not member.isreg():
                    continue
                hashed = _Hashed(unpacked(cast("BinaryIO", tar.extractfile(member))), self._most_bytes - self.bytes)
                self._check_files(hashed, name)
                if f"sha256:{hashed.finish()}" != wanted[name]:
                    raise unsafe(f"the layer {value_text(name)} has not the hash that the configuration names")
                sizes[name] = hashed.count
                self.bytes += hashed.count
        if missing := sorted(wanted.keys() - sizes.keys()):
            raise unsafe(f"the layer {value_text(missing[0])} is missing")
        return sizes

    def _check_files(self, layer: _Hashed, name: str) -> None:
        with open_tar(layer) as tar:
            for member in each_member(tar):
                self._files += 1
                if self._files > _MOST_FILES:
                    raise unsafe(f"it has more than {_MOST_FILES} files")
                if member.issparse():
                    raise unsafe(f"{value_text(member.name)} in the layer {value_text(name)} is a sparse file")
                parts = member.name.split("/") + (member.linkname.split("/") if member.islnk() else [])
                if ".." in parts:
                    raise unsafe(f"{value_text(member.name)} in the layer {value_text(name)} leads out of it")

    def layer_contents(self) -> Iterator[tuple[str, int, Iterator[bytes]]]:
        """Yield each layer once, in the order of the archive: its name, its bytes unpacked, and pieces, to be used before the next.

        What was changed since it was checked has another hash, and the engine refuses it.
        """
        with _worded(), self._tar() as tar:
            for member in each_member(tar):
                name = _normal(member.name)
                if name in self._sizes and member.isreg():
                    content = unpacked(cast("BinaryIO", tar.extractfile(member)))
                    yield name, self._sizes[name], _exactly(content, self._sizes[name])


class _Bounded(GuardedFile):
    """A file that raises for a place behind the most bytes as well."""

    def __init__(self, source: BinaryIO, most_bytes: int) -> None:
        super().__init__(source)
        self._most = most_bytes

    def _take(self, count: int) -> bytes:
        found = super()._take(count)
        self._check(self.tell())
        return found

    def seek(self, offset: int, whence: int = 0, /) -> int:
        if whence == io.SEEK_SET:
            self._check(offset)
        return super().seek(offset, whence)

    def _check(self, place: int) -> None:
        if place > self._most:
            raise too_large(self._most)


class _Hashed(ForwardFile):
    """A file that is read once, forward, and hashed."""

    def __init__(self, source: BinaryIO, most_bytes: int) -> None:
        super().__init__(source, "a layer")
        self._most = most_bytes
        self._digest = hashlib.sha256()

    def _take(self, count: int) -> bytes:
        found = super()._take(count)
        self._digest.update(found)
        if self.count > self._most:
            raise too_large(self._most)
        return found

    def finish(self) -> str:
        """Read the rest, and return the hash of all."""
        while self._take(_CHUNK):
            pass
        return self._digest.hexdigest()


def too_large(most_bytes: int) -> SandboxError:
    """Return the error for an archive that unpacks to too much."""
    return SandboxError(
        ErrorCode.unsafe_archive,
        f"The archive cannot be imported: it unpacks to more than {size(most_bytes)}.",
        Hint("If you trust it, allow more bytes.", cli="If you trust it, allow more with --max-size."),
    )


@contextmanager
def _worded() -> Iterator[None]:
    """Turn what the parsers raise into the error for an unsafe archive."""
    try:
        yield
    except SandboxError:
        raise
    except UnsafeTarError as error:
        raise unsafe(str(error)) from None
    except damaged() as error:
        raise unsafe(f"it is damaged ({type(error).__name__})") from error


def _content(tar: tarfile.TarFile, wanted: str) -> BinaryIO:
    for member in each_member(tar):
        if _normal(member.name) == wanted and member.isreg():
            return cast("BinaryIO", tar.extractfile(member))
    raise unsafe(f"{value_text(wanted)} is missing")


def _exactly(source: BinaryIO, count: int) -> Iterator[bytes]:
    left = count
    while left:
        piece = source.read(min(_CHUNK, left))
        if not piece:
            raise unsafe("it was changed while it was read")
        left -= len(piece)
        yield piece


def _resolved(members: dict[str, tarfile.TarInfo], name: str) -> str:
    """Return the name of a file of the archive; ``docker save`` makes links of layers that are there already."""
    wanted = _normal(name)
    found = members.get(wanted)
    if found is not None and found.issym():
        wanted = posixpath.normpath(posixpath.join(posixpath.dirname(wanted), found.linkname))
        found = members.get(wanted)
    if found is None or not found.isreg():
        raise unsafe(f"{value_text(name)} is missing")
    return wanted


def _normal(name: str) -> str:
    normal = posixpath.normpath(name)
    if name.startswith("/") or normal.startswith("../") or "\0" in name:
        raise unsafe(f"the name {value_text(name)} leads out of it")
    return normal


def _are_texts(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)
