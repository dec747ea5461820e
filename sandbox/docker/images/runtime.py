"""The guest's own interpreter and code, as one read-only volume shared by all sandboxes of an engine.

The interpreter is the image ``gamebox/runtime``, tagged by its content. The volume is that image's one folder plus the guest's
modules, so that an edited guest costs a copy and not a build. The name of a volume is a digest of its content, so that several
installations of Gamebox can share an engine. A volume is used only if a second, empty volume, named after it, marks it as checked:
a process that dies half-way leaves a volume that nobody uses.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import os
import tarfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import docker
import docker.errors

from sandbox.docker.engine import locks, podman
from sandbox.docker.engine.client import connect, translated
from sandbox.docker.engine.retries import retry_engine
from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass

from .images import content_of, ensure_image, tag_by_content
from .known_volume import KnownVolume, recall, remember, take_snapshot
from .recipes import Recipe, find_recipe, read_files

MOUNT_POINT = "/.gamebox"
RUNTIME_IMAGE = "gamebox/runtime"
GUEST_PACKAGE = "gamebox_guest"
RUNTIME_LABEL = "dev.gamebox.runtime"
HOST_LABEL = "dev.gamebox.host"
MAKER_LABEL = "dev.gamebox.maker"

ARGV = (
    f"{MOUNT_POINT}/lib/loader",
    "--inhibit-cache",
    "--library-path",
    f"{MOUNT_POINT}/lib",
    f"{MOUNT_POINT}/bin/python3",
    "-I",
    "-S",
    "-B",
    "-X",
    "utf8",
)
"""Starts the interpreter through its own loader, which ignores the image's loader cache, environment and locale."""

START_GUEST = f"import gc; gc.disable(); from {GUEST_PACKAGE}.__main__ import main; main()"
"""The program of the guest. With ``-m`` the interpreter would import ``runpy`` and what that imports: 1.2 MiB, 10 ms.

What is imported is never garbage: not looking for some in it saves 1 to 3 ms of 25.
"""

LAUNCHER = f"{MOUNT_POINT}/bin/launcher"
"""The program that starts commands, see ``guest/commands/launch/launcher.c``."""

CA_BUNDLE = f"{MOUNT_POINT}/etc/ca-certificates.crt"
"""Certificates for the guest's own TLS, inside the sandbox: those that gamebox/base trusts."""

# Makes byte code without the columns of a line: they only underline a part of it in tracebacks.
_COMPACT = ("-X", "no_debug_ranges")
STALE_SECONDS = 24 * 3600.0
KEPT_VOLUMES, KEPT_IMAGES = 16, 8
"""How many with other content stay; of more than that the oldest are removed, even if they are not stale."""
_FRESH_SECONDS = 600.0
"""Younger ones always stay: a process whose locks are not visible here may be about to use one."""
_ATTEMPTS = 3
_OPEN_FILES = 1024
_FINISH_SECONDS = 120
_OTHERS_SECONDS = 20.0
_BEGUN_SECONDS = 15.0
"""A volume, or a container that does not run, that is older than this was left by a process that has died."""
_VERIFIED = "-verified"
_NOTHING_SEEN = ("", "")

_log = logging.getLogger(__name__)
# By client and not by address: docker-py has the same address for every local socket.
_known: weakref.WeakKeyDictionary[docker.DockerClient, _Known] = weakref.WeakKeyDictionary()
_known_lock = threading.Lock()


ETC = {
    "hosts": b"""127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
fe00::0\tip6-localnet
ff00::0\tip6-mcastprefix
ff02::1\tip6-allnodes
ff02::2\tip6-allrouters
""",
    # Where nobody listens: a lookup fails at once. Some resolver libraries do not even load without a name server.
    "resolv.conf": b"nameserver 127.0.0.1\n",
}
"""Files below /etc that the engine's network code writes for other containers (docs/decisions/0011)."""


