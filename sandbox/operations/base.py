"""The base of all requests, and what their fields share."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from sandbox import results

Path = Annotated[str, Field(min_length=1, max_length=4096, description="Path, relative to the workspace or absolute.")]
Id = Annotated[str, Field(min_length=1, max_length=64, description="Id of the command.")]


class Request(BaseModel):
    """Base of all requests: frozen, unknown arguments refused, and numbers that JSON does not have."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, allow_inf_nan=False)
    operation: ClassVar[str]
    result: ClassVar[type[results.Result]]


class Change(Request):
    """Base of requests that may be made again after a broken connection without being carried out twice."""

    request_id: str | None = Field(None, min_length=1, max_length=64)
