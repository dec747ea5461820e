"""What clients of E2B ask for, as a sandbox of ours. Fields that are not known are ignored; what changes the meaning is refused."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_network
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandbox.aio import AsyncEnvironment
from sandbox.docker.spec import SandboxSpec
from sandbox.environment.base import Environment
from sandbox.service.fleet.waking import OPTION as WAKE
from sandbox.service.http.bodies import CreateSandbox, Metadata, NetworkBody, Rules
from sandbox.service.http.payloads.json_text import read_json
from sandbox.service.http.problems import Problem, ProblemCode
from sandbox.service.ports.traffic import MASK, Traffic, check_mask
from sandbox.service.ports.traffic import OPTION as TRAFFIC
from sandbox.service.settings import Settings
from sandbox.service.store.tables.snapshots import SnapshotRecord
from sandbox.service.templates.templates import Found
from sandbox.service.tenants.ceiling import forbidden
from sandbox.service.tenants.rules import Ceiling
from sandbox.service.volumes.volumes import OPTION as VOLUMES

from .envd.access import OPTIONS
from .templates.launch import launch

# Times to live of requests that name none: of the first version of the API, and of the second.
SECONDS = {1: 15.0, 2: 300.0}
EVERYWHERE = ("0.0.0.0/0", "::/0")
MOST_SECONDS = 10**9


def _at_every_port(rule: str) -> str:
    """Return a rule of E2B as ours: without ports, those with an address mean every port, and those with a name the web's."""
    try:
        network = ip_network(rule.strip().strip("[]"), strict=False)
    except ValueError:
        return rule
    text = str(network.network_address if network.num_addresses == 1 else network)
    return f"[{text}]:*" if network.version == 6 else f"{text}:*"


