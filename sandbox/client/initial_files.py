"""Files of this host that a remote sandbox starts with."""

from __future__ import annotations

from pathlib import Path

from sandbox.docker.container.profiles import find_profile
from sandbox.errors import ErrorCode, SandboxError
from sandbox.network.variables import trust_variables


def certificates(bundle: Path, profile_name: str) -> tuple[dict[str, str], dict[str, bytes]]:
    """Return the variables and files that make commands trust the certificates of ``bundle``, and those of this host."""
    from sandbox.docker.container import certificates as trust  # it loads docker-py

    profile = find_profile(profile_name)
    path = trust.bundle_path(profile)
    files = {path: trust.merge_host_certificates(bundle), trust.apt_path(profile): trust.apt_configuration(path)}
    return {**trust_variables(path), "APT_CONFIG": trust.apt_path(profile)}, files


def checked_workspace(folder: Path) -> Path:
    """Return the folder. Raises SandboxError ``workspace_invalid`` for anything else."""
    if not folder.is_dir():
        raise SandboxError(
            ErrorCode.workspace_invalid,
            f"The workspace {str(folder)!r} is not a folder.",
            "Give a folder that exists.",
        )
    return folder
