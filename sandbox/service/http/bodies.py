"""What a tenant may ask for: types of their own, and not those of the core, which trusts its caller.

A field of ``SandboxSpec`` that is not named here is refused over HTTP: host paths, callables and whatever is added later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator

from sandbox.docker.spec import DEFAULT_IMAGE, SandboxSpec
from sandbox.environment.base import Environment
from sandbox.operations import OPERATIONS
from sandbox.service.settings import Settings
from sandbox.service.tenants import ceiling as under
from sandbox.service.tenants.rules import Ceiling, Quota
from sandbox.text.masking import LEAST_CHARS

from .limits import LIMITS
from .payloads.json_text import read_json
from .problems import Problem, ProblemCode

B = TypeVar("B", bound=BaseModel)
# Of a tenant. It stands in a path.
SECRET_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"  # noqa: S105
# Arguments that the core takes from its host's program alone, and that harm nobody but the owner of the sandbox.
HOST_ARGUMENTS = frozenset({"user", "needs_session"})

Metadata = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=64)], Annotated[str, Field(max_length=1024)]],
    Field(max_length=32, description="Texts to find the sandbox by."),
]
Rules = Annotated[tuple[Annotated[str, Field(max_length=300)], ...], Field(max_length=256)]
SecretName = Annotated[str, Field(pattern=f"^{SECRET_NAME}$")]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
HeaderName = Annotated[str, Field(min_length=1, max_length=100)]


class Body(BaseModel):
    """Base of all bodies: unknown fields are refused, and values of another type than the field's."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)


class NetworkBody(Body):
    """The rules of a sandbox's network. They open public addresses only, whatever they name."""

    mode: Literal["none", "allow", "open"] = "none"
    rules: Rules = ()
    denied: Rules = ()
    exempt: Annotated[Rules, Field(description="What of the denied stays open.")] = ()

    def data(self) -> dict[str, Any]:
        """Return it as ``SandboxSpec`` has it."""
        return {
            "mode": self.mode,
            "rules": list(self.rules),
            "denied": list(self.denied),
            **({"exempt": list(self.exempt)} if self.exempt else {}),
        }


class SecretVariable(Body):
    """A variable whose value is a secret of the tenant; with ``always`` false only commands that ask for it have it."""

    secret: SecretName
    always: bool = True


class SecretHeader(Body):
    """A header whose value is a secret of the tenant behind ``prefix``, as in "Bearer "."""

    secret: SecretName
    prefix: str = Field("", max_length=100)


class ServiceBody(Body):
    """An upstream that the sandbox reaches as http://NAME.internal/, with headers that it never sees."""

    name: str = Field(min_length=1, max_length=63, description="Name in the sandbox.")
    upstream: str = Field(min_length=1, max_length=2000, description="URL of a public server.")
    headers: dict[HeaderName, SecretHeader] = Field(default_factory=dict, max_length=16, description="Headers with secrets.")
    plain_headers: dict[HeaderName, Annotated[str, Field(max_length=4096)]] = Field(default_factory=dict, max_length=16)
    methods: tuple[Annotated[str, Field(max_length=32)], ...] = Field((), max_length=16, description="Methods that are open.")
    paths: tuple[Annotated[str, Field(max_length=1000)], ...] = Field((), max_length=64, description="Paths that are open.")

    def data(self) -> dict[str, Any]:
        """Return it as ``SandboxSpec`` has it."""
        given = {"methods": list(self.methods), "paths": list(self.paths), "plain_headers": dict(self.plain_headers)}
        return {"kind": "Service", "name": self.name, "upstream": self.upstream, **given}


