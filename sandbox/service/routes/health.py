"""Whether the service is there: needs no key and says nothing of tenants."""

from __future__ import annotations

from fastapi import APIRouter, Request

from sandbox.service.house import house_of
from sandbox.service.http.problems import Problem, ProblemCode

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Answer as long as the process does."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(request: Request) -> dict[str, str]:
    """Answer 200 if requests are taken, else 503."""
    house = house_of(request)
    if not house.ready or house.draining:
        raise Problem(
            503,
            ProblemCode.draining,
            "The service is starting or stopping.",
            "Send the request again.",
            retryable=True,
            headers={"Retry-After": "1"},
        )
    return {"status": "ready"}