@dataclass(frozen=True)
class RuntimeVolume:
    """A verified volume. Mount ``name`` read-only at ``mount``; ``argv`` + ("-c", START_GUEST) starts the guest.

    ``etc`` is the engine's path of the folder in it that has the files of ``ETC``, "" if the engine cannot mount them by a path.
    """

    name: str
    mount: str = MOUNT_POINT
    argv: tuple[str, ...] = ARGV
    etc: str = ""
    launcher: str = LAUNCHER

    def is_named_in(self, message: str) -> bool:
        """Return whether an error of the engine is about something in this volume."""
        return self.argv[0] in message or bool(self.etc and self.etc in message)


@dataclass
class _Known:
    """The state of one engine. Its lock is held while the volume is made, which may take minutes."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    volume: RuntimeVolume | None = None


def ensure_runtime(
    client: docker.DockerClient, *, report: Callable[[str], None], image: str = "", image_id: str = ""
) -> RuntimeVolume:
    """Return the runtime volume of this guest code on this engine; make and verify it if it is missing.

    ``image`` was looked at just now, and has the id ``image_id``. The engine is asked once per client, and again after
    `forget_runtime`. The volume stays as long as this process lives. Raises SandboxError: setup_failed, image_build_failed,
    host_disk_full, start_failed, engine_*.
    """
    with _known_lock:
        known = _known.setdefault(client, _Known())
    with known.lock:
        if known.volume is None:
            seen = (image, image_id)
            known.volume = _find_known(client, seen) or _find_or_make(client, report, seen)
        return known.volume


def forget_runtime(client: docker.DockerClient) -> None:
    """Make the next `ensure_runtime` ask the engine again: the volume was removed, or the guest's code has changed."""
    with _known_lock:
        _known.pop(client, None)


def remake_runtime(client: docker.DockerClient, report: Callable[[str], None]) -> RuntimeVolume:
    """Return the runtime volume; make it anew if somebody removed it. Raises SandboxError as ``ensure_runtime`` does."""
    forget_runtime(client)
    return ensure_runtime(client, report=report)


def forget_etc(client: docker.DockerClient, volume: RuntimeVolume) -> None:
    """Use the volume without ``etc`` from now on: this engine mounts nothing by a path."""
    with _known_lock:
        known = _known.setdefault(client, _Known())
    with known.lock:
        known.volume = replace(volume, etc="")


def _find_known(client: docker.DockerClient, seen: tuple[str, str]) -> RuntimeVolume | None:
    """Return the volume that an earlier process used; None if a file that goes into it has changed, or if it is not there."""
    known = recall()
    if known is None:
        return None
    with translated():
        if content_of(client, known.parent, seen[1] if seen[0] == known.parent else "") != known.content:
            return None
    held = locks.hold_shared(known.name)
    with translated():
        verified = _verified(client, known.name)
    if verified is None:
        os.close(held)
    return verified


def _find_or_make(client: docker.DockerClient, report: Callable[[str], None], seen: tuple[str, str]) -> RuntimeVolume:
    before, guest = take_snapshot(), guest_files()
    for attempt in range(1, _ATTEMPTS + 1):
        recipe, name, parent = _named(client, guest, seen if attempt == 1 else _NOTHING_SEEN)
        locks.hold_shared(name)  # for the life of this process, so that no process takes the volume for a stale one
        with translated():
            if verified := _verified(client, name):
                if parent is not None:
                    remember(KnownVolume(name, recipe.parent, parent), before)
                return verified
        try:
            with locks.exclusive("runtime"), translated():
                if not (verified := _verified(client, name)):
                    image_id = ensure_image(client, RUNTIME_IMAGE, report=report)
                    if _named(client, guest)[1] != name:  # its parent was rebuilt meanwhile
                        continue
                    if _claim(client, name):
                        report("making the guest's runtime volume")
                        _fill(client, name, image_id, guest)
                        _remove_stale(client, name, recipe.reference)
                        verified = _verified(client, name)
                    else:
                        verified = _appears(client, name)
        except SandboxError as error:
            if attempt == _ATTEMPTS or not _may_be_interference(error):
                raise
            _log.info("another process works on the runtime volume or its image: %s", error)
            verified = _appears(client, name)
        if verified is not None:
            return verified
    raise SandboxError(
        ErrorCode.setup_failed,
        "The guest's runtime volume was not finished: another process was making it, or kept rebuilding the image gamebox/base.",
        "Wait until the other `gamebox setup` has finished, then try again.",
        retryable=True,
    )


