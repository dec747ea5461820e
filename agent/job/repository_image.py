"""The image for a repository when the user names none: one that fits its files, or what its devcontainer.json says."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.hub import AgentSpec
from agent.repo.devcontainer import Devcontainer, find_devcontainers, listed, read_devcontainer
from agent.repo.fitting_image import CODEACT, Choice, choose_image
from sandbox.cli.errors import bad_input
from sandbox.cli.network_options import cache_of
from sandbox.cli.remote import wants_service
from sandbox.docker.spec import DEFAULT_IMAGE
from sandbox.errors import SandboxError
from sandbox.text.invisible import visible

if TYPE_CHECKING:
    from sandbox.docker.environment import DockerEnvironment
    from sandbox.docker.local_images.image import Image

_TAIL_LINES = 8

BuildImage = Callable[["DockerEnvironment"], str]


def image_for(repo: Path | None, spec: AgentSpec | None, *, local: bool, sandbox: Mapping[str, Any]) -> Choice | None:
    """Return the choice for a repository on this host's engine; None where there is no choice. Raises SandboxError ``engine_*``.

    An agent keeps its own image if that is not one of ours, or if it needs what only that has: a kernel for Python cells.
    """
    own = DEFAULT_IMAGE if spec is None else spec.image or DEFAULT_IMAGE
    is_needed = own not in (DEFAULT_IMAGE, CODEACT) or (spec is not None and "ipython" in (spec.actions or ()))
    if repo is None or local or is_needed or wants_service(sandbox.get("remote")):
        return None
    from sandbox.docker.images.images import has_image

    return choose_image(repo, has_image, own)


def check_devcontainer(image: str | None, *, local: bool, sandbox: Mapping[str, Any], has_repo: bool) -> None:
    """Raise SandboxError for options that contradict ``--devcontainer``."""
    others = {
        "--image": image is not None,
        "--local": local,
        "--remote": wants_service(sandbox.get("remote")),
        "no repository": not has_repo,
    }
    for name, given in others.items():
        if given:
            raise bad_input(f"--devcontainer has no effect with {name}.", "Leave one of them out.")


def devcontainer_note(repo: Path | None, sandbox: Mapping[str, Any]) -> str:
    """Return one line on a devcontainer.json that is not used without --devcontainer, or "" if it is missing."""
    try:
        paths = () if repo is None or wants_service(sandbox.get("remote")) else find_devcontainers(repo)
    except OSError:
        return ""
    if len(paths) > 1:
        return f"the repository has {listed(paths)}, which are not used; --image names an image"
    return f"the repository has a {listed(paths)}, which is not used; --devcontainer follows it" if paths else ""


def follow_devcontainer(copy: Path, options: dict[str, Any]) -> tuple[dict[str, Any], BuildImage | None]:
    """Return the options of a sandbox with what the devcontainer.json in ``copy`` asks for, and what builds its image.

    ``copy`` is a copy of the repository that nobody else changes. Says on standard error what is used and what is not. Raises
    SandboxError if it is missing or cannot be followed.
    """
    found = read_devcontainer(copy)
    if found is None:
        raise bad_input(
            "--devcontainer: the repository has no devcontainer.json.", "Leave the option out, or name an image with --image."
        )
    _report(found, suggests=options.get("setup") is None)
    variables = [f"{name}={value}" for name, value in found.variables.items()]
    options = {**options, "env": [*variables, *(options.get("env") or ())]}
    if found.image:
        return {**options, "image": found.image}, None
    if not found.dockerfile:
        return options, None
    return _built(copy, found, options)


def _built(copy: Path, found: Devcontainer, options: dict[str, Any]) -> tuple[dict[str, Any], BuildImage]:
    from sandbox.docker.local_images.image import Image

    image = Image.from_dockerfile(copy / found.dockerfile, context=copy / found.context, arguments=found.arguments)

    def build(made: DockerEnvironment) -> str:
        try:
            return _build(image, made)
        except SandboxError as error:
            log = error.result.get("log", ()) if isinstance(error.result, dict) else ()
            for line in list(log)[-_TAIL_LINES:]:
                _say(f"  {line}")
            raise

    return {**options, "image": str(image)}, build


def _build(image: Image, made: DockerEnvironment) -> str:
    """Build the image and return its id. Its steps are a stranger's: they reach what the sandbox may, and the package cache."""
    from sandbox.docker.local_images.building import build, step_titles

    asked = made.spec
    return build(
        image,
        on_log=step_titles(image, _say),
        network=made.network,
        cache=asked.cache or cache_of(made.network.mode != "bridge", None),
        ca_bundle=None if asked.ca_bundle is None else Path(asked.ca_bundle),
        runtime=asked.runtime,
        pull=asked.pull,
    ).id


def _report(found: Devcontainer, *, suggests: bool) -> None:
    what = found.source if found.image or found.dockerfile else "no image"
    _say(f"{visible(found.path, one_line=True)}: uses {what}")
    if found.ignored:
        _say(f"  ignored in it: {', '.join(found.ignored)}")
    if found.command and suggests:
        shown = visible(found.command, one_line=True)[:300]
        _say(f"  it would then run a command, which is not run; to install with it: --setup {shlex.quote(shown)}")


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
