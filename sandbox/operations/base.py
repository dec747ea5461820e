"""The base of all requests, and what their fields share."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from sandbox.envelope import Result

Path = Annotated[str, Field(min_length=1, max_length=4096, description="Path, relative to the workspace or absolute.")]
Id = Annotated[str, Field(min_length=1, max_length=64, description="Id of the command.")]


User = Annotated[
    Annotated[str, Field(min_length=1, max_length=256)] | None,
    BeforeValidator(lambda given: str(given) if type(given) is int else given),
    Field(
        description="User to run as, by name or number, instead of the sandbox's own.",
        json_schema_extra={"host_only": True},
    ),
]


class Request(BaseModel):
    """Base of all requests: frozen, unknown arguments refused, and numbers that JSON does not have."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, allow_inf_nan=False)
    operation: ClassVar[str]
    result: ClassVar[type[Result]]

    @classmethod
    def host_only(cls) -> frozenset[str]:
        """Return the names of the arguments that only the host's program may give, never a model."""
        extras = {name: field.json_schema_extra for name, field in cls.model_fields.items()}
        return frozenset(n for n, extra in extras.items() if isinstance(extra, dict) and extra.get("host_only"))


class HostArguments(dict[str, Any]):
    """Arguments for ``execute`` that the host's own program gives, not a model: only these may have host-only ones."""


class Change(Request):
    """Base of requests that may be made again after a broken connection without being carried out twice."""

    request_id: str | None = Field(None, min_length=1, max_length=64)
