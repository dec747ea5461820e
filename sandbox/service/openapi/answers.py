"""What is answered, as types: for the document and its tests. Clients leave out what they do not know: a service may be newer."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BaseModel, Field, create_model

from sandbox.limits import Limits
from sandbox.service.store.tables.sandboxes import State
from sandbox.service.tenants.rules import Ceiling, Quota

SANDBOX_ID = "^[a-z][a-z0-9]{19}$"
TENANT_ID = "^[a-z0-9][a-z0-9_-]{0,62}$"
KEY_ID = "^k[0-9a-f]{16}$"
REQUEST_ID = "^[A-Za-z0-9._-]{1,64}$"
SandboxId = Annotated[str, Field(pattern=SANDBOX_ID)]
Cursor = Annotated[str | None, Field(description="Send it as cursor for the next page; null on the last one.")]


class Health(BaseModel):
    """The service answers."""

    status: Literal["ok", "ready"]


class Whoami(BaseModel):
    """Who the key belongs to, and what it may do."""

    tenant: str
    scope: Literal["read", "use", "manage", "admin"]
    key_id: str = Field(pattern=KEY_ID)


class Key(BaseModel):
    """A key. Only the answer to its creation has all of it; ``key`` is else its beginning and end."""

    id: str = Field(pattern=KEY_ID)
    name: str
    scope: Literal["read", "use", "manage", "admin"]
    key: str
    created_at: datetime
    expires_at: datetime | None


class Keys(BaseModel):
    """A page of keys."""

    items: list[Key]
    next_cursor: Cursor


class Used(BaseModel):
    """What a tenant has in use, by the names of the quotas; null where nothing is counted, for there is no bound."""

    sandboxes: int
    memory_bytes: int
    cpus: float
    disk_bytes: int
    checkpoint_bytes: int
    output_bytes: int
    requests_under_way: int
    creates_per_minute: int | None
    requests_per_minute: int | None
    transfer_bytes_per_day: int | None


class QuotaOfTenant(BaseModel):
    """What a tenant may ask for, how much of it it may have, and how much it has."""

    tenant: str = Field(pattern=TENANT_ID)
    ceiling: Ceiling
    quota: Quota
    used: Used


class Tenant(BaseModel):
    """A tenant: ``set`` is what was set for it, ``ceiling`` and ``quota`` are what holds."""

    id: str = Field(pattern=TENANT_ID)
    name: str
    state: Literal["active", "deleting"]
    created_at: datetime
    set: dict[Literal["ceiling", "quota"], dict[str, Any]]
    ceiling: Ceiling
    quota: Quota
    used: Used


class Tenants(BaseModel):
    """A page of tenants."""

    items: list[Tenant]
    next_cursor: Cursor


def _limits() -> type[BaseModel]:
    hints = get_type_hints(Limits)
    fields: Any = {each.name: (hints[each.name], ...) for each in dataclasses.fields(Limits)}
    made: type[BaseModel] = create_model("AllLimits", __doc__="Every limit of a sandbox.", **fields)
    return made


AllLimits = _limits()


class NetworkRules(BaseModel):
    """The rules of a sandbox's network."""

    mode: Literal["none", "allow", "open"]
    rules: list[str]
    denied: list[str]
    exempt: list[str]


class Secret(BaseModel):
    """A secret, without its value. ``version`` counts its values."""

    name: str
    created_at: datetime
    updated_at: datetime
    version: int


class Secrets(BaseModel):
    """The secrets of a tenant."""

    items: list[Secret]
    next_cursor: Cursor


class UsedSecret(BaseModel):
    """The secret that a variable has as its value."""

    secret: str
    always: bool


class UsedService(BaseModel):
    """An upstream that the host asks for a sandbox; its headers with secrets are not shown."""

    name: str
    upstream: str
    methods: list[str]
    paths: list[str]
    plain_headers: dict[str, str]


class Sandbox(BaseModel):
    """A sandbox. One that is over has ``ended_at``, ``reason`` and ``post_mortem``, and is listed for a day."""

    id: SandboxId
    state: State
    reason: str | None
    post_mortem: str | None
    created_at: datetime
    ends_at: datetime
    ended_at: datetime | None
    time_to_live_seconds: float
    metadata: dict[str, str]
    image: str
    profile: str
    idle_seconds: float | None
    limits: AllLimits  # type: ignore[valid-type]
    network: NetworkRules
    env: list[str] = Field(description="Names of the variables; their values are never shown.")
    secrets: dict[str, UsedSecret] = Field(description="Names of the variables that are secrets.")
    services: list[UsedService]
    cache: bool
    description: dict[str, str] = Field(description="What an agent is told of it, by section.")


