"""Who did what: an admin reads it of the own tenant, the operator of all."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from sandbox.service.house import Admin, house_of, is_operator
from sandbox.service.http.problems import Problem, ProblemCode
from sandbox.service.operators.audit import entry_data
from sandbox.service.store.tables import audit as rows

router = APIRouter(tags=["audit"])
MOST_ITEMS, ITEMS = 1000, 100
_LAST = 1 << 53
# Begins the cursors of lists of all tenants, whose places are not those of one tenant.
_OF_ALL = "all-"


@router.get("/v1/audit")
async def list_audit(
    request: Request,
    caller: Admin,
    cursor: str | None = None,
    limit: int = ITEMS,
    tenant: str | None = None,
    key_id: str | None = None,
    action: str | None = None,
    target: str | None = None,
    outcome: str | None = None,
) -> dict[str, Any]:
    """List who did what, the latest first. The operator sees all tenants, or the one that is asked for."""
    if not 1 <= limit <= MOST_ITEMS:
        raise Problem(422, ProblemCode.invalid_query, f"limit is {limit}.", f"Give 1 to {MOST_ITEMS}.")
    if not is_operator(caller):
        if tenant not in (None, caller.tenant):
            raise Problem(
                403, ProblemCode.forbidden, f"Your key cannot read the audit log of {tenant!r:.80}.", "Leave out tenant."
            )
        tenant = caller.tenant
    asked = {"tenant": tenant, "key": key_id, "action": action, "target": target, "outcome": outcome}
    wanted = {name: value for name, value in asked.items() if value is not None}
    before = None if cursor is None else _place(cursor, of_all=tenant is None)
    found = await house_of(request).database.call(lambda c: rows.page(c, wanted, before, limit + 1))
    shown = found[:limit]
    more = len(found) > limit
    items = [entry_data(each.number, each.entry) for each in shown]
    return {"items": items, "next_cursor": f"{_OF_ALL if tenant is None else ''}{shown[-1].place}" if more else None}


def _place(cursor: str, *, of_all: bool) -> int:
    """Return what a cursor says. Raises Problem for one that is not of the same list."""
    text = cursor.removeprefix(_OF_ALL)
    is_number = text.isascii() and text.isdecimal() and len(text) < 17 and int(text) < _LAST
    if not is_number or of_all != cursor.startswith(_OF_ALL):
        hint = "Send next_cursor unchanged, with the same other parameters."
        raise Problem(422, ProblemCode.invalid_query, f"cursor is {cursor[:80]!r}.", hint)
    return int(text)
