"""What an image is configured with while its steps are carried out, and the key of each layer in the cache. Pure."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .steps import Copy, Env, Plan, Run, Step, User, Workdir, invalid

KEY_VERSION = 1
"""Part of every key: raise it when the same step would make another layer."""
_EXPANSION = re.compile(
    r"\\(?P<escaped>[\\$])|\$(?:(?P<plain>[A-Za-z_]\w*)|\{(?P<name>[A-Za-z_]\w*)(?:(?P<how>:?[-+])(?P<word>[^{}]*))?\})"
)
_MOST_EXPANDED = 64 << 10


@dataclass(frozen=True)
class MakeFolders:
    """The step at the end of a plan that makes working directories that no other step has made."""

    folders: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Configuration:
    """Variables, working directory and user of the steps to come.

    ``folders`` are working directories that the next layer is to make, each with its owner.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = "root"
    folders: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of_image(cls, config: Mapping[str, Any]) -> Configuration:
        """Return the configuration that an image of the engine starts its containers with."""
        env = dict(line.split("=", 1) for line in config.get("Env") or () if "=" in line)
        return cls(env, str(config.get("WorkingDir") or "/"), str(config.get("User") or "root"))

    def after(self, step: Step) -> Configuration:
        """Return the configuration after a step. Raises SandboxError ``invalid_arguments``."""
        match step:
            case Env():
                values = {name: expand(value, self.env) for name, value in step.variables}
                return dataclasses.replace(self, env={**self.env, **values})
            case Workdir():
                path = self.absolute(expand(step.path, self.env)).rstrip("/") or "/"
                folders = self.folders if path == "/" else (*self.folders, (path, self.user))
                return dataclasses.replace(self, workdir=path, folders=folders)
            case User():
                return dataclasses.replace(self, user=expand(step.name, self.env))
        return dataclasses.replace(self, folders=())

    def absolute(self, path: str) -> str:
        """Return a path below the working directory as an absolute one; a slash at its end stays."""
        whole = posixpath.normpath(posixpath.join(self.workdir, path))
        whole = "/" + whole.lstrip("/")
        return f"{whole.rstrip('/')}/" if path.endswith(("/", "/.")) or path == "." else whole


def expand(text: str, env: Mapping[str, str]) -> str:
    """Return the text with $NAME, ${NAME}, ${NAME:-default} and ${NAME:+text} replaced; a backslash keeps a $.

    Raises SandboxError ``invalid_arguments`` if the result is too long.
    """

    def value(match: re.Match[str]) -> str:
        if match["escaped"]:
            return match["escaped"]
        name, how = match["plain"] or match["name"], match["how"] or ""
        known = env.get(name)
        there = bool(known) if how.startswith(":") else known is not None
        if how.endswith("-"):
            return (known or "") if there else match["word"]
        if how.endswith("+"):
            return match["word"] if there else ""
        return known or ""

    expanded = _EXPANSION.sub(value, text)
    if len(expanded) > _MOST_EXPANDED:
        raise invalid(f"A text has {len(expanded)} characters with its variables; at most {_MOST_EXPANDED} fit.", "Shorten it.")
    return expanded


def expand_copy(step: Copy, configuration: Configuration) -> Copy:
    """Return the step with its variables replaced. Raises SandboxError ``invalid_arguments``."""
    env = configuration.env
    return dataclasses.replace(
        step,
        source=expand(step.source, env),
        destination=expand(step.destination, env),
        owner=expand(step.owner, env),
    )


def layer_key(
    owner: str, parent_id: str, plan: Plan, configuration: Configuration, step: Run | Copy | MakeFolders, digest: str
) -> str:
    """Return the key of the layer that a step makes: all that goes into it but secrets, the network and the time.

    ``digest`` is that of the bytes of the archive, "" for RUN.
    """
    fields = dataclasses.asdict(step)
    for name in ("force", "timeout_seconds", "archive"):
        fields.pop(name, None)
    shell = plan.shell if isinstance(step, Run) else ()
    return _digest("layer", owner, parent_id, type(step).__name__, fields, digest, shell, _as_data(configuration))


def final_key(owner: str, parent_id: str, configuration: Configuration, plan: Plan) -> str:
    """Return the key of the finished image: its last layer with what it is configured with."""
    kept = (plan.start_command, plan.ready_command, plan.labels, plan.entrypoint, plan.command, plan.ports)
    return _digest("image", owner, parent_id, _as_data(configuration), *kept)


def _as_data(configuration: Configuration) -> list[Any]:
    return [sorted(configuration.env.items()), configuration.workdir, configuration.user, configuration.folders]


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps([KEY_VERSION, *parts], sort_keys=True).encode()).hexdigest()