class Asked(BaseModel):
    """What a client sends. Fields that are not known are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True, allow_inf_nan=False)


class NetworkConfig(Asked):
    """The network of a sandbox in the words of E2B."""

    allow_out: Rules | None = Field(None, alias="allowOut")
    deny_out: Rules | None = Field(None, alias="denyOut")
    allow_public_traffic: bool | None = Field(None, alias="allowPublicTraffic")
    allow_internet_access: bool | None = None
    rules: dict[str, Any] | None = None
    dns_servers: tuple[Any, ...] | None = Field(None, alias="dnsServers")
    egress_proxy: dict[str, Any] | None = Field(None, alias="egressProxy")
    mask_request_host: str | None = Field(None, alias="maskRequestHost")
    https_ports: tuple[Any, ...] | None = Field(None, alias="httpsPorts")

    def body(self, ceiling: Ceiling, *, internet: bool | None = None) -> NetworkBody:
        """Return it in our words; what was not asked for in words is what the operator allows. Raises Problem."""
        self.check()
        denied = tuple(self.deny_out or ())
        allowed = tuple(self.allow_out or ())
        if ceiling.network == "public":
            allowed = tuple(map(_at_every_port, allowed))
        wanted = self.allow_internet_access if internet is None else internet
        if wanted and ceiling.network != "public":
            raise forbidden("allow_internet_access = true", "Leave it out: what may be reached is then what the operator allows.")
        if wanted is False or any(each in EVERYWHERE for each in denied):
            return NetworkBody(mode="allow" if allowed else "none", rules=allowed)
        if ceiling.network == "none":
            return NetworkBody(mode="allow", rules=allowed) if allowed else NetworkBody()
        if ceiling.network == "named":
            return NetworkBody(mode="allow", rules=(*ceiling.hosts, *allowed), denied=denied, exempt=allowed)
        return NetworkBody(mode="open", denied=denied, exempt=allowed if denied else ())

    def check(self) -> None:
        """Raise Problem for what we have not."""
        for name, value in (
            ("rules", self.rules),
            ("dnsServers", self.dns_servers),
            ("egressProxy", self.egress_proxy),
            ("httpsPorts", self.https_ports),
        ):
            if value:
                raise refused(f"network.{name}", "Leave it out: Gamebox has no such rule.")
        if self.mask_request_host is not None:
            check_mask(self.mask_request_host)

    def data(self) -> dict[str, Any]:
        """Return it as it was asked for."""
        return self.model_dump(by_alias=True, exclude_none=True, mode="json")


class AutoResume(Asked):
    """Whether requests wake the sandbox."""

    enabled: bool = False


class VolumeMount(Asked):
    """A volume of a sandbox."""

    name: str = Field(max_length=300)
    path: str = Field(max_length=300)


class NewSandbox(Asked):
    """The body of a creation."""

    template: str = Field(alias="templateID", min_length=1, max_length=300)
    timeout: int | None = Field(None, le=MOST_SECONDS)
    auto_pause: bool = Field(False, alias="autoPause")
    auto_pause_memory: bool | None = Field(None, alias="autoPauseMemory")
    auto_resume: AutoResume | None = Field(None, alias="autoResume")
    allow_internet_access: bool | None = None
    network: NetworkConfig | None = None
    metadata: Metadata = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict, alias="envVars", max_length=256)
    volume_mounts: tuple[VolumeMount, ...] = Field((), alias="volumeMounts", max_length=64)
    iam: dict[str, Any] | None = None

    def body(
        self,
        version: int,
        ceiling: Ceiling,
        found: Found | SnapshotRecord,
        volumes: Mapping[str, str] | None = None,
    ) -> E2BSandbox:
        """Return the sandbox that is asked for; ``found`` is what its template stands for, or the snapshot with its files.

        ``volumes`` are ids of volumes by their paths. Raises Problem.
        """
        wakes = self.auto_resume is not None and self.auto_resume.enabled
        if self.auto_pause_memory is False and (wakes or not self.auto_pause):
            raise refused("autoPauseMemory = false", "It needs autoPause = true, and cannot be combined with autoResume.")
        if self.iam:
            raise unsupported("Identity tokens (iam) are not supported.")
        timeout = SECONDS[version] if self.timeout is None else float(self.timeout)
        if timeout <= 0:
            raise Problem(400, ProblemCode.invalid_body, f"timeout is {timeout:g}.", "Give a positive number of seconds.")
        network = self.network or NetworkConfig.model_validate({})
        # The first version's clients ask for the internet whether or not their programs do.
        internet = self.allow_internet_access if version > 1 or not self.allow_internet_access else None
        asked = {
            "image": found.image if isinstance(found, Found) else SandboxSpec.from_data(found.spec).image,
            "profile": "e2b-root" if "e2b-root" in ceiling.profiles else "e2b",
            "network": network.body(ceiling, internet=internet),
            # A sandbox of E2B ends when its time is over, however long it idles; a longer time may be asked for later.
            "limits": {**_size_of(found, ceiling), "idle_seconds": _idle_seconds(ceiling)},
            "env": self.env,
            "track_changes": False,
            "time_to_live_seconds": timeout,
            "metadata": self.metadata,
            "launch": _launch(found),
            "wire": {
                **_shown(found),
                "timeout": timeout,
                "on_timeout": "pause" if self.auto_pause else "kill",
                "auto_resume": wakes,
                "at_end_memory": self.auto_pause_memory is not False,
                "public": network.allow_public_traffic is not False,
                "mask": network.mask_request_host or None,
                "internet": self.allow_internet_access,
                "network": network.data(),
                "volumeMounts": [each.model_dump() for each in self.volume_mounts],
            },
            "volumes": dict(volumes or {}),
        }
        return E2BSandbox.model_validate(asked)


def _size_of(found: Found | SnapshotRecord, ceiling: Ceiling) -> dict[str, Any]:
    """Return the size that a template was built with, or that of the sandbox that a snapshot is of, as far as it is allowed now."""
    if isinstance(found, Found):
        return {} if found.build is None else {"cpus": found.build.cpus, "memory_bytes": found.build.memory_bytes}
    limits = SandboxSpec.from_data(found.spec).limits
    sizes = {"cpus": limits.cpus, "memory_bytes": limits.memory_bytes, "disk_bytes": limits.disk_bytes}
    return {name: min(size, ceiling.largest.get(name, size)) for name, size in sizes.items() if size is not None}


def _shown(found: Found | SnapshotRecord) -> dict[str, Any]:
    """Return what is written down of the template. User and folder are those of commands that name none."""
    if not isinstance(found, Found):
        return {"template": found.label}
    if found.build is None or found.template is None:
        return {"template": found.name}
    config = found.build.config
    names = {"template": found.template.id, "alias": found.template.name, "build": found.build.id}
    return {**names, **{name: config[name] for name in ("user", "workdir") if config.get(name)}}


def _launch(found: Found | SnapshotRecord) -> dict[str, Any]:
    return dict(found.build.config) if isinstance(found, Found) and found.build is not None else {}


def _idle_seconds(ceiling: Ceiling) -> float:
    most = ceiling.largest.get("idle_seconds")
    wanted = ceiling.most_time_to_live_seconds
    return wanted if most is None else min(wanted, most)


class E2BSandbox(CreateSandbox):
    """A sandbox that is asked for in this dialect.

    ``wire`` is what is to be answered of it later, ``launch`` what its template starts in it.
    """

    wire: dict[str, Any]
    volumes: dict[str, str]
    launch: dict[str, Any]

    async def begun(self, environment: Environment, settings: Settings) -> None:
        """See the base class."""
        if self.launch.get("start") or self.launch.get("ready"):
            await launch(AsyncEnvironment(environment), self.launch, settings.template_ready_seconds)

    def options(self) -> dict[str, Any]:
        """See the base class."""
        end: dict[str, Any] = {}
        if self.wire["on_timeout"] == "pause":
            end = {"at_end": "pause", "at_end_memory": self.wire["at_end_memory"]}
        traffic: Traffic = "public" if self.wire["public"] else "token"
        mask = {MASK: self.wire["mask"]} if self.wire["mask"] else {}
        wake = {WAKE: self.wire["timeout"]} if self.wire["auto_resume"] else {}
        volumes = {VOLUMES: self.volumes} if self.volumes else {}
        return {**super().options(), **end, **volumes, **wake, **mask, TRAFFIC: traffic, OPTIONS: self.wire}


class Timeout(Asked):
    """The body of a new time to live."""

    timeout: int = Field(ge=0, le=MOST_SECONDS)


class Refresh(Asked):
    """The body of a longer time to live."""

    duration: int = Field(15, ge=0, le=MOST_SECONDS)


class Connect(Asked):
    """The body of a connection."""

    timeout: int | None = Field(None, ge=0, le=MOST_SECONDS)
    memory: bool | None = None


class Pause(Asked):
    """The body of a pause."""

    memory: bool | None = None


def read(kind: type[Any], data: bytes) -> Any:
    """Return a body. Raises Problem."""
    read_json(data)
    try:
        return kind.model_validate_json(data or b"{}")
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)[:5]
        words = "; ".join(f"{'.'.join(map(str, each['loc']))[:100]}: {each['msg'][:200]}" for each in problems)
        raise Problem(400, ProblemCode.invalid_body, f"The body is invalid: {words}.", "Correct that.") from error


def refused(what: str, hint: str) -> Problem:
    """Return the problem of a wish that cannot be fulfilled."""
    return Problem(400, ProblemCode.invalid_body, f"{what} is not supported.", hint)


def unsupported(sentence: str) -> Problem:
    """Return the problem of what this dialect does not have."""
    return Problem(501, ProblemCode.route_not_found, sentence, "docs/e2b.md says what Gamebox supports of E2B.")


State = Literal["running", "paused"]


def parse_query(text: str) -> Mapping[str, str]:
    """Return the metadata of a query, which is encoded once more within its parameter."""
    from urllib.parse import parse_qsl

    return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=64))
