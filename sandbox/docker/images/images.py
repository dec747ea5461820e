"""Provide images: use those on the engine, build missing ones of our own, pull others on request."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import docker
import docker.errors
import docker.utils
import requests.exceptions

from sandbox.docker.engine import locks
from sandbox.docker.engine.client import connect, image_not_found, translated
from sandbox.errors import ErrorCode, SandboxError

from .manifests import read_manifest, write_manifest
from .recipes import Recipe, find_recipe

CONTENT_LABEL = "dev.gamebox.content"
BUILD_LABEL = "dev.gamebox.build.owner"
"""On what a build made (see ``docker.builds``): whose it is. Its files in places of the sandbox's own are copied there."""
_INTERMEDIATE_LABEL = "dev.gamebox.intermediate"
"""The label of build stages that are of no use after the build."""
_BUILD_SILENCE_SECONDS = 900
"""How long a build may be silent: one RUN step with a slow mirror."""
_TAIL_LINES = 12
_REPORT_PREFIX = "gamebox: "
"""The start of a build's lines for the person who started it."""

MakeBase = Callable[[docker.DockerClient, Iterable[str], Callable[[str], None]], str]
"""Makes a base image with these packages from the host's own sources, and returns its name; see ``docker.setup.debian``."""

_log = logging.getLogger(__name__)


class _Facts(NamedTuple):
    """What is kept of an image that was looked at."""

    content: str = ""
    variables: tuple[str, ...] = ()
    is_built: bool = False
    contents: str = ""
    volumes: tuple[str, ...] = ()


_facts: dict[str, _Facts] = {}
_MOST_KNOWN = 256


def ensure_image(
    client: docker.DockerClient,
    name: str,
    *,
    ca_bundle: Path | None = None,
    report: Callable[[str], None],
    rebuild_stale: bool = False,
    pull: bool = False,
    make_base: MakeBase | None = None,
) -> str:
    """Return the id of the image ``name``, which is on the engine then.

    A missing ``gamebox/*`` image with a recipe is built, by one process at a time. One that is older than its recipe is used and
    reported, or rebuilt with ``rebuild_stale`` (its parent is not). ``ca_bundle``: PEM certificates that the built image trusts, by
    default GAMEBOX_CA_BUNDLE or the host's own. ``pull`` gets any other missing image from its registry. ``make_base`` makes the
    parent of our base image if no registry has it. ``report`` gets one line per step that takes time.

    Raises SandboxError: image_not_found, image_build_failed, host_disk_full, setup_failed, engine_*.
    """
    recipe = find_recipe(name, ca_bundle)
    if recipe is None:
        with translated():
            found = _inspect(client, name)
            if found is None and pull:
                if reason := _pull(client, name, report):
                    raise _not_pulled(name, reason)
                found = _inspect(client, name)
        if found is None:
            raise image_not_found(name)
        return found[0]
    if recipe.by_content:
        with translated():
            there = _inspect(client, tag_by_content(recipe, content_of(client, recipe.parent))[0].reference)
        if there is not None:
            return there[0]
    parent_id = ""
    if find_recipe(recipe.parent) is not None:
        parent_id = ensure_image(client, recipe.parent, ca_bundle=ca_bundle, report=report, make_base=make_base)
    wanted = recipe.digest(parent_id)
    with translated():
        if recipe.by_content:
            recipe, wanted = tag_by_content(recipe, content_of(client, recipe.parent))
        if usable := _usable(client, recipe, wanted, rebuild_stale, report):
            return usable
        with locks.exclusive("images"):  # one build at a time: at its end a build removes the left-over stages of all
            return _usable(client, recipe, wanted, rebuild_stale, _silent) or _build(
                client, recipe, wanted, parent_id, report, make_base
            )


def has_image(name: str) -> bool:
    """Return whether the engine has an image. Raises SandboxError ``engine_*``."""
    client = connect()
    with translated():
        return _inspect(client, name) is not None


