"""SandboxSpec: what is asked of a sandbox, as one value that can be written down, compared and sent.

Every option of a sandbox is one field here. The constructor of ``DockerEnvironment``, the labels of a kept sandbox, ``attach``,
``fork``, the options of the command line and those of the pytest plugin are derived from the fields.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandbox.argument_types import HOST_PATH, check_callable, check_types
from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass
from sandbox.limits import Limits
from sandbox.network.policy import Network
from sandbox.packages.cache import PackageCache
from sandbox.text.wording import value_text

from .container.profiles import Profile
from .local_images.image import Image
from .spec_data import READERS, TO_DATA, plain, type_name

if TYPE_CHECKING:
    from sandbox.network.services.service import Service
    from sandbox.network.services.side_service import SideService

DEFAULT_IMAGE = "gamebox/base"
DEFAULT_KEEP_SECONDS = 3600.0
DEFAULT_MEMORY = "2g"
DEFAULT_CPUS = 2.0


@dataclass(frozen=True, slots=True)
class Flag:
    """An option of the command line for a field, or for a part of one.

    ``kind`` is the type of its value: str, float, bool, Path, or ``list`` for an option that may be repeated. ``harmless_on_host``
    says that ``--local`` keeps it, or can do without it.
    """

    name: str
    help: str
    kind: type = str
    default: Any = None
    metavar: str | None = None
    short: str | None = None
    harmless_on_host: bool = False

    @property
    def parameter(self) -> str:
        """Its name in Python."""
        return self.name.replace("-", "_")


def _asked(
    *flags: Flag,
    accepts: Any = object,
    default: Any = dataclasses.MISSING,
    factory: Any = dataclasses.MISSING,
    pytest: bool = True,
) -> Any:
    """Return a field with its flags. ``pytest`` says that the pytest plugin takes it.

    ``accepts`` is the type that the argument of ``DockerEnvironment`` must have; ``object`` if that is checked elsewhere, or not.
    """
    return field(
        default=default, default_factory=factory, metadata={"flags": flags, "accepts": accepts, "pytest": pytest}
    )


_KEEP = "Leave the sandbox running, without its --network and --allow; print its id on standard error."
_NETWORK = "none (the default), open (all public hosts), or bridge (no rules; UDP, too)."
_ALLOW = "Host that the sandbox may reach, as in example.com or '*.example.org:443'; may be repeated."
_LOG = (
    "Append one JSON line for each connection: host, address, port, rule, outcome and bytes each way, but no content."
)
_PACKAGES = (
    "Let pip, uv, npm, pnpm and yarn install without a network: the host fetches each package once and keeps it in "
    "~/.cache/gamebox/packages. Hosts with private addresses that packages may come from are listed in GAMEBOX_PACKAGE_HOSTS."
)
_CACHE = "Another folder for the packages of --packages, which this implies."
_SERVICE = (
    "Service that the sandbox reaches through this host: with llm=https://api.example.com, it is http://llm.internal/ inside; "
    "may be repeated."
)
_HEADER = (
    "Header that this host adds to a service's requests, with its value from an environment variable: llm:X-Api-Key=API_KEY, "
    "or 'llm:Authorization=Bearer API_KEY'; may be repeated."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """The serializable part of what a sandbox is started with. See ``DockerEnvironment`` for what each field means.

    It holds no secret and nothing that lives in this process: ``env`` are the names of variables, services have no headers and
    no variables, the package cache has no credentials, and the network asks nobody. ``beside`` names what is missing for that
    reason, as in ``services.llm.headers.X-Api-Key``; ``HostParts`` has it.
    """

    image: str = _asked(
        Flag("image", "Image of the sandbox.", default=DEFAULT_IMAGE, harmless_on_host=True),
        accepts=str | Image,
        default=DEFAULT_IMAGE,
    )
    network: Network = _asked(
        Flag("network", _NETWORK, harmless_on_host=True),  # the host's own is no sandbox's: "open" is refused by name
        Flag("allow", _ALLOW, list, metavar="RULE"),
        Flag("network-log", _LOG, Path, metavar="FILE"),
        factory=Network.none,
    )
    limits: Limits = _asked(
        Flag("memory", "Memory limit, as in 512m or 2g.", default=DEFAULT_MEMORY, harmless_on_host=True),
        Flag("cpus", "Maximum number of processors.", float, DEFAULT_CPUS, harmless_on_host=True),
        Flag("disk", "Disk size of workspace and home together, as in 20g; 16g by default."),
        accepts=Limits | None,
        factory=Limits,
    )
    pull: bool = _asked(
        Flag(
            "pull", "Pull the image from its registry if it is not on the engine.", bool, False, harmless_on_host=True
        ),
        default=False,
    )
    workspace: str | None = _asked(
        Flag("workspace", "Folder to copy in; nothing is written back to it.", Path, harmless_on_host=True),
        accepts=HOST_PATH | None,
        default=None,
    )
    env: tuple[str, ...] = _asked(
        Flag(
            "env",
            "Environment variable: K=V, or K for its value here; may be repeated.",
            list,
            metavar="K=V",
            short="-e",
            harmless_on_host=True,
        ),
        accepts=Mapping | None,
        default=(),
    )
    ca_bundle: str | None = _asked(
        Flag(
            "ca-bundle",
            "File of certificates (PEM) that commands trust in addition to those of this host.",
            Path,
            metavar="FILE",
        ),
        accepts=HOST_PATH | None,
        default=None,
    )
    profile: str = _asked(
        Flag("profile", "default, root-on-request, root (may install packages), or conformance.", default="default"),
        accepts=str | Profile,
        default="default",
    )
    runtime: str | None = _asked(
        Flag("runtime", "OCI runtime of the engine to use, as in runsc."), accepts=str | None, default=None
    )
    track_changes: bool = _asked(default=True)  # no flag: what an agent's run is compared with needs it
    keep: bool = _asked(Flag("keep", _KEEP, bool, False), default=False, pytest=False)
    keep_seconds: float = _asked(
        Flag("keep-seconds", "Keep the sandbox until it has not been used for N seconds; 3600 by default.", float),
        accepts=int | float,
        default=DEFAULT_KEEP_SECONDS,
        pytest=False,
    )
    name: str | None = _asked(
        Flag("name", "Keep the sandbox, under this name."), accepts=str | None, default=None, pytest=False
    )
    services: tuple[tuple[str, Service | SideService], ...] = _asked(
        Flag("service", _SERVICE, list, metavar="NAME=UPSTREAM"),
        Flag("service-header", _HEADER, list, metavar="NAME:HEADER=VARIABLE"),
        accepts=Sequence | Mapping | None,
        default=(),
    )
    cache: PackageCache | None = _asked(
        Flag("packages", _PACKAGES, bool, False),
        Flag("cache", _CACHE, Path, metavar="FOLDER"),
        accepts=PackageCache | None,
        default=None,
    )
    read_roots: tuple[str, ...] = _asked(
        Flag(
            "read-root",
            "Folder that file tools may read as well; may be repeated.",
            list,
            metavar="FOLDER",
            harmless_on_host=True,
        ),
        default=(),
    )
    beside: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise SandboxError ``invalid_configuration`` for a secret, without its value."""
        if secret := _secret_in(self.services, self.cache):
            raise _invalid(
                f"A spec of a sandbox cannot hold {secret}: it may be written down.", f"Give {secret} beside the spec."
            )

    def __hash__(self) -> int:
        return hash(self.to_json())  # the mappings of services have none

    def to_data(self) -> dict[str, Any]:
        """Return what differs from the defaults as JSON-ready data, for ``from_data``."""
        default = SandboxSpec()
        return {
            f.name: TO_DATA.get(f.name, plain)(getattr(self, f.name))
            for f in fields(self)
            if getattr(self, f.name) != getattr(default, f.name)
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> SandboxSpec:
        """Read what ``to_data`` wrote; anybody may have written it. Raises SandboxError ``invalid_configuration``.

        The message has no value that might be a secret at the wrong place.
        """
        given: object = data
        if not isinstance(given, Mapping):
            raise _invalid(
                f"The options of a sandbox are an object, not {type_name(given)}.", "Give what to_data returns."
            )
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(data) - known, key=str):
            raise _invalid(f"A sandbox has no option {value_text(unknown[0])}.", f"Use {', '.join(sorted(known))}.")
        return cls(**{name: _read(name, value) for name, value in data.items()})

    def to_json(self) -> str:
        """Return ``to_data`` as one text, the same for equal specs."""
        return json.dumps(self.to_data(), sort_keys=True)

    def without_host(self) -> SandboxSpec:
        """Return what of it stays true on every host: no path, rule or service of the one that made the sandbox.

        ``beside`` names those that commands in the sandbox depend on.
        """
        missing = [name for name in ("ca_bundle", "cache") if getattr(self, name) is not None]
        bridge = self.network.mode == "bridge"
        return replace(
            self,
            pull=False,
            workspace=None,
            network=Network.bridge() if bridge else Network.none(),
            ca_bundle=None,
            services=(),
            cache=None,
            beside=tuple(missing),
        )


