"""Tasks in Harbor's format: a folder with instruction.md, task.toml, tests/test.sh, and sometimes solution/solve.sh."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent.repo.beneath import read_file

from .tasks import BatchTask, Verifier, checked_id, wrong

# Their meaning is not kept here: a task that has them would not be the same task.
_UNKNOWN_PARTS = {
    "steps": "has several steps",
    "environment.gpus": "asks for GPUs",
    "environment.tpu": "asks for a TPU",
    "environment.mcp_servers": "needs MCP servers",
    "environment.healthcheck": "has a healthcheck",
    "verifier.environment": "has an environment of its own for the verifier",
    "verifier.collect": "collects from further services",
}
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
MOST_TEXT_BYTES = 4 << 20


def is_harbor_task(folder: Path) -> bool:
    """Return whether ``folder`` is such a task."""
    return (folder / "task.toml").is_file()


def harbor_task(folder: Path, ident: Any = None, env: Mapping[str, str] | None = None) -> BatchTask:
    """Read a task; its id is the folder's name unless another is given. ``env`` has the host's variables that it may
    ask for.

    Raises SandboxError ``invalid_configuration``, also for a task that asks for another variable.
    """
    handed = {} if env is None else env
    config, instruction, declared = _read(folder)
    image = _checked(config, folder)
    environment, agent, verifier = (_at(config, name) or {} for name in ("environment", "agent", "verifier"))
    mode = environment.get("network_mode", "public")
    memory = environment.get("memory_mb")
    solution = folder / "solution"
    return BatchTask(
        id=checked_id(ident if ident is not None else folder.resolve().name, str(folder)),
        task=instruction,
        image=image,
        profile="conformance",  # such tasks work as root anywhere in the file system
        folder=environment.get("workdir"),
        env=_variables(environment, folder, handed),
        memory=f"{memory}m" if isinstance(memory, int) and memory > 0 else None,
        cpus=_seconds(environment, "cpus", folder),
        network={"no-network": "none", "public": "open", "allowlist": "allow"}.get(mode, "none"),
        allow=tuple(str(host) for host in environment.get("allowed_hosts") or ()),
        seconds=_seconds(agent, "timeout_sec", folder),
        verifier=_verifier(verifier, folder, handed),
        solution=solution if (solution / "solve.sh").is_file() else None,
        declared=declared,
    )


def _checked(config: Mapping[str, Any], folder: Path) -> str:
    """Return the task's image. Raises SandboxError for a task that needs something that batches do not provide."""
    for part, what in _UNKNOWN_PARTS.items():
        if _at(config, part):
            raise wrong(f"The task {folder} {what} ({part}), which gamebox batch does not support.", "Run it with Harbor.")
    environment = _at(config, "environment") or {}
    image = environment.get("docker_image")
    if not isinstance(image, str) or not image:
        raise wrong(
            f"The task {folder} names no image.",
            "Build its environment/Dockerfile, and name the image as docker_image under [environment] in task.toml.",
        )
    if environment.get("os", "linux") != "linux":
        raise wrong(f"The task {folder} is for {environment['os']!r:.40}.", "Only tasks for Linux can be run.")
    if not (folder / "tests" / "test.sh").is_file():
        raise wrong(f"The task {folder} has no tests/test.sh.", "Without it nothing gives a reward.")
    return image


def _verifier(section: Mapping[str, Any], folder: Path, handed: Mapping[str, str]) -> Verifier:
    return Verifier(
        folder=folder / "tests",
        seconds=_seconds(section, "timeout_sec", folder) or 600.0,
        env=_variables(section, folder, handed),
        fresh=section.get("environment_mode") == "separate",
    )


def _read(folder: Path) -> tuple[dict[str, Any], str, str]:
    try:
        texts = [read_file(folder / name, MOST_TEXT_BYTES).decode("utf-8") for name in ("task.toml", "instruction.md")]
        return tomllib.loads(texts[0]), texts[1], texts[0]
    except (OSError, ValueError, RecursionError) as error:
        raise wrong(
            f"The task {folder} cannot be read: {error}.", "It needs task.toml and instruction.md, as UTF-8."
        ) from error


def _at(config: Mapping[str, Any], part: str) -> Any:
    value: Any = config
    for name in part.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _seconds(section: Mapping[str, Any], name: str, folder: Path) -> float | None:
    value = section.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise wrong(f"The task {folder}: {name} is {value!r:.40}.", "Give a positive number.")
    return float(value)


def _variables(section: Mapping[str, Any], folder: Path, handed: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a section, with ${NAME} and ${NAME:-default} replaced.

    Only variables that the user has named are used: the author of a task is a stranger, and this process has keys in
    its environment.
    """

    def of(match: re.Match[str]) -> str:
        value = handed.get(match[1], match[2])
        if value is None:
            raise wrong(
                f"The task {folder} asks for the variable {match[1]} of this host.",
                f"To allow that, pass it with --env {match[1]}, or set it with --env {match[1]}=VALUE.",
            )
        return value

    section_env = section.get("env") or {}
    if not isinstance(section_env, Mapping):
        raise wrong(f"The task {folder}: env is {section_env!r:.40}.", "Give a table of texts.")
    return {str(name): _VARIABLE.sub(of, str(value)) for name, value in section_env.items()}
