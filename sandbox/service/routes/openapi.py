"""The description of the API: needs no key, since it is the same for everybody and says nothing of tenants."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from sandbox.service.openapi.document import openapi_bytes

router = APIRouter(tags=["health"])


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    """Return the API as an OpenAPI 3.1 document."""
    return Response(openapi_bytes(request.app), media_type="application/json", headers={"Cache-Control": "max-age=300"})
