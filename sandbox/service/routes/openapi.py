"""The description of the API: needs no key, since it is the same for everybody and says nothing of tenants."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from sandbox.service.http.problems import Problem, ProblemCode
from sandbox.service.openapi.document import openapi_bytes
from sandbox.service.openapi.meanings import MEANINGS

router = APIRouter(tags=["health"])


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    """Return the API as an OpenAPI 3.1 document."""
    return Response(openapi_bytes(request.app), media_type="application/json", headers={"Cache-Control": "max-age=300"})


@router.get("/problems/{code}")
async def problem_type(code: str) -> dict[str, str]:
    """Return what the code of a problem means; the ``type`` of each problem leads here."""
    if (meaning := MEANINGS.get(code)) is None:
        raise Problem(404, ProblemCode.route_not_found, f"No problem has the code {code!r:.80}.", "GET /openapi.json has all.")
    return {"code": code, "meaning": meaning}