def tag_by_content(recipe: Recipe, parent: str | None) -> tuple[Recipe, str]:
    """Return a recipe that is ``by_content`` with its tag, and the digest.

    The digest covers what goes in and not image ids, which differ between builds of the same. The parent counts with its content
    label ``parent``; None says that there is no such image, and then it counts with what it will be built from.
    """
    missing = find_recipe(recipe.parent) if parent is None else None
    wanted = recipe.digest(parent or (missing.digest("") if missing is not None else ""))
    return dataclasses.replace(recipe, tag=wanted[:16]), wanted


def content_of(client: docker.DockerClient, name: str, image_id: str = "") -> str | None:
    """Return the content label of an image, "" if it has none; None if there is no such image.

    ``image_id``: its id, if that was just looked at. Raises docker-py's errors.
    """
    known = _facts.get(image_id)
    if known is not None:
        return known.content
    found = _inspect(client, name)
    return None if found is None else found[1]


def image_variables(client: docker.DockerClient, image_id: str) -> list[str]:
    """Return the variables in the configuration of an image, which an id stands for. Raises docker-py's errors."""
    return list(_facts_of(client, image_id).variables)


def image_contents(client: docker.DockerClient, image_id: str) -> str:
    """Return what an image says that it contains, in one line, "" if it says nothing. Raises docker-py's errors."""
    return _facts_of(client, image_id).contents


def image_volumes(client: docker.DockerClient, image_id: str) -> tuple[str, ...]:
    """Return the volumes that an image declares, which an id stands for. Raises docker-py's errors."""
    return _facts_of(client, image_id).volumes


def is_built(client: docker.DockerClient, image_id: str) -> bool:
    """Return whether a build made the image, which an id stands for (see BUILD_LABEL). Raises docker-py's errors."""
    return _facts_of(client, image_id).is_built


def _facts_of(client: docker.DockerClient, image_id: str) -> _Facts:
    if image_id not in _facts:
        _inspect(client, image_id)
    return _facts.get(image_id, _Facts())


def _silent(_line: str) -> None:
    """Report nothing: the first look, before the lock, did."""


def _inspect(client: docker.DockerClient, name: str) -> tuple[str, str] | None:
    """Return the id and content label of an image, or None."""
    try:
        found = client.api.inspect_image(name)
    except docker.errors.ImageNotFound:
        return None
    config = found.get("Config") or {}
    labels = config.get("Labels") or {}
    ident, content = str(found["Id"]), str(labels.get(CONTENT_LABEL, ""))
    variables, volumes = tuple(config.get("Env") or ()), tuple(sorted(config.get("Volumes") or ()))
    _facts[ident] = _Facts(content, variables, bool(labels.get(BUILD_LABEL)), read_manifest(labels), volumes)
    while len(_facts) > _MOST_KNOWN:
        with contextlib.suppress(KeyError, StopIteration, RuntimeError):  # another thread was faster
            del _facts[next(iter(_facts))]
    return ident, content


def _usable(
    client: docker.DockerClient, recipe: Recipe, wanted: str, rebuild_stale: bool, report: Callable[[str], None]
) -> str:
    """Return the id of the image on the engine, or "" if it must be built."""
    found = _inspect(client, recipe.reference)
    if found is None or (found[1] != wanted and rebuild_stale):
        return ""
    if found[1] != wanted:
        report(f"{recipe.name} is older than its recipe; `gamebox setup` rebuilds it")
    return found[0]


def _build(
    client: docker.DockerClient,
    recipe: Recipe,
    wanted: str,
    parent_id: str,
    report: Callable[[str], None],
    make_base: MakeBase | None,
) -> str:
    before = _inspect(client, recipe.reference)
    if parent_id or not recipe.parent:
        built = _build_on(client, recipe, wanted, parent_id, report)
    else:
        built = _build_on_foreign(client, recipe, wanted, report, make_base)
    if before is not None and before[0] != built:
        _remove_replaced(client, before[0])
    client.api.prune_images(filters={"dangling": True, "label": _INTERMEDIATE_LABEL})
    return built


