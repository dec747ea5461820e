"""The sandboxes of a service that belong to the owner of a key."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass

from .http.service import Call, Service, nonsense

PAGE = "200"
# Metadata of a sandbox that ``gamebox run --name`` makes.
NAME = "name"
# Those of which nothing is left.
OVER = ("ended", "lost")


@dataclass(frozen=True, slots=True)
class RemoteSandbox:
    """One of them; ``data`` is all that the service says of it. ``state`` is running, paused, lost and the like."""

    id: str
    name: str | None
    image: str
    state: str
    age_seconds: float
    left_seconds: float
    data: dict[str, Any]

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is left."""
        return self.state in OVER


def list_sandboxes(service: Service) -> Iterator[RemoteSandbox]:
    """Yield them all, the latest first. Raises SandboxError."""
    cursor: str | None = None
    while True:
        params = {"limit": PAGE, **({} if cursor is None else {"cursor": cursor})}
        page = service.json(Call("GET", "/v1/sandboxes", params=params, repeatable=True))
        try:
            yield from [_read(each) for each in page["items"]]
            cursor = page["next_cursor"]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise nonsense(service, "/v1/sandboxes") from error
        if cursor is None:
            return


def find_sandbox(service: Service, known: str) -> RemoteSandbox:
    """Return the sandbox with this id, name or beginning of an id. Raises SandboxError ``sandbox_not_found``."""
    alive = [each for each in list_sandboxes(service) if not each.is_over]
    for found in (
        [each for each in alive if known in (each.id, each.name)],
        [each for each in alive if known and each.id.startswith(known)],
    ):
        if len(found) == 1:
            return found[0]
        if found:
            raise SandboxError(
                ErrorCode.sandbox_not_found,
                f"{known!r} names {len(found)} sandboxes: {', '.join(each.id for each in found[:10])}.",
                "Give the id of one of them.",
            )
    raise SandboxError(
        ErrorCode.sandbox_not_found,
        f"The service at {service.url} has no sandbox {known!r:.80}.",
        "gamebox ls --remote lists those that it has.",
    )


def delete_sandbox(service: Service, ident: str) -> None:
    """Delete a sandbox and everything in it. Raises SandboxError."""
    service.request(Call("DELETE", f"/v1/sandboxes/{quote(ident, safe='')}", read_seconds=120.0, repeatable=True))


def _read(found: Any) -> RemoteSandbox:
    now = datetime.now(UTC)
    made, ends = (datetime.fromisoformat(found[name]) for name in ("created_at", "ends_at"))
    return RemoteSandbox(
        id=str(found["id"]),
        name=found["metadata"].get(NAME),
        image=str(found["image"]),
        state=str(found["state"]),
        age_seconds=max(0.0, (now - made).total_seconds()),
        left_seconds=max(0.0, (ends - now).total_seconds()),
        data=dict(found),
    )
