"""Check the arguments of a DockerEnvironment before anything is made. All functions raise SandboxError."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import docker

from sandbox.argument_types import check_variables, is_writable, path_is
from sandbox.docker.engine.client import translated
from sandbox.errors import ErrorCode, SandboxError
from sandbox.text.wording import value_text


def check_inputs(image: str, workspace: Path | None, bundle: Path | None, env: Mapping[str, str]) -> None:
    """Raise ``invalid_configuration`` or ``workspace_invalid`` with the offending value."""
    if not image.strip() or "\0" in image or not is_writable(image):
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"{value_text(image)} is not the name of an image.",
            "Name one, as in gamebox/base.",
        )
    if workspace is not None and not path_is(workspace, Path.is_dir):
        what = "is a file, not a folder" if path_is(workspace, Path.exists) else "does not exist"
        raise SandboxError(
            ErrorCode.workspace_invalid,
            f"The workspace {value_text(str(workspace), 300)} {what}.",
            "Name the folder to copy in.",
        )
    if bundle is not None and not path_is(bundle, Path.is_file):
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"The CA bundle {value_text(str(bundle), 300)} is not a file.",
            "Give a file of PEM certificates.",
        )
    check_variables("DockerEnvironment", env)


def check_runtime(client: docker.DockerClient, name: str) -> None:
    """Raise ``invalid_configuration`` if the engine does not have this OCI runtime."""
    with translated():
        known = sorted(client.info().get("Runtimes") or {})
    if name not in known:
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"The engine has no runtime {name!r}.",
            f"Use one of {', '.join(known)}, or have the engine's administrator add it to daemon.json.",
        )