class Sandboxes(BaseModel):
    """A page of sandboxes, the latest first."""

    items: list[Sandbox]
    next_cursor: Cursor


class UnderWay(BaseModel):
    """An operation that was not answered yet."""

    id: str = Field(pattern=REQUEST_ID)
    operation: str


class RequestsUnderWay(BaseModel):
    """The operations under way."""

    items: list[UnderWay]
    next_cursor: Cursor


class SandboxConnection(BaseModel):
    """A connection as it ended, or was refused. ``sent_bytes`` left the sandbox, ``received_bytes`` entered it."""

    id: int = Field(ge=1)
    host: str
    port: int
    outcome: Literal["allowed", "denied", "failed"]
    address: str
    rule: str
    why: str
    sent_bytes: int
    received_bytes: int
    started: float
    duration_seconds: float


class SandboxConnections(BaseModel):
    """The last 1,000 connections of a sandbox."""

    items: list[SandboxConnection]
    next_cursor: None


class SandboxPort(BaseModel):
    """A port of a sandbox, and its address. One that is not ``public`` needs a key, or a token."""

    port: int = Field(ge=1, le=65535)
    public: bool
    url: str


class SandboxPorts(BaseModel):
    """The public ports of a sandbox."""

    items: list[SandboxPort]
    next_cursor: Cursor


class PortToken(SandboxPort):
    """A token for a port. ``browser_url`` has it, and makes a cookie of it."""

    token: str
    expires_at: datetime
    browser_url: str


class AuditEntry(BaseModel):
    """Somebody did something, or was denied it. ``outcome`` is "ok", or the code of the problem or failure."""

    id: int = Field(description="Its number among the entries of its tenant.")
    at: datetime
    tenant: str | None
    key_id: str | None
    address: str
    action: str
    target: str | None
    status: int
    outcome: str
    request_id: str


class AuditEntries(BaseModel):
    """A page of the audit, the latest first."""

    items: list[AuditEntry]
    next_cursor: Cursor


class WrongField(BaseModel):
    """A field of the body that does not fit."""

    field: str
    problem: str


class ProblemType(BaseModel):
    """What the code of a problem means."""

    code: str
    meaning: str


class ProblemDetails(BaseModel):
    """What the HTTP layer refuses (RFC 9457). ``retryable``: the same request can help later."""

    type: str = Field(
        pattern="^/problems/[a-z0-9_]+$", description="A reference to what the code means, relative to the service."
    )
    title: str
    status: int
    detail: str
    code: str
    hint: str
    retryable: bool
    request_id: str
    effects: Literal["none", "partial", "unknown"] = "none"
    reason: str | None = Field(None, description="Why the sandbox is gone, in one word.")
    sandbox_id: str | None = Field(None, description="The sandbox that is being created.")
    problems: list[WrongField] = Field(default_factory=list, description="What is wrong with the body.")


class Notice(BaseModel):
    """Something to know although the action worked."""

    code: str
    message: str
    hint: str


class SuccessEnvelope(BaseModel):
    """The action was carried out; ``result`` is what it says. A command that exits 1 was carried out."""

    tool_executed: Literal[True]
    result: Any
    timestamp: datetime
    duration_ms: float
    notices: list[Notice]
    bytes: dict[str, str] | None = Field(None, description="With X-Gamebox-Bytes: fields that are not UTF-8, in base64.")
    hints: dict[str, Any] | None = Field(None, description="With X-Gamebox-Bytes: hints for other readers than a model.")


class FailureEnvelope(BaseModel):
    """The action was not carried out, or not completely. ``effects`` says what it did, ``result`` what is known so far."""

    tool_executed: Literal[False]
    error: str
    code: str
    hint: str
    next_tool: str | None
    retryable: bool
    effects: Literal["none", "partial", "unknown"]
    result: Any
    timestamp: datetime
    duration_ms: float
    notices: list[Notice]
    arguments_schema: dict[str, Any] | None = Field(None, alias="schema", description="With invalid_arguments.")
    reason: str | None = Field(None, description="With sandbox_unavailable: why, in one word.")
    bytes: dict[str, str] | None = Field(None, description="With X-Gamebox-Bytes: fields that are not UTF-8, in base64.")
    hints: dict[str, Any] | None = Field(None, description="With X-Gamebox-Bytes: hints for other readers than a model.")
