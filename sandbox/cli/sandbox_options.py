"""The options of all commands that make a sandbox, derived from the fields of ``SandboxSpec``, and the sandbox they ask for."""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from sandbox.docker.spec import DEFAULT_KEEP_SECONDS, Flag, SandboxSpec

from .errors import bad_input
from .network_options import attach_kept, cache_of, connection_file, policy_of, services_of
from .remote import REMOTE, refuse_with_service, remote_sandbox, wants_service
from .status_line import Progress

if TYPE_CHECKING:
    from sandbox.docker.environment import DockerEnvironment
    from sandbox.environment.sandboxed import SandboxedEnvironment
    from sandbox.limits import Limits

_SETUP = (
    "Command that installs what the workspace depends on. It sees only files such as requirements.txt or package.json, "
    "and the package cache; it runs once for their content, and every later sandbox starts with what it made."
)
SETUP = Flag("setup", _SETUP, metavar="COMMAND")
FLAGS: dict[str, Flag] = {
    **{flag.parameter: flag for f in fields(SandboxSpec) for flag in f.metadata.get("flags", ())},
    SETUP.parameter: SETUP,
    REMOTE.parameter: REMOTE,
}
"""Every option that asks for something of a sandbox, by the name of its parameter."""

_WITH_IN = frozenset(
    {
        "allow",
        "network",
        "packages",
        "cache",
        "command",
        "timeout",
        "env",
        "stdin",
        "as_json",
        "inside",
        "take_over",
        "forward",
        "network_log",
        "service",
        "service_header",
        "remote",
    }
)
"""The options of ``gamebox run`` that apply to an existing sandbox (--in); all others were settled when it was made."""

