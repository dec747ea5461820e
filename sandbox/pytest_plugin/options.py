"""Merge the options of a test's sandbox: those of the marker, the command line, ``sandbox_options`` and the ini file."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sandbox.cli.remote import wants_service
from sandbox.docker.spec import SandboxSpec, plain_type
from sandbox.errors import SandboxError
from sandbox.limits import Limits
from sandbox.network.policy import Network
from sandbox.network.services.service import Service
from sandbox.network.services.side_service import SideService
from sandbox.packages.cache import PackageCache

if TYPE_CHECKING:
    from sandbox.docker.services.group import ServiceGroup
    from sandbox.docker.services.running_service import RunningService

    from .recorded import Recorded

# What a test asks of its sandbox: every option of a sandbox that can end with the test, and whether it is one at all.
NAMES = (*(f.name for f in fields(SandboxSpec) if f.metadata.get("pytest")), "local")
# Types of the options whose values are taken as they are.
TYPES: dict[str, type] = {
    **{f.name: kind for f in fields(SandboxSpec) if (kind := plain_type(f.name)) is not None},
    "network": Network,
    "limits": Limits,
    "cache": PackageCache,
    "local": bool,
}
NETWORKS = {"none": Network.none, "open": Network.open, "bridge": Network.bridge}
# What LocalEnvironment has not.
CONTAINER_ONLY = frozenset({*NAMES} - {"limits", "env", "workspace", "track_changes", "read_roots", "local"})


class OptionsError(Exception):
    """An option is wrong; the words say which, where, and what is allowed."""


# What the words of a report are enough for.
FAULTS = (OptionsError, SandboxError)


def of_marks(marks: Iterable[pytest.Mark]) -> dict[str, Any]:
    """Return the checked options of a test's markers; the closest marker wins. Raises OptionsError."""
    found: dict[str, Any] = {}
    for mark in marks:
        if mark.args:
            raise OptionsError(f"@pytest.mark.sandbox takes only named arguments, not {mark.args[0]!r}: {_choices()}")
        found = checked(mark.kwargs, "@pytest.mark.sandbox") | found
    if found.get("local") and (only := _only_of_containers(found)):
        raise OptionsError(
            f"@pytest.mark.sandbox(local=True) contradicts {only}, which only a container has. Leave one out."
        )
    return found


def checked(options: Any, where: str) -> dict[str, Any]:
    """Return the options with values of the right types; None means that an option is not set here. Raises OptionsError."""
    if not isinstance(options, Mapping):
        raise OptionsError(f"{where} must be a dict, not {options!r}.")
    for name in options:
        if name not in NAMES:
            raise OptionsError(f"{where} has no argument {name!r} (given: {name}={options[name]!r}): {_choices()}")
    try:
        return {name: _converted(name, value) for name, value in options.items() if value is not None}
    except (OptionsError, SandboxError) as error:
        raise OptionsError(f"{where}: {error}") from None


def _choices() -> str:
    return f"it takes {', '.join(NAMES)}."


def _converted(name: str, value: Any) -> Any:
    if name == "network" and isinstance(value, str) and value in NETWORKS:
        return NETWORKS[value]()
    if name == "limits" and isinstance(value, Mapping):
        known = [f.name for f in fields(Limits)]
        if wrong := [key for key in value if key not in known]:
            raise OptionsError(f"limits has no {wrong[0]!r}; it takes {', '.join(known)}.")
        return Limits(**value)
    if name == "env" and isinstance(value, Mapping) and all(isinstance(t, str) for pair in value.items() for t in pair):
        return dict(value)
    if name == "services" and (found := _services(value)) is not None:
        return found
    if name == "cache" and isinstance(value, str | Path) and str(value):
        return PackageCache(value)
    if name in ("workspace", "ca_bundle") and isinstance(value, str | Path):
        return Path(value)
    if name == "read_roots" and isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        return tuple(value)
    if name in TYPES and isinstance(value, TYPES[name]) and value != "":
        return value
    allowed = {
        "network": "'none', 'open', 'bridge' or a Network",
        "limits": "a Limits or a dict of its fields",
        "env": "a dict of texts",
        "services": "a list of Services, or a dict of Services and SideServices",
        "workspace": "the path of a folder",
        "ca_bundle": "the path of a file of certificates",
        "cache": "the path of a folder or a PackageCache",
        "read_roots": "a list of folders in the sandbox",
        **{option: "True or False" for option, kind in TYPES.items() if kind is bool},
    }
    raise OptionsError(f"{name}={value!r} is not possible: give {allowed.get(name, 'its name as a text')}.")


def _services(value: Any) -> dict[str, SideService | Service] | None:
    if isinstance(value, list | tuple) and all(isinstance(one, Service) for one in value):
        return {one.name: one for one in value}
    return {key: _service(key, one) for key, one in value.items()} if isinstance(value, Mapping) else None