class CreateSandbox(Body):
    """A sandbox that is asked for."""

    image: str = Field(DEFAULT_IMAGE, min_length=1, max_length=300, description="Image of the sandbox.")
    network: NetworkBody = Field(default_factory=NetworkBody, description="What the sandbox may reach.")
    limits: dict[str, float | int | str | None] = Field(
        default_factory=dict, max_length=len(LIMITS), description=f"Limits that differ from the defaults: {', '.join(LIMITS)}."
    )
    env: dict[str, str] = Field(default_factory=dict, max_length=256, description="Variables for every command.")
    profile: str = Field("default", max_length=64, description="default, root-on-request, root, conformance, e2b or e2b-root.")
    runtime: str | None = Field(None, max_length=64, description="Runtime of the engine; else the first one that is allowed.")
    track_changes: bool = Field(True, description="Report after each command which files changed.")
    read_roots: tuple[str, ...] = Field((), max_length=32, description="Folders that file tools may read as well.")
    time_to_live_seconds: float | None = Field(None, gt=0, description="Time after which the sandbox ends.")
    idle_seconds: float | None = Field(None, gt=0, description="Idle time after which the sandbox ends.")
    metadata: Metadata = Field(default_factory=dict)
    secrets: dict[VariableName, SecretName | SecretVariable] = Field(
        default_factory=dict, max_length=64, description="Variables whose values are secrets of the tenant, by their names."
    )
    services: tuple[ServiceBody, ...] = Field((), max_length=16, description="Upstreams that the host asks with credentials.")
    cache: bool = Field(False, description="Let pip, uv and npm install from the package cache of the operator.")

    def spec(self, settings: Settings, ceiling: Ceiling) -> SandboxSpec:
        """Return what it asks for as the core takes it. Raises SandboxError, and Problem for what the operator forbids.

        What was left out is cut by the ceiling; what was asked for is refused if it is more.
        """
        self.check_image(ceiling)
        under.check_profile(ceiling, self.profile)
        if both := sorted(set(self.env) & set(self.secrets)):
            raise Problem(
                422, ProblemCode.invalid_body, f"env and secrets both have {both[0]!r:.80}.", "Name it in one of them only."
            )
        if self.cache and not ceiling.packages:
            raise under.forbidden("The package cache", "Leave out cache.")
        if self.cache and settings.package_cache() is None:
            raise under.forbidden("The package cache", "Leave out cache: no index is set for it.")
        if unknown := sorted(set(self.limits) - set(LIMITS)):
            raise Problem(
                422, ProblemCode.invalid_body, f"There is no limit {unknown[0]!r:.80}.", f"Use: {', '.join(LIMITS)}."
            )
        life = self.life_seconds(settings, ceiling)
        asked = {**({} if self.idle_seconds is None else {"idle_seconds": self.idle_seconds}), **self.limits}
        defaults: dict[str, float | int] = {"idle_seconds": settings.idle_seconds}
        if self.limits.get("disk") != "memory":
            defaults["disk_bytes"] = settings.disk_bytes
        spec = SandboxSpec.from_data(
            {
                "image": self.image,
                "network": self.network.data(),
                "limits": {**under.chosen_limits(ceiling, asked, defaults), "lifetime_seconds": life},
                "env": list(self.env),
                "profile": self.profile,
                "runtime": under.chosen_runtime(ceiling, self.runtime),
                "track_changes": self.track_changes,
                "read_roots": list(self.read_roots),
                "services": [each.data() for each in self.services],
                "beside": [f"services.{each.name}.headers.{name}" for each in self.services for name in each.headers],
                "keep": True,
                "keep_seconds": settings.most_time_to_live_seconds,
            }
        )
        under.check_network(ceiling, spec.network)
        under.check_services(ceiling, spec)
        return spec

    def check_image(self, ceiling: Ceiling) -> None:
        """Raise Problem if the operator does not allow the image."""
        under.check_image(ceiling, self.image)

    async def begun(self, environment: Environment, settings: Settings) -> None:
        """Do what belongs to the start of the sandbox, which runs already. Raises SandboxError: it is removed then."""

    def secret_variables(self) -> dict[str, SecretVariable]:
        """Return the variables that are secrets, by their names."""
        return {name: SecretVariable(secret=each) if isinstance(each, str) else each for name, each in self.secrets.items()}

    def secret_names(self) -> frozenset[str]:
        """Return the names of all secrets that it names."""
        of_services = {header.secret for service in self.services for header in service.headers.values()}
        return frozenset({each.secret for each in self.secret_variables().values()} | of_services)

    def options(self) -> dict[str, Any]:
        """Return what is shown of a sandbox, and is not in its spec."""
        variables = {name: each.model_dump() for name, each in self.secret_variables().items()}
        return {"secrets": variables, "cache": self.cache}

    def life_seconds(self, settings: Settings, ceiling: Ceiling) -> float:
        """Return the time to live. Raises Problem if more is asked for than the operator allows."""
        of_limits = self.limits.get("lifetime_seconds")
        asked = self.time_to_live_seconds or (of_limits if isinstance(of_limits, int | float) and of_limits > 0 else None)
        return under.chosen_life(ceiling, asked, settings.time_to_live_seconds)


