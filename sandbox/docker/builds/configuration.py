"""What an image is configured with while its steps are carried out, and the key of each layer in the cache. Pure."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from sandbox.errors import SandboxError
from sandbox.frozen import dataclass

from .steps import Copy, Env, Plan, Run, Step, User, Workdir, invalid

KEY_VERSION = 1
"""Part of every key: raise it when the same step would make another layer."""
_EXPANSION = re.compile(
    r"\\(?P<escaped>[\\$])|\$(?:(?P<plain>[A-Za-z_]\w*)|\{(?P<name>[A-Za-z_]\w*)(?:(?P<how>:?[-+])(?P<word>[^{}]*))?\})"
)
_MOST_EXPANDED = 64 << 10
# Of all variables of an image together, in characters: each program gets them, and each key of a layer has them.
_MOST_ENV, _MOST_VARIABLES = 256 << 10, 1000
# The kernel takes no longer path.
_MOST_PATH = 4096


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
                return dataclasses.replace(self, env=_set(self.env, step.variables))
            case Workdir():
                path = self.absolute(expand(step.path, self.env, _MOST_PATH)).rstrip("/") or "/"
                if len(path) > _MOST_PATH:
                    raise invalid(f"The working directory has {len(path)} characters; at most {_MOST_PATH} fit.", "Shorten it.")
                folders = self.folders if path == "/" else (*self.folders, (path, self.user))
                return dataclasses.replace(self, workdir=path, folders=folders)
            case User():
                return dataclasses.replace(self, user=expand(step.name, self.env, _MOST_PATH))
        return dataclasses.replace(self, folders=())

    def absolute(self, path: str) -> str:
        """Return a path below the working directory as an absolute one; a slash at its end stays."""
        whole = posixpath.normpath(posixpath.join(self.workdir, path))
        whole = "/" + whole.lstrip("/")
        return f"{whole.rstrip('/')}/" if path.endswith(("/", "/.")) or path == "." else whole


def _set(env: Mapping[str, str], variables: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the variables with further ones, whose values use those before. Raises SandboxError ``invalid_arguments``."""
    made, chars = dict(env), sum(len(name) + len(value) for name, value in env.items())
    for name, value in variables:
        chars -= len(name) + len(made[name]) if name in made else 0
        made[name] = expand(value, env)
        chars += len(name) + len(made[name])
        check_variables(len(made), chars)
    return made


def check_variables(count: int, chars: int) -> None:
    """Raise SandboxError ``invalid_arguments`` if an image cannot have so many variables."""
    if count > _MOST_VARIABLES:
        raise invalid(f"There are more than {_MOST_VARIABLES} variables.", "Put values into a file and copy that.")
    if chars > _MOST_ENV:
        raise invalid(f"The variables have more than {_MOST_ENV} characters together.", "Put values into a file and copy that.")


def expand(text: str, env: Mapping[str, str], most: int = _MOST_EXPANDED) -> str:
    """Return the text with $NAME, ${NAME}, ${NAME:-default} and ${NAME:+text} replaced; a backslash keeps a $.

    Raises SandboxError ``invalid_arguments`` if the result has more than ``most`` characters, before it is made.
    """
    chars = 0

    def counted(match: re.Match[str]) -> str:
        nonlocal chars
        found = value(match)
        chars += len(found)
        if chars > most:
            raise _too_long(most)
        return found

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

    expanded = _EXPANSION.sub(counted, text)
    if len(expanded) > most:
        raise _too_long(most)
    return expanded


def _too_long(most: int) -> SandboxError:
    return invalid(f"A text has more than {most} characters with its variables.", "Shorten it.")


def expand_copy(step: Copy, configuration: Configuration) -> Copy:
    """Return the step with its variables replaced. Raises SandboxError ``invalid_arguments``."""
    env = configuration.env
    return dataclasses.replace(
        step,
        source=expand(step.source, env, _MOST_PATH),
        destination=expand(step.destination, env, _MOST_PATH),
        owner=expand(step.owner, env, _MOST_PATH),
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
