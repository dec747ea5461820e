"""What a DockerEnvironment is asked for, checked before anything is made. All raise SandboxError."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import docker

from sandbox.errors import ErrorCode, SandboxError

from .engine import translated


def check_inputs(image: str, workspace: Path | None, bundle: Path | None, env: Mapping[str, str]) -> None:
    """Raises ``invalid_configuration`` or ``workspace_invalid`` with the offending value."""
    if not image.strip():
        raise SandboxError(
            ErrorCode.invalid_configuration, f"{image!r} names no image.", "Name one, as in gamebox/base."
        )
    if workspace is not None and not workspace.is_dir():
        what = "is a file, not a folder" if workspace.exists() else "does not exist"
        raise SandboxError(
            ErrorCode.workspace_invalid,
            f"The workspace {str(workspace)!r} {what}.",
            "Give the folder that is to be copied in.",
        )
    if bundle is not None and not bundle.is_file():
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"The CA bundle {str(bundle)!r} is no file.",
            "Give a file of PEM certificates.",
        )
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            raise SandboxError(
                ErrorCode.invalid_configuration, f"{name!r} is no name for a variable.", "Give another name."
            )


def check_runtime(client: docker.DockerClient, name: str) -> None:
    """Raises ``invalid_configuration`` where the engine has no such OCI runtime."""
    with translated():
        known = sorted(client.info().get("Runtimes") or {})
    if name not in known:
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"The engine has no runtime {name!r}.",
            f"Use one of {', '.join(known)}, or have the engine's administrator add it to daemon.json.",
        )