def _may_be_interference(error: SandboxError) -> bool:
    """Return whether another user, or one with another home, may have interfered: our locks do not reach them.

    An image, volume or container was removed or in use, or the volume failed its check, as it does if two processes fill it. Of a
    container that is removed while it starts, Docker says with status 500 that a file of its own is missing.
    """
    cause = error.__cause__
    taken = isinstance(cause, docker.errors.APIError) and (
        cause.status_code in (404, 409) or "no such file or directory" in str(cause)
    )
    return taken or error.code in (ErrorCode.image_not_found, ErrorCode.setup_failed)


def _claim(client: docker.DockerClient, name: str) -> bool:
    """Make the volume, empty, and return True; return False if a process that our locks do not reach is making it.

    Of two that begin together the engine gives one the volume of the other. What was left half-made is removed, but nothing that
    appeared after the look at it: it is another's. Call with our lock.
    """
    volumes, containers = _begun(client, name)
    made = [volumes[name]] if name in volumes else []
    if any(map(_is_made_elsewhere, made + containers)):
        return False
    if name + _VERIFIED in volumes:
        _remove(client, name + _VERIFIED)  # first of all: the mark must not be there while the volume is filled
    for left in containers:
        if left["State"] != "running" or time.time() - left["Created"] > _FINISH_SECONDS:  # else it is at work
            with contextlib.suppress(docker.errors.NotFound):
                client.api.remove_container(left["Id"], force=True, v=True)
    if name in volumes:
        _remove(client, name)
    return not _is_of_another(client.api.create_volume(name, labels=_labels(name)))


def _begun(client: docker.DockerClient, name: str) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """Return the volume and its mark, by name, and the containers that fill it, as far as there are any."""
    listed = client.api.volumes(filters={"name": name}).get("Volumes") or []
    volumes = {each["Name"]: each for each in listed if each["Name"] in (name, name + _VERIFIED)}
    return volumes, client.api.containers(all=True, filters={"label": f"{RUNTIME_LABEL}={name}"})


def _is_made_elsewhere(made: Mapping[str, Any]) -> bool:
    """Return whether this volume or container is of another process that seems to be at work with it."""
    if "Created" not in made:
        return _is_of_another(made) and abs(_age_seconds(made)) < _BEGUN_SECONDS  # the engine's clock may be ahead
    most = _FINISH_SECONDS if made["State"] == "running" else _BEGUN_SECONDS
    return _is_of_another(made) and abs(time.time() - made["Created"]) < most


def _is_of_another(made: Mapping[str, Any]) -> bool:
    return (made.get("Labels") or {}).get(MAKER_LABEL) not in (None, _maker())


class _NotVerifiedError(Exception):
    """The volume that another process makes is there, and not verified yet."""


def _appears(client: docker.DockerClient, name: str) -> RuntimeVolume | None:
    """Wait up to 20 s for a volume that another process makes. Returns None if it is not verified; at once if there is none."""
    policy = retry_engine(_OTHERS_SECONDS, lambda error: isinstance(error, _NotVerifiedError))
    try:
        return policy(_look_for_verified, client, name)
    except _NotVerifiedError:
        return None


def _look_for_verified(client: docker.DockerClient, name: str) -> RuntimeVolume | None:
    """Return the volume, None if there is none. Raises _NotVerifiedError if it is not verified."""
    with translated():
        volumes = client.api.volumes(filters={"name": name}).get("Volumes") or []
        if all(each["Name"] != name for each in volumes):
            return None
        if verified := _verified(client, name):
            return verified
    raise _NotVerifiedError


def runtime_image(client: docker.DockerClient) -> str:
    """Return name and tag of the runtime image that this installation makes on this engine. Raises SandboxError."""
    return _named(client, {})[0].reference


