"""What an operator sets: by a flag of ``gamebox serve``, by a variable GAMEBOX_SERVICE_…, or in a TOML file, in this order."""

from __future__ import annotations

import difflib
import os
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from sandbox.errors import SandboxError, configuration_error
from sandbox.limits import MOST_SECONDS
from sandbox.packages.cache import PackageCache

from .http.hosts import LOCALHOST, check_origins, is_dns_name
from .tenants.host_share import Host, share_of
from .tenants.rules import Ceiling, NetworkMode, Quota

MIB = 1 << 20
PREFIX = "GAMEBOX_SERVICE_"
SEE = "gamebox serve --help lists the flags, and docs/how-to/run-a-service.md all settings."
FILE = "service.toml"
# OpenSSL and Node accept no certificate for *.localhost: a wildcard needs two labels after it.
LOCAL_DOMAIN = "sandboxes.localhost"
# In a variable, separated by commas.
Words = Annotated[tuple[str, ...], NoDecode]


def default_folder() -> Path:
    """Return the folder of the service's data that is used unless another is set."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "gamebox" / "service"


def _split(value: Any) -> Any:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


class PoolSettings(BaseModel):
    """Sandboxes to keep ready for creations that ask for these values; their network, variables and times may differ."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: int = Field(ge=1, le=64, description="How many.")
    image: str = "gamebox/base"
    profile: str = "default"
    limits: dict[str, float | int | str | None] = Field(default_factory=dict)
    track_changes: bool = True
    read_roots: tuple[str, ...] = ()

    def fields(self) -> dict[str, Any]:
        """Return it as the body of a creation."""
        return self.model_dump(mode="json", exclude={"size"})