class UpdateSandbox(Body):
    """What changes of a sandbox; fields that are left out stay as they are."""

    time_to_live_seconds: float | None = Field(None, gt=0, description="Time after which it ends, from now on.")
    metadata: Metadata | None = None
    network: NetworkBody | None = None


class ForkSandbox(Body):
    """More sandboxes like one, with its files."""

    count: int = Field(1, ge=1, le=16, description="How many.")
    checkpoint: str | None = Field(None, max_length=64, description="Checkpoint whose files they have; else the present ones.")
    time_to_live_seconds: float | None = Field(None, gt=0, description="Time to live of each; else that of the first.")
    metadata: Metadata | None = None


class PutSecret(Body):
    """The value of a secret."""

    value: Annotated[SecretStr, Field(min_length=LEAST_CHARS, max_length=1 << 16)]

    @field_validator("value")
    @classmethod
    def _check_value(cls, value: SecretStr) -> SecretStr:
        """Refuse what no variable can hold, and what would garble other texts where it is masked."""
        text = value.get_secret_value()
        if "\0" in text or not _is_utf8(text):
            raise ValueError("it has a character that a variable cannot hold")
        if len(text.strip()) < LEAST_CHARS:
            raise ValueError(f"it has fewer than {LEAST_CHARS} characters without the spaces around it")
        return value


# Ten years.
MOST_KEY_SECONDS = 10 * 365 * 86400.0


class CreateKey(Body):
    """A key that is asked for."""

    name: str = Field("", max_length=100)
    scope: Literal["read", "use", "manage", "admin"] = "manage"
    expires_seconds: float | None = Field(None, gt=0, le=MOST_KEY_SECONDS, description="Time after which it is not valid any more.")


class CreateTenant(Body):
    """A tenant that is asked for. What ceiling and quota leave out is as in the settings of the service."""

    id: str = Field(max_length=63, description="Its name in requests: lower-case letters, digits, '-' and '_'.")
    name: str = Field("", max_length=200, description="Its name for people.")
    ceiling: Ceiling = Field(Ceiling(), description="What it may ask for.")
    quota: Quota = Field(Quota(), description="How much it may use.")


class UpdateTenant(Body):
    """What changes of a tenant. A ceiling or a quota replaces the whole former one."""

    name: str | None = Field(None, max_length=200)
    ceiling: Ceiling | None = None
    quota: Quota | None = None


def read_body(kind: type[B], data: bytes) -> B:
    """Return the body as ``kind``. Raises Problem, which names the fields that are wrong."""
    read_json(data)
    try:
        return kind.model_validate_json(data or b"{}", strict=True)  # in the models within, too
    except ValidationError as error:
        problems = [
            {"field": ".".join(map(str, each["loc"]))[:200], "problem": each["msg"][:300]}
            for each in error.errors(include_url=False, include_input=False)[:10]
        ]
        words = "; ".join(f"{each['field']}: {each['problem']}" for each in problems)
        raise Problem(
            422,
            ProblemCode.invalid_body,
            f"The body is invalid: {words}.",
            f"Correct that. The possible fields are {', '.join(kind.model_fields)}.",
            problems=problems,
        ) from error


def checked_arguments(operation: str, args: Mapping[str, Any]) -> str | None:
    """Return the first argument of an operation that a tenant may not give, or None: it is for the host, or a path on it."""
    return min(_REFUSED.get(operation, _REFUSED_STATE) & args.keys(), default=None)


# Of the operations, and of the methods on the state of the files.
_REFUSED = {name: kind.host_only() - HOST_ARGUMENTS for name, kind in OPERATIONS.items()}
_REFUSED_STATE = frozenset({"to"})


def _is_utf8(text: str) -> bool:
    try:
        return len(text.encode()) <= 1 << 16
    except UnicodeEncodeError:
        return False