def _named(
    client: docker.DockerClient, guest: dict[str, bytes], seen: tuple[str, str] = _NOTHING_SEEN
) -> tuple[Recipe, str, str | None]:
    """Return the image's recipe with its tag, the volume's name, and the content label of the image's parent, if that is there.

    Tag and name depend on the content, not on the build. ``seen``: name and id of an image that was looked at just now; if it is
    the parent, the engine is not asked again.
    """
    recipe = find_recipe(RUNTIME_IMAGE)
    if recipe is None:
        raise SandboxError(
            ErrorCode.setup_failed, f"The recipe of {RUNTIME_IMAGE} is missing.", "Install gamebox again."
        )
    with translated():
        parent = content_of(client, recipe.parent, seen[1] if seen[0] == recipe.parent else "")
    recipe, content = tag_by_content(recipe, parent)
    return recipe, f"gamebox-runtime-{_digest(content, guest)}", parent


def read_launcher() -> bytes | None:
    """Return the launcher in this host's runtime image; None if there is no engine, or if it does not have that image."""
    try:
        client = connect()
        with translated(), contextlib.closing(client):
            created = client.api.create_container(runtime_image(client), command=[LAUNCHER])
            try:
                chunks, _ = client.api.get_archive(created["Id"], LAUNCHER)
                content = b"".join(chunks)
            finally:
                client.api.remove_container(created["Id"], force=True, v=True)
    except SandboxError as error:
        _log.debug("no launcher from an engine: %s", error)
        return None
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        member = archive.extractfile(archive.next() or tarfile.TarInfo())
        return None if member is None else member.read()


def guest_files() -> dict[str, bytes]:
    """Return the guest's modules in this installation of the package, by their path in the volume."""
    files = read_files(Path(__file__).parents[2] / "guest", ".py")
    files |= {f"etc/{name}": content for name, content in ETC.items()}
    return {f"{GUEST_PACKAGE}/{path}": content for path, content in files.items()}


def _digest(image: str, guest: dict[str, bytes]) -> str:
    total = hashlib.sha256(image.encode())
    for path, content in guest.items():
        total.update(f"\0{path}\0{len(content)}\0".encode() + content)
    return total.hexdigest()[:16]


def _verified(client: docker.DockerClient, name: str) -> RuntimeVolume | None:
    """Return the volume, None if it is missing or was not checked."""
    listed = client.api.volumes(filters={"label": f"{RUNTIME_LABEL}={name}"}).get("Volumes") or []
    folders = {volume["Name"]: str(volume.get("Mountpoint") or "") for volume in listed}
    if not {name, name + _VERIFIED} <= folders.keys():
        return None
    folder = folders[name]
    return RuntimeVolume(name, etc=f"{folder}/modules/{GUEST_PACKAGE}/etc" if folder else "")


def _labels(name: str) -> dict[str, str]:
    return {RUNTIME_LABEL: name, HOST_LABEL: _this_host(), MAKER_LABEL: _maker()}


def _fill(client: docker.DockerClient, name: str, image_id: str, guest: dict[str, bytes]) -> None:
    labels = _labels(name)
    try:
        # Docker copies the image's folder into an empty volume when a container is made, Podman when it is started.
        _run(client, name, image_id, ["-c", "print('filled')"], labels, "filled")
        finish = [*_COMPACT, f"{MOUNT_POINT}/finish.py"]
        _run(client, name, image_id, finish, labels, "complete", _archive(guest))
    except Exception:
        with contextlib.suppress(docker.errors.DockerException):  # another process is filling it
            _remove(client, name)
        raise
    client.api.create_volume(name + _VERIFIED, labels=labels)


def _run(
    client: docker.DockerClient,
    name: str,
    image_id: str,
    arguments: list[str],
    labels: dict[str, str],
    last_word: str,
    arriving: bytes = b"",
) -> None:
    """Run the image's interpreter with the volume at its place; it must print ``last_word``. ``arriving`` is put there before."""
    mounts = [docker.types.Mount(MOUNT_POINT, name, type="volume")]
    host_config = client.api.create_host_config(
        network_mode="none",
        mounts=mounts,
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
        ulimits=podman.ulimits(client, _OPEN_FILES),
        log_config=docker.types.LogConfig(type="json-file"),
    )
    created = client.api.create_container(
        image_id, entrypoint=[*ARGV, *arguments], command=[], host_config=host_config, labels=labels, user="0:0"
    )
    container: str = created["Id"]
    try:
        if arriving:
            client.api.put_archive(container, MOUNT_POINT, arriving)
        client.api.start(container)
        status = client.api.wait(container, timeout=_FINISH_SECONDS)["StatusCode"]
        output = client.api.logs(container).decode(errors="replace").strip()
    finally:
        client.api.remove_container(container, force=True, v=True)
    if status != 0 or output != last_word:
        last = output.splitlines()[-1] if output else "no output"
        raise SandboxError(
            ErrorCode.setup_failed,
            f"The guest's runtime did not pass its check (exit {status}): {last}.",
            "Rebuild it: remove the images gamebox/runtime (`docker image rm`), then run `gamebox setup`.",
            result={"log": output[-4000:]},
        )


