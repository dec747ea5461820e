"""What the operator sets for a tenant: a ceiling on what it may ask for, and quotas on how much of it it may have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator

from sandbox.errors import SandboxError
from sandbox.limits import MOST_SECONDS
from sandbox.network import ceiling as network
from sandbox.network.rules import Rule
from sandbox.service.http.limits import BOUNDED

GIB = 1 << 30
# In the place of a runtime's name: the one that the engine uses by itself.
ENGINES_OWN = "default"
NetworkMode = Literal["none", "named", "public"]

Name = Annotated[str, Field(min_length=1, max_length=300)]
Names = Annotated[tuple[Name, ...], Field(max_length=256)]
SomeNames = Annotated[tuple[Name, ...], Field(min_length=1, max_length=256)]


class _Rules(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Ceiling(_Rules):
    """What a tenant may ask for. Fields that are left out are those of the service's settings."""

    images: SomeNames = Field(default=("gamebox/*",), description="Patterns of names of images.")
    profiles: SomeNames = Field(
        default=("default", "root-on-request", "root", "conformance", "e2b", "e2b-root"), description="Profiles of sandboxes."
    )
    runtimes: SomeNames = Field(
        default=(ENGINES_OWN,), description="Runtimes of the engine; the first one is the default."
    )
    largest: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict, max_length=64, description="The largest values of limits, by name of the limit."
    )
    most_time_to_live_seconds: float = Field(default=86400.0, gt=0, le=MOST_SECONDS, description="The longest time to live.")
    network: NetworkMode = Field(
        default="public", description="none; named: only what hosts covers; public: every public address."
    )
    hosts: Names = Field(default=(), description="Rules that must cover those of the tenant, if network is named.")
    packages: bool = Field(default=True, description="Whether the operator's package cache may be used.")
    open_networks: Names = Field(default=(), description="Networks that are not public, and that rules may open as well.")
    closed_hosts: Names = Field(default=(), description="Hosts, addresses and ports that no rule opens, as in *:25.")

    _built: str = PrivateAttr("")

    def with_built(self, repository: str) -> Ceiling:
        """Return this ceiling with the repository of what the tenant has had built: nobody sets that by a request."""
        made = self.model_copy()
        made._built = repository  # noqa: SLF001  # of a copy of ours
        return made

    @property
    def built(self) -> str:
        """The repository of what the tenant has had built; "" if it is not known."""
        return self._built

    @field_validator("largest")
    @classmethod
    def _check_largest(cls, value: dict[str, float]) -> dict[str, float]:
        if unknown := sorted(set(value) - set(BOUNDED)):
            raise ValueError(f"there is no limit {unknown[0]!r:.80} that has a largest value; use {', '.join(BOUNDED)}")
        return value

    @field_validator("hosts", "closed_hosts")
    @classmethod
    def _check_hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return _checked(value, lambda: [Rule.parse(text) for text in value])

    @field_validator("open_networks")
    @classmethod
    def _check_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return _checked(value, lambda: network.Ceiling.public(*value))


Count = Annotated[int, Field(ge=1, lt=1 << 31)]
Amount = Annotated[int, Field(ge=0, lt=1 << 63)]


def _checked(value: tuple[str, ...], parse: Callable[[], object]) -> tuple[str, ...]:
    try:
        parse()
    except SandboxError as error:
        raise ValueError(f"{error.message} {error.hint}") from error
    return value


class Quota(_Rules):
    """How much a tenant may have. None means no bound; fields that are left out are those of the service's settings."""

    sandboxes: Amount | None = Field(default=None, description="Sandboxes, including paused ones.")
    memory_bytes: Amount | None = Field(default=None, description="Memory of all sandboxes.")
    cpus: Annotated[float, Field(ge=0, lt=1e9)] | None = Field(default=None, description="Processors of unpaused sandboxes.")
    disk_bytes: Amount | None = Field(default=None, description="Disks of all sandboxes: workspace, home, and a /tmp on the disk.")
    checkpoint_bytes: Amount | None = Field(default=64 * GIB, description="Checkpoints and snapshots that the service keeps.")
    volumes: Amount | None = Field(default=100, description="Volumes, which several sandboxes may share.")
    volume_bytes: Amount | None = Field(default=64 * GIB, description="Files in volumes: measured now and then.")
    templates: Amount | None = Field(default=100, description="Templates, which are images that the tenant has had built.")
    template_bytes: Amount | None = Field(default=32 * GIB, description="Images of templates, and layers kept for later builds.")
    template_upload_bytes: Amount | None = Field(default=4 * GIB, description="Archives uploaded for builds of templates.")
    template_builds: Count = Field(default=8, description="Builds of templates under way, including those that wait for a turn.")
    output_bytes: Amount | None = Field(default=GIB // 2, description="Output kept for clients that were cut.")
    creates_per_minute: Count | None = Field(default=600, description="Sandboxes created in a minute.")
    creations_waiting: Count = Field(default=64, description="Creations that wait for their turn.")
    requests_per_minute: Count | None = Field(default=60_000, description="Requests in a minute.")
    requests_under_way: Count | None = Field(
        default=2000, description="Requests at once, including event streams."
    )
    transfer_bytes_per_day: Amount | None = Field(default=None, description="Bytes of bodies, both ways, in a day.")
