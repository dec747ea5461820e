"""The secrets of a tenant: given, replaced, listed by name, and forgotten. No answer has a value."""

from __future__ import annotations

import re
from typing import Any

from fastapi import APIRouter, Request, Response

from sandbox.service.clock import iso, now
from sandbox.service.fleet.provision import secret_place
from sandbox.service.house import Manager, Reader, house_of
from sandbox.service.http.bodies import SECRET_NAME, PutSecret, read_body
from sandbox.service.http.payloads.reading import body_of
from sandbox.service.http.problems import Problem, ProblemCode
from sandbox.service.store.tables import secrets as rows
from sandbox.service.store.tables.secrets import SecretRecord

router = APIRouter(tags=["secrets"])
BODY_BYTES = 1 << 19
# Of one tenant.
MOST_SECRETS = 256


@router.put("/v1/secrets/{secret_name}")
async def put_secret(request: Request, response: Response, caller: Manager, secret_name: str) -> dict[str, Any]:
    """Keep a value under a name, for sandboxes that are created from now on; 201 for a new name, 200 for another value."""
    name = request.state.target = secret_name
    if re.fullmatch(SECRET_NAME, name) is None:
        raise Problem(
            422,
            ProblemCode.invalid_query,
            f"{name!r:.80} is not a valid name for a secret.",
            "Use up to 64 letters, digits, '.', '_' and '-', starting with a letter or digit.",
        )
    body = read_body(PutSecret, await body_of(request, BODY_BYTES))
    database, tenant, at = house_of(request).database, caller.tenant, now()
    sealed = database.seal.close({"value": body.value.get_secret_value()}, secret_place(tenant, name))
    record = await database.call(lambda connection: rows.put(connection, tenant, name, sealed, at, MOST_SECRETS))
    if record is None:
        raise Problem(
            403,
            ProblemCode.forbidden_by_operator,
            f"This tenant already has {MOST_SECRETS} secrets, the most that a tenant may have.",
            "Delete one that is no longer needed: DELETE /v1/secrets/{secret_name}.",
        )
    response.status_code = 201 if record.version == 1 else 200
    return _data(record)


@router.get("/v1/secrets")
async def list_secrets(request: Request, caller: Reader) -> dict[str, Any]:
    """List the secrets of the tenant, without their values."""
    found = await house_of(request).database.call(lambda connection: rows.of_tenant(connection, caller.tenant))
    return {"items": [_data(each) for each in found], "next_cursor": None}


@router.delete("/v1/secrets/{secret_name}", status_code=204)
async def delete_secret(request: Request, caller: Manager, secret_name: str) -> Response:
    """Forget a secret. Sandboxes that were created with it keep its value until they end."""
    name = request.state.target = secret_name
    if not await house_of(request).database.call(lambda connection: rows.delete(connection, caller.tenant, name)):
        raise Problem(
            404, ProblemCode.secret_not_found, f"There is no secret {name!r:.80}.", "List them with GET /v1/secrets."
        )
    return Response(status_code=204)


def _data(record: SecretRecord) -> dict[str, Any]:
    return {
        "name": record.name,
        "created_at": iso(record.created_at),
        "updated_at": iso(record.updated_at),
        "version": record.version,
    }