def _archive(guest: dict[str, bytes]) -> bytes:
    manifest = {path: hashlib.sha256(content).hexdigest() for path, content in guest.items()}
    files = {"arrived/manifest.json": json.dumps(manifest).encode()}
    files |= {f"arrived/{path}": content for path, content in guest.items()}
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for path in sorted({str(parent) for file in files for parent in Path(file).parents if str(parent) != "."}):
            folder = tarfile.TarInfo(path)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(folder)
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(content), 0o644
            archive.addfile(member, io.BytesIO(content))
    return target.getvalue()


def _remove_stale(client: docker.DockerClient, current: str, image: str) -> None:
    """Remove this host's runtime volumes and images with other content that are old, or too many.

    A volume that a process of this user or any container uses stays, and so does a young one.
    """
    listed = client.api.volumes(filters={"label": f"{HOST_LABEL}={_this_host()}"}).get("Volumes") or []
    ages: dict[str, float] = {}
    for volume in listed:
        name = volume["Labels"].get(RUNTIME_LABEL, "")
        if name not in ("", current):
            ages[name] = min(_age_seconds(volume), ages.get(name, float("inf")))
    for name in choose_stale(ages, KEPT_VOLUMES):
        with locks.if_unused(name) as unused:
            if not unused:
                continue
            try:
                _remove(client, name)
                _remove(client, name + _VERIFIED)  # afterwards: a volume in use keeps its mark
            except docker.errors.APIError as error:
                _log.debug("runtime volume %s stays: %s", name, error)
    now = datetime.now(UTC).timestamp()
    found = client.api.images(name=RUNTIME_IMAGE)
    tags = {tag: now - each["Created"] for each in found for tag in each.get("RepoTags") or []}
    images = {tag: age for tag, age in tags.items() if tag.removeprefix("localhost/").removeprefix("docker.io/") != image}
    for tag in choose_stale(images, KEPT_IMAGES):
        try:
            client.api.remove_image(tag)
        except docker.errors.APIError as error:
            _log.debug("runtime image %s stays: %s", tag, error)


def choose_stale(ages: Mapping[str, float], kept: int) -> list[str]:
    """Return which to remove: those older than a day, and the oldest of more than ``kept``. Young ones stay. Ages in seconds."""
    by_age = sorted(ages, key=lambda name: ages[name])
    return [
        name
        for place, name in enumerate(by_age)
        if ages[name] > STALE_SECONDS or (place >= kept and ages[name] > _FRESH_SECONDS)
    ]


def _age_seconds(volume: Mapping[str, Any]) -> float:
    """Return the age by the engine's record, or 0 without one."""
    try:
        made = datetime.fromisoformat(volume["CreatedAt"])
    except (KeyError, TypeError, ValueError):
        return 0.0
    return (datetime.now(UTC) - made).total_seconds() if made.tzinfo else 0.0


def _remove(client: docker.DockerClient, name: str) -> None:
    try:
        client.api.remove_volume(name)
    except docker.errors.NotFound:
        return


def _maker() -> str:
    """Return an id that all processes share that exclude each other by locks."""
    return hashlib.sha256(f"{_this_host()}\0{locks.locks_folder()}".encode()).hexdigest()[:16]


def _this_host() -> str:
    """Return a hash of this machine's id, as machine-id(5) asks for. All hosts without an id count as one."""
    path = Path("/etc/machine-id")
    return hashlib.sha256(path.read_bytes() if path.exists() else b"").hexdigest()[:16]