OF_KEPT = frozenset({"keep", "keep_seconds", "name"})
"""Options that leave the sandbox running."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_LEAST_BYTES = 1 << 20
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_VARIABLE = re.compile(r"[^\s=]+")


class Kept(NamedTuple):
    """Whether the sandbox stays when the command is over, under which name; ``inside`` is the existing one to use instead."""

    keep: bool = False
    name: str | None = None
    inside: str | None = None
    seconds: float = DEFAULT_KEEP_SECONDS
    take_over: bool = False

    @property
    def stays(self) -> bool:
        """Whether the sandbox is there when the command is over."""
        return self.keep or self.inside is not None

    @classmethod
    def taken_from(cls, asked: dict[str, Any], inside: str | None, take_over: bool) -> Kept:
        """Take the options for keeping a sandbox out of ``asked``. To name it, or to say how long it stays, keeps it."""
        keep, name, seconds = asked.pop("keep"), asked.pop("name"), asked.pop("keep_seconds")
        is_kept = keep or name is not None or seconds is not None
        return cls(is_kept, name, inside, DEFAULT_KEEP_SECONDS if seconds is None else seconds, take_over)


def with_sandbox_options(
    *, without: Collection[str] = (), defaults: Mapping[str, Any] | None = None, helps: Mapping[str, str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a typer command the options of ``FLAGS``: its ``**asked`` gets their values by the names of their parameters.

    An option that the command declares itself, or that is in ``without``, is left out. ``defaults`` and ``helps`` replace those of
    single options.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        *own, _asked = inspect.signature(command, eval_str=True).parameters.values()
        taken = {*(parameter.name for parameter in own), *without}
        added = [
            _parameter(flag, (defaults or {}).get(name, flag.default), (helps or {}).get(name, flag.help))
            for name, flag in FLAGS.items()
            if name not in taken
        ]

        @functools.wraps(command)
        def wrapper(**values: Any) -> None:
            command(**values)

        wrapper.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *added]}
        return wrapper

    return decorate


def _parameter(flag: Flag, default: Any, help_text: str) -> inspect.Parameter:
    names = [f"--{flag.name}", *([] if flag.short is None else [flag.short])]
    if flag.kind is list:
        annotation: Any = list[str]
        default = []
    else:
        annotation = flag.kind if default is not None else flag.kind | None
    option = typer.Option(default, *names, metavar=flag.metavar, help=help_text)
    return inspect.Parameter(flag.parameter, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=annotation)


def checked_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of options as a log has them, paths as texts, with their types. Raises ValueError for any other."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        kind = FLAGS[name].kind
        text = kind in (str, Path)
        if kind is list and isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
            found[name] = tuple(value)
        elif text and isinstance(value, str):
            found[name] = kind(value)
        elif kind is bool and isinstance(value, bool):
            found[name] = value
        elif kind is float and isinstance(value, int | float) and not isinstance(value, bool):
            found[name] = float(value)
        else:
            raise ValueError(f"{name} is {value!r:.80}")
    return found


def sandbox_of(
    asked: Mapping[str, Any],
    *,
    local: bool = False,
    kept: Kept = Kept(),
    report: Callable[[str], None] | None = None,
    timeout_seconds: float | None = None,
    build_image: Callable[[DockerEnvironment], str] | None = None,
) -> SandboxedEnvironment:
    """Return the sandbox that the options ask for, not started. Raises SandboxError for options that cannot be used.

    ``asked`` has values of ``FLAGS``; those that are left out have their defaults. Secrets of services come from the environment.
    ``report`` gets a line for each step of the start that takes time; standard error without it. ``timeout_seconds`` is that of
    commands that name none. ``build_image`` makes the image at the start, for the sandbox that is then made, and returns its id.
    """
    values = {name: flag.default for name, flag in FLAGS.items()} | dict(asked)
    report = report or Progress()
    network, allow = values["network"], values["allow"] or ()
    remote = not local and wants_service(values["remote"])
    if remote:
        refuse_with_service(values, FLAGS)
    cache = cache_of(values["packages"], values["cache"], network or "none")
    if kept.inside is not None:
        services = services_of(values["service"] or (), values["service_header"] or (), os.environ)
        return attach_kept(kept.inside, kept.take_over, network, allow, cache, services, values["network_log"], report, remote)
    policy = policy_of(network or "none", allow)
    check_options(values, local=local, kept=kept)
    limits = _limits_of(values, timeout_seconds)
    variables = dict(variable_of(text) for text in values["env"] or ())
    read_roots = tuple(values["read_root"] or ())
    if local:
        from sandbox.local import LocalEnvironment

        sys.stderr.write("warning: --local runs on this host without isolation\n")
        return LocalEnvironment(workspace=values["workspace"], limits=limits, env=variables, read_roots=read_roots)
    log = connection_file(values["network_log"], network or "none")
    if remote:
        named = {name: values[name] for name in ("image", "workspace", "ca_bundle", "profile")}
        converted = {"limits": limits, "network": policy, "env": variables, "read_roots": read_roots}
        converted["cache"] = values["packages"]
        keep_seconds = kept.seconds if kept.keep else None
        return remote_sandbox({**named, **converted}, name=kept.name, keep_seconds=keep_seconds, log=log)
    from sandbox.docker.environment import DockerEnvironment

    services = services_of(values["service"] or (), values["service_header"] or (), os.environ)
    as_typed = {f.name: values[f.name] for f in fields(SandboxSpec) if f.name in FLAGS}
    converted = {
        "limits": limits,
        "network": policy,
        "env": variables,
        "keep": kept.keep,
        "name": kept.name,
        "keep_seconds": kept.seconds,
        "cache": cache,
        "services": services,
        "read_roots": read_roots,
    }
    made = DockerEnvironment(**{**as_typed, **converted}, report=report)
    made.on_connection = log
    if build_image is not None:
        made.backend.build_image = lambda: build_image(made)
    if values["setup"] is not None:
        _prepare(made, values["setup"], report)
    return made


def check_options(asked: Mapping[str, Any], *, local: bool, kept: Kept = Kept()) -> None:
    """Raise SandboxError for options that no sandbox can have. Nothing is asked of the engine."""
    if local:
        values = {name: flag.default for name, flag in FLAGS.items()} | dict(asked)
        refuse_with_local(_only_of_containers(values), kept)
    if asked.get("setup") is not None:
        from sandbox.docker.local_images.setups import check_command

        check_command(asked["setup"])


def _prepare(made: DockerEnvironment, command: str, report: Callable[[str], None]) -> None:
    """Let the sandbox start from the set-up of its workspace. Raises SandboxError without a workspace."""
    from sandbox.docker.local_images.setups import set_up

    spec, describe_image = made.spec, made.backend.build_image
    workspace = spec.workspace
    if workspace is None:
        raise bad_input("--setup has no folder with dependencies.", "Name one with --workspace.")

    def image_id() -> str:
        return set_up(
            command,
            workspace,
            image=spec.image if describe_image is None else describe_image(),
            profile=spec.profile,
            cache=spec.cache or cache_of(made.network.mode != "bridge", None),
            network=made.network,
            ca_bundle=None if spec.ca_bundle is None else Path(spec.ca_bundle),
            limits=made.limits,
            runtime=spec.runtime,
            pull=spec.pull,
            report=report,
        ).image

    made.backend.build_image = image_id


def _only_of_containers(values: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the options in use that only containers have, by name."""
    if values["remote"]:
        raise bad_input("--local runs on this host, and --remote does not.", "Leave one of them out.")
    asked: dict[str, str | None] = {"network": " open" if values["network"] == "open" else None}
    for name, flag in FLAGS.items():
        value = values[name]
        if not flag.harmless_on_host and name not in OF_KEPT and value not in (None, flag.default, [], ()):
            first = value[0] if flag.kind is list else value
            text = str(first).partition("=")[0] if name.startswith("service") else str(first)
            asked[flag.name] = "" if flag.kind is bool else f" {text}"
    return asked