def _build_on_foreign(
    client: docker.DockerClient,
    recipe: Recipe,
    wanted: str,
    report: Callable[[str], None],
    make_base: MakeBase | None,
) -> str:
    """Build on a public image if the engine or a registry has it, else on one that ``make_base`` makes."""
    if _inspect(client, recipe.parent) is not None or not _pull(client, recipe.parent, report):
        try:
            return _build_on(client, recipe, wanted, recipe.parent, report)
        except SandboxError as error:
            if error.code is not ErrorCode.image_build_failed or make_base is None:
                raise
            report(f"building on {recipe.parent} failed; making the base here instead")
            _log.warning("build of %s on %s failed: %s", recipe.name, recipe.parent, error)
    if make_base is None:
        raise SandboxError(
            ErrorCode.image_build_failed,
            f"{recipe.name} needs {recipe.parent}, and this engine could not get it from a registry.",
            f"Try `docker pull {recipe.parent}` on a working network, or `docker load` it; "
            "as root on Debian or Ubuntu, `gamebox setup` builds it here.",
        )
    packages = recipe.files["packages.txt"].decode().split()
    return _build_on(client, recipe, wanted, make_base(client, packages, report), report)


def _pull(client: docker.DockerClient, name: str, report: Callable[[str], None]) -> str:
    """Pull an image with the login of the docker command. Returns why that failed, or ""."""
    report(f"pulling {name}")
    repository, tag = docker.utils.parse_repository_tag(name)
    failed = ""
    try:
        for event in client.api.pull(repository, tag=tag or "latest", stream=True, decode=True):
            failed = str(event.get("error", failed)).strip()  # to the end: an unread answer leaks its connection
    except docker.errors.APIError as error:
        failed = str(error.explanation or error).strip()
    except requests.exceptions.RequestException as error:
        failed = str(error)
    if failed:
        _log.info("no registry has %s: %s", name, failed)
        report(f"could not get {name} from a registry")
    return failed


def _not_pulled(name: str, reason: str) -> SandboxError:
    return SandboxError(
        ErrorCode.image_not_found,
        f"The image {name!r} is not on this engine and could not be pulled: {reason}.",
        "Check the name, and that the engine can reach the registry; a private one needs `docker login`.",
    )


def _build_on(
    client: docker.DockerClient, recipe: Recipe, wanted: str, base: str, report: Callable[[str], None]
) -> str:
    report(f"building {recipe.name}")
    labels = {CONTENT_LABEL: wanted, "dev.gamebox.image": recipe.name}
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    events = client.api.build(
        fileobj=recipe.context(),
        custom_context=True,
        tag=recipe.reference,
        rm=True,
        forcerm=True,
        decode=True,
        timeout=_BUILD_SILENCE_SECONDS,
        buildargs={"BASE": base} if base else {},
        labels=labels,
    )
    failed = ""
    for event in events:  # to the end: an unread answer leaks its connection
        if line := str(event.get("stream", "")).strip():
            _log.debug("%s: %s", recipe.name, line)
            tail.append(line)
            if line.startswith(_REPORT_PREFIX):
                report(line.removeprefix(_REPORT_PREFIX))
        failed = str(event.get("error", failed)).strip()
    built = None if failed else _inspect(client, recipe.reference)
    if built is None:
        raise _build_failed(recipe.name, failed or "the build ended without an image", list(tail))
    if not recipe.by_content:  # nobody works in the runtime
        write_manifest(client, built[0], recipe.reference, labels)
        built = _inspect(client, recipe.reference) or built
    return built[0]


def _build_failed(name: str, reason: str, tail: list[str]) -> SandboxError:
    if "no space left on device" in " ".join([reason, *tail]).lower():
        return SandboxError(
            ErrorCode.host_disk_full,
            f"The engine ran out of disk space while building {name}.",
            "Free some space on the engine's disk, for example with `docker image prune`.",
        )
    return SandboxError(
        ErrorCode.image_build_failed,
        f"Building {name} failed: {reason}.",
        "The last lines of the build: " + " | ".join(tail),
        result={"log": tail},
    )


def _remove_replaced(client: docker.DockerClient, image_id: str) -> None:
    """Remove an image that a newer build replaced, unless another one is built on it."""
    try:
        client.api.remove_image(image_id)
    except docker.errors.APIError as error:
        _log.debug("replaced image %s stays: %s", image_id, error)