class Settings(BaseSettings):
    """The settings of a service. Times are seconds, sizes are bytes; lists in variables are separated by commas."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True)

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8080, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    data: Path = Field(default_factory=default_folder, description="Folder of the service: its store and its first key.")
    tls_cert: Path | None = Field(None, description="Certificate for TLS, in PEM.")
    tls_key: Path | None = Field(None, description="Private key for TLS, in PEM.")
    tls_local: bool = Field(False, description="Make a certificate for TLS, and the authority that clients trust for it.")
    behind_proxy: Words = Field((), description="Networks of the proxies that terminate TLS for the service.")
    images: Words = Field(("gamebox/*",), description="Patterns of names of images that tenants may use.")
    e2b_templates: dict[str, str] = Field(
        {"base": "gamebox/e2b", "code-interpreter-v1": "gamebox/code-interpreter"},
        description="Images that templates of E2B's clients stand for.",
    )
    e2b_images: dict[str, str] = Field(
        {"e2bdev/base": "gamebox/e2b", "e2bdev/base:latest": "gamebox/e2b"},
        description="Images that templates may be built from, by the names that E2B's clients have for them.",
    )
    template_builds: int = Field(2, ge=1, le=32, description="Builds of templates that run at once.")
    template_build_seconds: float = Field(3600.0, gt=0, le=MOST_SECONDS, description="How long a build of a template may take.")
    template_ready_seconds: float = Field(
        300.0, gt=0, le=MOST_SECONDS, description="How long a new sandbox waits for the ready command of its template."
    )
    template_upload_bytes: int = Field(1 << 30, ge=1024, description="Largest archive that is uploaded for a build of a template.")
    template_unused_seconds: float = Field(
        7 * 86400.0, gt=0, description="How long archives and layers of builds are kept that no build uses."
    )
    profiles: Words = Field(
        ("default", "root-on-request", "root", "conformance", "e2b", "e2b-root"), description="Profiles that tenants may use."
    )
    runtimes: Words = Field(("default",), description="Runtimes that tenants may use; the first is the default.")
    largest: dict[str, float] = Field(default_factory=dict, description="Largest values of limits, by name of the limit.")
    network: NetworkMode = Field("public", description="What network rules may open: none, named or public.")
    hosts: Words = Field((), description="Rules that must cover those of tenants, if network is named.")
    quota: Quota = Field(default_factory=lambda: Quota(), description="Quota of a tenant that has none of its own.")
    tenant_share: float = Field(
        0.5, ge=0, le=1000, description="Share of this host that a tenant has for which no quota is set; 0 for no bound."
    )
    disk_bytes: int = Field(4 << 30, gt=0, description="Disk size of a sandbox whose request names none.")
    disk_factor: float = Field(1.0, gt=0, description="How many times the free disk space may be promised.")
    time_to_live_seconds: float = Field(3600.0, gt=0, description="Time to live of a sandbox whose request names none.")
    most_time_to_live_seconds: float = Field(86400.0, gt=0, le=MOST_SECONDS, description="The longest time to live.")
    idle_seconds: float = Field(900.0, gt=0, description="Idle time of a sandbox whose request names none.")
    lost_seconds: float = Field(86400.0, gt=0, description="How long a sandbox that has ended is listed.")
    drain_seconds: float = Field(10.0, ge=0, description="How long requests may go on after SIGTERM.")
    engine_calls: int = Field(8, ge=1, le=64, description="Sandboxes that are started, attached or removed at once.")
    create_wait_seconds: float = Field(30.0, gt=0, description="How long a creation waits for its turn.")
    domain: str = Field(
        default_factory=lambda known: LOCAL_DOMAIN if known.get("tls_local") else LOCALHOST,
        description="Domain of the ports of sandboxes: {port}-{id}.DOMAIN.",
    )
    allowed_hosts: Words = Field((), description="Further names of the service; *.NAME for all names below one.")
    allowed_origins: Words = Field((), description="Origins of other pages that may open WebSockets.")
    sandbox_connections: int = Field(128, ge=1, le=256, description="Most connections to ports and terminals of one sandbox.")
    address_connections: int = Field(
        2000, ge=1, description="Most connections of one address; behind proxies, requests under way of one client."
    )
    key_connections: int = Field(1500, ge=1, description="Most requests, streams and connections under way of one key.")
    body_bytes: int = Field(64 * MIB, ge=1024, description="Largest JSON body, that of write and edit.")
    open_networks: Words = Field((), description="Addresses and networks that are not public, and that tenants may reach.")
    closed_hosts: Words = Field((), description="Hosts, addresses and ports that no tenant may reach, as in *:25.")
    pool: int = Field(0, ge=0, le=64, description="Sandboxes to keep ready for creations without options.")
    pools: tuple[PoolSettings, ...] = Field((), max_length=16, description="Other kinds of sandboxes to keep ready.")
    cache_pypi: str | None = Field(None, repr=False, description="Python index of the package cache; may have a password.")
    cache_npm: str | None = Field(None, repr=False, description="npm registry of the package cache; may have a password.")
    cache_bytes: int = Field(10 << 30, ge=1 << 20, description="Largest size of the package cache.")
    cache_private_hosts: Words = Field((), description="Hosts without public addresses that packages may come from.")
    cache_ca_bundle: Path | None = Field(None, description="Further certificates that the package cache trusts, in PEM.")
    stop_all: bool = Field(False, description="End all sandboxes when the service ends.")
    drain: bool = Field(False, description="Create no more sandboxes, and exit when the existing ones have ended.")
    log_format: Literal["text", "json"] = Field("text", description="How the log is written to standard error.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Lowest level that is logged.")
    metrics_listen: str | None = Field(None, description="HOST:PORT of a listener for /metrics that needs no key.")
    audit_operations: bool = Field(True, description="The audit log includes operations that may change something.")
    audit_seconds: float = Field(30 * 86400.0, gt=0, description="How long entries of the audit log are kept.")
    audit_entries: int = Field(100_000, ge=1, description="Most entries of the audit log that are kept for a tenant.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return where settings come from, the strongest first."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, _file.get("path"))

    @model_validator(mode="before")
    @classmethod
    def _split_lists(cls, values: dict[str, Any]) -> dict[str, Any]:
        known = {
            *("behind_proxy", "images", "profiles", "runtimes", "hosts", "allowed_hosts", "allowed_origins"),
            *("open_networks", "closed_hosts", "cache_private_hosts"),
        }
        return {name: _split(value) if name in known else value for name, value in values.items()}

    @model_validator(mode="after")
    def _check(self) -> Self:
        for network in self.behind_proxy:
            _check_network(network)
        try:
            _ = self.ceiling
            self.package_cache()
        except ValidationError as error:
            raise ValueError("; ".join(f"{each['loc'][0]}: {each['msg']}" for each in error.errors())) from error
        except SandboxError as error:
            raise ValueError(f"{error.message} {error.hint}") from error
        self._check_tls()
        if not self.is_loopback and not self.is_encrypted and not self.behind_proxy:
            raise ValueError(
                f"{self.host} is not a loopback address, and keys would cross the network in the clear: "
                "set tls_cert and tls_key, or tls_local, or behind_proxy with the network of a proxy that terminates TLS; "
                "for programs on this host alone, leave out host"
            )
        if self.metrics_listen is not None:
            read_address(self.metrics_listen)
        if self.time_to_live_seconds > self.most_time_to_live_seconds:
            raise ValueError("time_to_live_seconds is more than most_time_to_live_seconds")
        check_origins(self.domain, (*self.allowed_hosts, self.host))
        return self

    def _check_tls(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key belong together")
        if self.tls_local and self.tls_cert is not None:
            raise ValueError("tls_local makes a certificate, and tls_cert names one: leave out one of them")
        if self.tls_local and "." not in self.domain.strip("."):
            raise ValueError(
                f"domain is {self.domain!r}, and clients accept no certificate for *.{self.domain}: "
                f"leave it out with tls_local, which makes it {LOCAL_DOMAIN}, or give a name with a dot"
            )
        if self.tls_local and not is_dns_name(self.domain):
            raise ValueError(f"domain is {self.domain!r}, which is not a name that certificates may have: use letters and digits")

    def package_cache(self) -> PackageCache | None:
        """Return the package cache of the sandboxes that ask for it; None if no index is set. Raises SandboxError."""
        if not self.cache_pypi and not self.cache_npm:
            return None
        return PackageCache(
            self.data / "packages",
            pypi=self.cache_pypi or "",
            npm=self.cache_npm or "",
            max_bytes=self.cache_bytes,
            ca_bundle=self.cache_ca_bundle,
            private_hosts=self.cache_private_hosts,
        )

    @property
    def ceiling(self) -> Ceiling:
        """What a tenant may ask for that has no ceiling of its own. Raises ValidationError."""
        return Ceiling.model_validate({name: getattr(self, name) for name in Ceiling.model_fields if name != "packages"})

    def default_quota(self, host: Host) -> Quota:
        """Return the quota of a tenant that has none of its own, which is not the operator's."""
        share = share_of(host, self.tenant_share, self.disk_factor, self.disk_bytes)
        return Quota.model_validate({**share, **self.quota.model_dump(exclude_unset=True)})

    @property
    def is_encrypted(self) -> bool:
        """Whether the service itself speaks TLS."""
        return self.tls_local or self.tls_cert is not None

    @property
    def is_loopback(self) -> bool:
        """Whether only this host can reach the service."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def _check_network(text: str) -> None:
    """Raise ValueError for what is not a network of proxies."""
    try:
        ip_network(text)
    except ValueError as error:
        try:
            meant = f"write {ip_network(text, strict=False)}"
        except ValueError:
            meant = "give networks, as in 192.0.2.10/32"
        raise ValueError(f"behind_proxy has {text[:80]!r}: {meant}") from error


def read_address(text: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT, where an IPv6 address is in brackets. Raises ValueError."""
    host, separator, port = text.rpartition(":")
    if not separator or not host or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise ValueError(f"{text[:80]!r} is not HOST:PORT, as in 127.0.0.1:9090")
    return host.removeprefix("[").removesuffix("]"), int(port)


