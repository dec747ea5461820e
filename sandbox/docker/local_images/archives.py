"""Write an image of the engine to an archive, and make one from an archive that anybody may have written."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import secrets
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

import docker

from sandbox.docker.builds import engine_images as engine
from sandbox.docker.engine.client import connect, translated
from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass
from sandbox.limits import GIB, MIB
from sandbox.readers import Hint
from sandbox.text.wording import size, value_text

from .archive_reader import ArchiveReader, unsafe
from .building import OWNER
from .image_config import clean_config, left_out
from .names import check_free, importable_name

MOST_BYTES = 32 * GIB
_CHUNK = 1 << 20
# What the engine may need beside the files: its own records, and the layer that it is unpacking.
_SPARE_BYTES = 512 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """An image that was imported, by its name and its id on this engine. ``left_out`` are settings of it that it lost."""

    name: str
    id: str
    layers: int
    bytes: int
    left_out: tuple[str, ...] = ()


def export_image(name: str, file: BinaryIO) -> int:
    """Write an image as a tar that ``import_image`` and ``docker load`` read, and return its bytes.

    Raises SandboxError, OSError.
    """
    client = connect()
    image = engine.inspect(client, name) if name.strip() else None
    try:
        engine.check_usable(image, OWNER, name)
    except SandboxError as error:
        raise SandboxError(
            error.code, error.message, "Use a name that `gamebox image ls` or `docker image ls` lists."
        ) from None
    written = 0
    with translated():
        chunks = iter(client.api.get_image(name, chunk_size=_CHUNK))
    while True:
        with translated():
            chunk = next(chunks, None)
        if chunk is None:
            return written
        file.write(chunk)  # its errors are not the engine's
        written += len(chunk)


@contextlib.contextmanager
def export_file(path: Path, *, replace: bool) -> Iterator[BinaryIO]:
    """Open a file to export to, compressed if its name ends with ``.gz``; it takes its place when the block has ended well.

    Raises SandboxError ``path_exists``, ``io_error``.
    """
    if path.exists() and not replace:
        raise SandboxError(
            ErrorCode.path_exists,
            f"{value_text(str(path), 300)} exists.",
            Hint("Name another file.", cli="Name another file, or add --replace."),
        )
    try:
        descriptor, arriving = tempfile.mkstemp(prefix=".gamebox-", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as raw:
                if path.suffix == ".gz":
                    with gzip.GzipFile(path.name, "wb", compresslevel=1, fileobj=raw, mtime=0) as packed:
                        yield cast("BinaryIO", packed)
                else:
                    yield raw
            Path(arriving).chmod(0o644)
            Path(arriving).replace(path)
        finally:
            Path(arriving).unlink(missing_ok=True)
    except OSError as error:
        raise SandboxError(
            ErrorCode.io_error, f"{value_text(str(path), 300)} cannot be written: {error.strerror}.", "Name a file elsewhere."
        ) from error


def import_image(
    path: Path,
    name: str | None = None,
    *,
    replace: bool = False,
    most_bytes: int = MOST_BYTES,
    report: Callable[[str], None] = lambda _line: None,
) -> Imported:
    """Make an image from an archive, which may have been written by anybody, and give it a name.

    ``name`` is the one that the archive says, if there is just one, unless another is given. An image with that name is replaced
    only with ``replace``, and names of Gamebox's own images only if they are given. The archive is read twice: sizes, names, hashes
    and the configuration are checked before the engine gets anything, and it gets nothing but the layers and the settings of one
    image. Raises SandboxError: ``unsafe_archive``, ``invalid_arguments``, ``host_disk_full``, and as the
    engine does.
    """
    client = connect()
    if name is not None:
        check_free(client, importable_name(name, ()), replace=replace)  # before minutes of reading
    with _opened(path) as file:
        report(f"checking {path.name}")
        archive = ArchiveReader(file, most_bytes)
        wanted = importable_name(name, archive.names)
        check_free(client, wanted, replace=replace)
        _check_disk(client, archive.bytes)
        config = clean_config(archive.config, archive.diff_ids, own=wanted.startswith("gamebox/"))
        _check_platform(client, archive.config)
        report(f"handing {len(archive.layers)} layers, {size(archive.bytes)}, to the engine")
        arriving = f"{engine.repository(OWNER)}:i-{secrets.token_hex(16)}"
        try:
            _load(client, archive, config, arriving)
            image = engine.inspect(client, arriving)
            if image is None:
                raise unsafe("the engine made no image of it")
            check_free(client, wanted, replace=replace)  # it took a while
            engine.give_name(client, image.id, wanted)
        finally:
            engine.take_name(client, arriving)
    return Imported(
        name=wanted.removesuffix(":latest"),
        id=image.id,
        layers=len(archive.layers),
        bytes=archive.bytes,
        left_out=left_out(archive.config),
    )


def _load(client: docker.DockerClient, archive: ArchiveReader, config: bytes, name: str) -> None:
    with translated():
        answer = client.api.load_image(_rewritten(archive, config, name))
        failed = ""
        for event in answer or ():
            failed = str(event.get("error", failed))
    if failed:
        raise unsafe(f"the engine did not take it: {failed[:300].rstrip('.')}")


def _rewritten(archive: ArchiveReader, config: bytes, name: str) -> Iterator[bytes]:
    """Yield an archive of the image as the engine reads it, with what was checked and nothing else."""
    import json

    settings = f"{hashlib.sha256(config).hexdigest()}.json"
    yield from _member(settings, len(config), iter([config]))
    names: dict[str, str] = {}
    for name_there, count, pieces in archive.layer_contents():
        names[name_there] = f"{len(names)}/layer.tar"
        yield from _member(names[name_there], count, pieces)
    if any(each not in names for each in archive.layers):
        raise unsafe("it was changed while it was read")
    layers = [names[each] for each in archive.layers]
    listed = json.dumps([{"Config": settings, "RepoTags": [name], "Layers": layers}]).encode()
    yield from _member("manifest.json", len(listed), iter([listed]))
    yield bytes(2 * tarfile.BLOCKSIZE)


def _member(name: str, count: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
    made = tarfile.TarInfo(name)
    made.size, made.mode = count, 0o644
    yield made.tobuf(tarfile.GNU_FORMAT)
    yield from pieces
    if count % tarfile.BLOCKSIZE:
        yield bytes(tarfile.BLOCKSIZE - count % tarfile.BLOCKSIZE)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        # A named pipe would wait for a writer, for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise SandboxError(
            ErrorCode.path_not_found, f"There is no file {value_text(str(path), 300)}.", "Name what `gamebox image export` wrote."
        ) from None
    except OSError as error:
        raise SandboxError(
            ErrorCode.io_error, f"{value_text(str(path), 300)} cannot be read: {error.strerror}.", "Name a file that you may read."
        ) from error
    try:
        kind = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(kind):
            raise unsafe("it is a folder")
        if not stat.S_ISREG(kind):
            raise unsafe("it is not a file that can be read twice")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


def _check_platform(client: docker.DockerClient, config: dict[str, object]) -> None:
    with translated():
        there = client.version()
    wanted = str(config.get("os")), str(config.get("architecture"))
    if wanted != ("linux", there.get("Arch")):
        raise SandboxError(
            ErrorCode.invalid_arguments,
            f"The image is for {value_text(' on '.join(reversed(wanted)))}, and this engine runs {there.get('Arch')} on linux.",
            "Export it on a machine like this one.",
        )


def _check_disk(client: docker.DockerClient, needed: int) -> None:
    with translated():
        folder = Path(client.info()["DockerRootDir"])
    if folder.is_dir() and shutil.disk_usage(folder).free < needed + _SPARE_BYTES:
        raise SandboxError(
            ErrorCode.host_disk_full,
            f"The image needs {size(needed)}, and {size(shutil.disk_usage(folder).free)} are free in {folder}.",
            "Free some space, for example with `gamebox image prune`.",
        )


