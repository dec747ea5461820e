"""What clients of E2B may ask for and Gamebox does not have: answered 501, with a sentence."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from sandbox.service.house import Reader

from .bodies import unsupported
from .envd.access import EnvdUser
from .errors import ApiRoute, EnvdRoute, WireError

router = APIRouter(tags=["e2b"], route_class=ApiRoute)
envd_router = APIRouter(tags=["e2b"], route_class=EnvdRoute)
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
ROOTS = ("sandboxes", "snapshots", "templates", "volumes", "volumecontent", "secrets", "teams", "nodes", "v2", "v3")


async def unknown(request: Request, caller: Reader) -> Response:  # noqa: ARG001  # only those with a key are told
    """Answer 501."""
    raise unsupported(f"Gamebox does not support {request.method[:10]} {request.scope['path'][:200]} of E2B.")


for _root in ROOTS:
    router.add_api_route(f"/{_root}", unknown, methods=METHODS)
    router.add_api_route(f"/{_root}/{{rest:path}}", unknown, methods=METHODS)


@envd_router.post("/process.Process/{method}")
@envd_router.post("/filesystem.Filesystem/{method}")
@envd_router.post("/files/{method}")
async def unknown_call(method: str, session: EnvdUser) -> Response:  # noqa: ARG001
    """Answer 501."""
    raise WireError("unimplemented", f"Gamebox does not support the call {method[:80]!r} of envd.")
