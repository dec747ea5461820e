"""Numbers for Prometheus, for admins; ``--metrics-listen`` has them without a key on a listener of its own."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from sandbox.service.house import Operator, house_of
from sandbox.service.operators.metrics import CONTENT_TYPE

router = APIRouter(tags=["metrics"])


@router.get("/metrics")
async def metrics(request: Request, caller: Operator) -> Response:  # noqa: ARG001
    """Return the numbers of the service, of all tenants together."""
    return Response(house_of(request).observation.metrics.text(), media_type=CONTENT_TYPE)