def _service(name: str, value: Any) -> SideService | Service:
    if isinstance(value, SideService | Service):
        return value
    known = [f.name for f in fields(SideService)]
    if not isinstance(value, Mapping):
        raise OptionsError(
            f"the service {name!r} is {value!r}: give a SideService, a dict of its fields, or a Service."
        )
    if wrong := [key for key in value if key not in known]:
        raise OptionsError(f"the service {name!r} has no {wrong[0]!r}; it takes {', '.join(known)}.")
    if "image" not in value:
        raise OptionsError(f"the service {name!r} has no image.")
    return SideService(**value)


def beside(given: Any, config: pytest.Config) -> ServiceGroup:
    """Return the shared services, not started. Raises OptionsError, SandboxError."""
    from sandbox.docker.services.group import ServiceGroup

    services = checked({"services": given}, "sandbox_shared_services")["services"]
    if put_together(of_command_line(config), of_ini(config)).get("local"):
        pytest.skip("no container is used (--sandbox-local or sandbox_local), and side services are containers")
    return ServiceGroup(services, logging.getLogger(__name__).info)


def with_services(options: dict[str, Any], shared: Mapping[str, RunningService]) -> dict[str, Any]:
    """Return the options of a sandbox with the shared services added; its own service of the same name wins."""
    if not shared or options.get("local"):
        return options
    return {**options, "services": {**shared, **options.get("services", {})}}


def of_command_line(config: pytest.Config) -> dict[str, Any]:
    """Return the checked options of the command line. Raises OptionsError."""
    given = {name: config.getoption(f"sandbox_{name}") for name in ("image", "network", "profile", "cache")}
    if config.getoption("sandbox_local"):
        if clash := next((name for name, value in given.items() if value is not None), None):
            raise OptionsError(f"--sandbox-local and --sandbox-{clash} contradict each other. Leave one out.")
        if config.getoption("sandbox_remote"):
            raise OptionsError("--sandbox-local and --sandbox-remote contradict each other. Leave one out.")
        given["local"] = True
    return checked(given, "command line")


def of_ini(config: pytest.Config) -> dict[str, Any]:
    """Return the checked options of the ini file. Raises OptionsError."""
    given = {
        name: config.getini(f"sandbox_{name}") or None for name in ("image", "network", "profile", "cache", "local")
    }
    return checked(given, "ini file")


def put_together(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merge layers of options; an option of an earlier layer wins.

    Who asks for a LocalEnvironment gets one: what a later layer says that only containers have is a default and left out.
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        usable = {k: v for k, v in layer.items() if not (merged.get("local") and k in CONTAINER_ONLY)}
        merged = usable | merged
    return merged


def reason_to_skip(marked: Mapping[str, Any], options: Mapping[str, Any]) -> str | None:
    """Return why a test that needs a container cannot run without one; None if it can run."""
    if not options.get("local") or marked.get("local"):
        return None
    only = "local=False" if marked.get("local") is False else _only_of_containers(marked)
    return None if only is None else f"the test asks for {only}, which only a container has"


def _only_of_containers(options: Mapping[str, Any]) -> str | None:
    """Return the first option that a LocalEnvironment cannot have."""
    for name in ("image", "profile", "runtime", "ca_bundle", "cache"):
        if name in options:
            return f"{name}={str(options[name])!r}"
    if options.get("services"):
        return f"services ({', '.join(options['services'])})"
    if "network" in options and options["network"] != Network.bridge():
        return f"network={options['network'].mode!r}"
    default, asked = Limits(), options.get("limits", Limits())
    for f in fields(Limits):
        if f.metadata.get("of_containers") and getattr(asked, f.name) != getattr(default, f.name):
            return f"limits.{f.name}={getattr(asked, f.name)!r}"
    return None


def anchored(options: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """Return the options with relative paths of ``workspace`` and ``ca_bundle`` resolved from ``base``."""
    return {**options, **{name: base / options[name] for name in ("workspace", "ca_bundle") if name in options}}


def made(options: Mapping[str, Any], copies: pytest.TempPathFactory, *, remote: bool) -> Recorded:
    """Return an environment with these options, not started. Raises OptionsError, SandboxError.

    It is one of a service if that is asked for (``remote``) or named in the environment, unless the options ask for a
    LocalEnvironment. That works on a copy of the workspace: like a container, it never changes the folder itself.
    """
    from .recorded import RecordedDocker, RecordedLocal

    if wants_service(remote) and not options.get("local"):
        from .remote import made_remote  # httpx takes 100 ms to import

        return made_remote(options)
    given = {name: value for name, value in options.items() if name != "local"}
    if not options.get("local"):
        return RecordedDocker(**given)
    local = {name: value for name, value in given.items() if name not in CONTAINER_ONLY}
    if "workspace" in local and local["workspace"].is_dir():
        copy = copies.mktemp("workspace") / "copy"
        shutil.copytree(local["workspace"], copy, symlinks=True)
        local["workspace"] = copy
    return RecordedLocal(**local)
