"""Names for images that come from elsewhere: which one an archive may take, and of which image it takes it."""

from __future__ import annotations

import re
from collections.abc import Sequence

import docker

from sandbox.docker.builds import engine_images as engine
from sandbox.docker.builds.names import check_engine_name
from sandbox.errors import ErrorCode, SandboxError
from sandbox.readers import Hint
from sandbox.text.wording import value_text

OURS = re.compile(r"gamebox/[a-z0-9][a-z0-9-]{0,60}(:[A-Za-z0-9_.-]{1,120})?")


def importable_name(asked: str | None, found: Sequence[str]) -> str:
    """Return the name for an image: ``asked``, else the only one that the archive says, with its tag. Raises SandboxError."""
    if asked is not None:
        if OURS.fullmatch(asked):
            return asked if ":" in asked else f"{asked}:latest"
        return check_engine_name(asked)
    if len(found) != 1:
        what = f"{len(found)} names" if found else "no name"
        raise SandboxError(
            ErrorCode.invalid_arguments,
            f"The archive says {what} for its image.",
            Hint("Give the image a name.", cli="Give the image a name with --name."),
        )
    if OURS.fullmatch(found[0]):
        raise SandboxError(
            ErrorCode.invalid_arguments,
            f"The archive says that its image is {value_text(found[0])}, one of Gamebox's own.",
            Hint("Give the image another name.", cli=f"If you trust where it comes from, add --name {found[0]}."),
        )
    return check_engine_name(found[0])


def check_free(client: docker.DockerClient, name: str, *, replace: bool) -> None:
    """Raise SandboxError ``invalid_arguments`` if the engine has another image of that name, unless it is to be replaced."""
    if engine.inspect(client, name) is not None and not replace:
        shown = name.removesuffix(":latest")
        raise SandboxError(
            ErrorCode.invalid_arguments,
            f"The engine already has an image {value_text(shown)}.",
            Hint("Give it another name.", cli="Give the new one another name with --name, or add --replace to take its place."),
        )