# pydantic-settings asks for its sources by class; the file is that of the call which is under way.
_file: dict[str, Path | None] = {}


def read_settings(flags: dict[str, Any], file: Path | None = None) -> Settings:
    """Return the settings of a service; ``flags`` that are None count as not given.

    Without ``file``, it is service.toml in the data folder, if that exists. Raises SandboxError ``invalid_configuration``.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    if file is None:
        folder = Path(given.get("data") or os.environ.get("GAMEBOX_SERVICE_DATA") or default_folder())
        file = folder / FILE if (folder / FILE).is_file() else None
    elif not file.is_file():
        what = "is not a file" if file.exists() else "does not exist"
        raise configuration_error(f"The settings file {file} {what}.", "Give --config a TOML file that exists.")
    _check_variables()
    _file["path"] = file
    try:
        return Settings(**given)
    except ValidationError as error:
        raise _wrong(error) from error
    except UnicodeDecodeError as error:
        raise configuration_error(f"{file} is not UTF-8 (byte {error.start}).", "Write it as UTF-8.") from error
    except OSError as error:
        raise configuration_error(f"{file} cannot be read: {error.strerror}.", "Let this user read it.") from error
    except ValueError as error:  # of the file's syntax
        raise configuration_error(f"{file} cannot be read: {error}.", "Correct its TOML syntax.") from error
    finally:
        _file.clear()


def _check_variables() -> None:
    """Raise SandboxError for a variable of a service that names no setting: nobody would see that it does nothing."""
    for variable in sorted(os.environ):
        name = variable.removeprefix(PREFIX).partition("__")[0].lower()
        if variable.startswith(PREFIX) and name not in Settings.model_fields:
            raise configuration_error(f"The variable {variable} names no setting{_meant(name)}.", SEE)


def _meant(name: str, *, inner: bool = False) -> str:
    """Return a question after the name that was meant, or nothing."""
    known = (*Quota.model_fields, *PoolSettings.model_fields) if inner else Settings.model_fields
    found = difflib.get_close_matches(name, known, 1)
    return f" (did you mean {found[0]}?)" if found else ""


def _wrong(error: ValidationError) -> SandboxError:
    problems = []
    for each in error.errors(include_url=False):
        place, text = ".".join(map(str, each["loc"])), each["msg"].removeprefix("Value error, ")
        if each["type"] == "extra_forbidden":
            text = f"there is no such setting{_meant(str(each['loc'][-1]), inner=len(each['loc']) > 1)}"
        problems.append(f"{place}: {text}" if place else text)
    return configuration_error(f"The service cannot start with these settings: {'; '.join(problems)}.", SEE)