def _limits_of(values: Mapping[str, Any], timeout_seconds: float | None) -> Limits:
    from dataclasses import replace

    from sandbox.limits import Limits

    disk = values["disk"]
    disk_bytes = None if disk is None else size_of(disk, "a disk")
    limits = Limits(memory_bytes=size_of(values["memory"]), cpus=values["cpus"], disk_bytes=disk_bytes)
    if timeout_seconds is not None:
        limits = replace(limits, timeout_seconds=timeout_seconds)
    # A workspace that fits may be copied in, too.
    return replace(limits, transfer_bytes=max(limits.transfer_bytes, limits.workspace_bytes))


def refuse_with_in(ctx: typer.Context, kept: Kept) -> None:
    """Raise SandboxError for an option that has no effect with --in, or none without it."""
    if kept.inside is None:
        if kept.take_over:
            raise bad_input("--take-over has no effect without --in.", "Name the sandbox with --in, or leave it out.")
        return
    for option in ctx.command.params:
        name = str(option.name)
        source = ctx.get_parameter_source(name)
        if name not in _WITH_IN and source is not None and source.name == "COMMANDLINE":
            raise bad_input(
                f"{option.opts[-1]} has no effect with --in: that sandbox already exists.",
                f"Leave out {option.opts[-1]}.",
            )


def refuse_with_local(options: Mapping[str, str | None], kept: Kept) -> None:
    """Raise SandboxError for an option that only containers have."""
    if kept.keep:
        raise bad_input("--local has no sandbox to keep.", "Leave out --keep and --name, or --local.")
    for name, value in options.items():
        if value is not None:
            raise bad_input(f"--{name}{value} has no effect with --local.", f"Leave out --local, or --{name}.")


def size_of(text: str, what: str = "memory") -> int:
    """Return the bytes of a size such as 512m or 2g (powers of 1024). Raises SandboxError ``invalid_limits``."""
    from sandbox.errors import ErrorCode, SandboxError

    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise SandboxError(
            ErrorCode.invalid_limits, f"{text!r} is not a valid size of {what}.", "Write it as 512m or 2g."
        )
    size = int(float(match.group(1)) * (1 << _UNITS[match.group(2).lower()]))
    if size < _LEAST_BYTES and not match.group(2):
        raise SandboxError(
            ErrorCode.invalid_limits, f"{text!r} is {size} bytes of {what}.", f"Did you mean {text.strip()}g?"
        )
    return size


def variable_of(text: str) -> tuple[str, str]:
    """Return the variable of NAME=VALUE, or of NAME with its value here. Raises SandboxError if it has none."""
    name, given, value = text.partition("=")
    if not _VARIABLE.fullmatch(name) or "\0" in text:
        raise bad_input(
            f"--env {text!r} does not begin with a valid variable name.",
            "Write it as NAME=VALUE, or NAME to pass on your own value.",
        )
    if given:
        return name, value
    if name not in os.environ:
        raise bad_input(f"--env {name} has no value, and the variable is not set here.", f"Write --env {name}=VALUE.")
    return name, os.environ[name]