# Arguments of ``DockerEnvironment`` that are not in a spec: callables.
CALLABLES = ("approver", "report")


@dataclass(frozen=True, slots=True)
class HostParts:
    """The arguments of a sandbox that a spec does not hold, or not whole, by their names: they may be secret, or live here."""

    whole: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def arguments(self, spec: SandboxSpec) -> dict[str, Any]:
        """Return the arguments of the constructor that make what ``spec`` asks for.

        Raises SandboxError ``invalid_configuration`` for a part that the spec names and that is missing here.
        """
        needed = [*(["env"] if spec.env else []), *(name.partition(".")[0] for name in spec.beside)]
        for name in needed:
            if name not in self.whole:
                raise _invalid(
                    f"The sandbox was made with {name}, which is not part of what is written down.",
                    f"Give {name} again.",
                )
        written = {f.name: getattr(spec, f.name) for f in fields(spec) if f.name != "beside"}
        if not spec.env:
            written["env"] = {}
        return {**written, "services": dict(spec.services), **self.whole}


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Raise TypeError for an argument of ``DockerEnvironment`` whose field does not accept its type. All arguments are given."""
    accepted = {f.name: f.metadata["accepts"] for f in fields(SandboxSpec) if f.name in arguments}
    check_types("DockerEnvironment", **{name: (arguments[name], kind) for name, kind in accepted.items()})
    for name in CALLABLES:
        check_callable("DockerEnvironment", name, arguments[name])


def plain_type(name: str) -> type | None:
    """Return the type of a field that holds one text or truth value, or None if it is of another type."""
    return _PLAIN_TYPES.get(_ANNOTATIONS[name].removesuffix(" | None"))


def write_down(arguments: Mapping[str, Any]) -> tuple[SandboxSpec, HostParts]:
    """Split checked arguments of ``DockerEnvironment`` into what may be written down and the rest.

    ``services`` is a mapping.
    """
    beside: list[str] = []
    whole: dict[str, Any] = {}
    written: dict[str, Any] = {}
    for name, value in arguments.items():
        if name in CALLABLES:
            if value is not None:
                whole[name] = value
                beside.append(name)
            continue
        strip = _STRIP.get(name)
        stripped, missing = (value, []) if strip is None or value is None else strip(value)
        if missing:
            whole[name] = value
            beside += missing
        written[name] = stripped
    if written.get("env"):
        whole["env"] = dict(arguments["env"])
    return SandboxSpec(**written, beside=tuple(beside)), HostParts(whole)


def _path(value: Any) -> tuple[Any, list[str]]:
    return str(value), []


def _env(value: Mapping[str, str]) -> tuple[Any, list[str]]:
    return tuple(value), []  # the names say enough: each has a value beside


def _profile(value: Any) -> tuple[Any, list[str]]:
    return (value, []) if isinstance(value, str) else (value.name, ["profile"])


def _network(value: Network) -> tuple[Any, list[str]]:
    written = replace(value, ask=None, ask_seconds=Network.none().ask_seconds)  # the time is that of ``ask``
    return written, [] if value.ask is None else ["network.ask"]


def _services(value: Mapping[str, Any]) -> tuple[Any, list[str]]:
    written, beside = [], []
    for name, service in value.items():
        secrets = [("headers", key) for key in getattr(service, "headers", ())]
        secrets += [("env", key) for key in getattr(service, "env", None) or ()]
        if not dataclasses.is_dataclass(service):  # one that runs already
            beside.append(f"services.{name}")
            continue
        beside += [f"services.{name}.{part}.{key}" for part, key in secrets]
        lists = {
            f.name: tuple(getattr(service, f.name))
            for f in fields(service)
            if isinstance(getattr(service, f.name), list)
        }
        emptied: dict[str, Any] = {part: {} for part, _ in secrets}
        written.append((name, replace(service, **emptied, **lists)))  # type: ignore[type-var]
    return tuple(written), beside


def _cache(value: PackageCache) -> tuple[Any, list[str]]:
    secret = _secret_urls(value)
    cleared: dict[str, Any] = dict.fromkeys(secret)
    places: dict[str, Any] = {
        "directory": str(value.directory),
        "ca_bundle": None if value.ca_bundle is None else str(value.ca_bundle),
    }
    return replace(value, **places, **cleared), [f"cache.{name}" for name in secret]


def _secret_urls(cache: PackageCache) -> list[str]:
    return [name for name in ("pypi", "npm") if "@" in (getattr(cache, name) or "")]


def _secret_in(services: tuple[tuple[str, Any], ...], cache: PackageCache | None) -> str | None:
    """Return the name of the first secret, or None."""
    for name, service in services:
        for part in ("headers", "env"):
            if getattr(service, part, None):
                return f"services.{name}.{part}"
    urls = [] if cache is None else _secret_urls(cache)
    return f"cache.{urls[0]}" if urls else None


_STRIP: dict[str, Callable[[Any], tuple[Any, list[str]]]] = {
    "workspace": _path,
    "ca_bundle": _path,
    "env": _env,
    "image": lambda value: (str(value), ["image"] if isinstance(value, Image) else []),
    "profile": _profile,
    "network": _network,
    "services": _services,
    "cache": _cache,
    "read_roots": lambda value: (tuple(value), []),
}


def _read(name: str, value: Any) -> Any:
    try:
        reader = READERS.get(name)
        if reader is not None:
            return reader(value)
        kind = plain_type(name)
        if kind is None or not (isinstance(value, kind) or (value is None and _ANNOTATIONS[name].endswith(" | None"))):
            raise TypeError(f"it must be {_ANNOTATIONS[name].removesuffix(' | None')}, not {type_name(value)}")
        return value
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise _invalid(f"The option {name} of a sandbox cannot be read: {error}.", f"Give another {name}.") from error


_PLAIN_TYPES: dict[str, type] = {"str": str, "bool": bool}
_ANNOTATIONS: dict[str, str] = {f.name: str(f.type) for f in fields(SandboxSpec)}


def _invalid(message: str, hint: str) -> SandboxError:
    return SandboxError(ErrorCode.invalid_configuration, message, hint)
