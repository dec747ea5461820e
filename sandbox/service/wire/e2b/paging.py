"""Lists in pages, in the order of creation: clients send the token of a page back for the next one."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Protocol, TypeVar

from fastapi import Response

from sandbox.service.http.problems import Problem, ProblemCode

MOST_ITEMS = 100


class Placed(Protocol):
    """What is listed."""

    @property
    def created_at(self) -> float:
        """When it was made."""

    @property
    def id(self) -> str:
        """Its id, which no other has."""


T = TypeVar("T", bound=Placed)


def page(response: Response, found: Sequence[T], limit: int, token: str | None, order: str = "desc") -> list[T]:
    """Return a page of what was found, sorted; the header says where the next one begins. Raises Problem."""
    if not 1 <= limit <= MOST_ITEMS or order not in ("asc", "desc"):
        raise wrong("limit or order", f"{limit}, {order}", f"Give 1 to {MOST_ITEMS}, and asc or desc.")
    items = sorted(found, key=_place, reverse=order == "desc")
    if token is not None:
        last = _read_token(token)
        items = [each for each in items if (_place(each) < last if order == "desc" else _place(each) > last)]
    if len(items) > limit:
        response.headers["X-Next-Token"] = base64.urlsafe_b64encode(json.dumps(_place(items[limit - 1])).encode()).decode()
    return items[:limit]


def _place(item: Placed) -> tuple[float, str]:
    return item.created_at, item.id


def _read_token(text: str) -> tuple[float, str]:
    try:
        at, ident = json.loads(base64.b64decode(text[:200].encode(), b"-_", validate=True))
        return float(at), str(ident)
    except (ValueError, TypeError, OverflowError) as error:
        raise wrong("nextToken", text, "Send the header X-Next-Token unchanged.") from error


def wrong(name: str, value: object, hint: str) -> Problem:
    """Return the problem of a query."""
    return Problem(400, ProblemCode.invalid_query, f"{name} is {str(value)[:80]!r}.", hint)
