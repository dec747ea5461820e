"""The base of all results."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Result(BaseModel):
    """Base of all results: frozen; fields the sandbox sends beyond the known ones are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
