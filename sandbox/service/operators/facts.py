"""What is known of a request when it is over. Logs, audit and metrics have nothing else of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from http import HTTPStatus
from typing import Any

from sandbox.frozen import dataclass

# A route that nothing matched, and the methods that are counted by name: what callers send must not become labels.
NO_ROUTE = "none"
# Requests to ports of sandboxes. What their servers answer is no fault of the service.
PORT_ROUTE = "{port}-{id}"
EXCEPTION_STATUS = 511
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
MOST_CHARS = 200
_KEY = re.compile(r"(e2b_[0-9a-f]{4})[0-9a-f]{36}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One request. ``route`` is the template of its path, ``action`` the kind of thing and what was done with it.

    ``code`` is that of the problem, or of the failure in the envelope; "" if all went well. ``target`` is the id in the path, or
    of what was made. ``changes`` says that something may have changed, or left a sandbox.
    """

    request_id: str
    method: str
    route: str
    action: str
    tenant: str
    key: str
    address: str
    target: str
    status: int
    code: str
    seconds: float
    changes: bool
    operation: str = ""
    trace: str = ""

    @property
    def failed(self) -> bool:
        """Whether the service has failed. SWE-ReX's wire says with 511 that a command has."""
        return self.status >= HTTPStatus.INTERNAL_SERVER_ERROR and self.status != EXCEPTION_STATUS


def facts_of(scope: Mapping[str, Any], status: int, location: str, seconds: float) -> Facts:
    """Return what is known of the request with that ASGI scope."""
    state: Mapping[str, Any] = scope.get("state") or {}
    route = scope.get("route")
    template = state.get("route") or getattr(route, "path", None) or NO_ROUTE
    params: Mapping[str, Any] = scope.get("path_params") or {}
    operation = str(state.get("operation") or "")
    tags = [str(each) for each in getattr(route, "tags", None) or ()] or [str(state.get("tag") or "http")]
    name = operation or getattr(route, "name", "") or "unknown"
    caller = state.get("caller")
    client = scope.get("client")
    method = "WEBSOCKET" if scope["type"] == "websocket" else str(scope.get("method", ""))
    made = location.rpartition("/")[2]
    target = str(state.get("target") or next((str(each) for name, each in params.items() if name.endswith("_id")), "") or made)
    return Facts(
        request_id=str(state.get("request_id", "")),
        method=method if method in METHODS or method == "WEBSOCKET" else "OTHER",
        route=str(template),
        action=f"{tags[0]}.{name}",
        tenant=str(getattr(caller, "tenant", "")),
        key=str(getattr(caller, "key", "")),
        address=str(client[0]) if client else "",
        target=mask_keys(target[:MOST_CHARS]),
        status=status,
        code=str(state.get("code") or ""),
        seconds=seconds,
        changes=_changes(method, tags[0], state),
        operation=operation,
        trace=str(state.get("trace") or ""),
    )


def _changes(method: str, tag: str, state: Mapping[str, Any]) -> bool:
    """Return whether something may have changed. What leaves a sandbox as files counts, too."""
    if (known := state.get("changes")) is not None:
        return bool(known)
    return method not in ("GET", "HEAD", "OPTIONS") or tag == "files"


def mask_keys(text: str) -> str:
    """Return the text with what looks like a key cut off: somebody may send one in the place of an id."""
    return _KEY.sub(r"\1…", text)


def note(scope: MutableMapping[str, Any], **known: Any) -> None:
    """Note something of a request that only the route knows: ``code``, ``target``, ``operation``, ``changes``, ``caller``.

    The route of a dialect that is no route of FastAPI says its ``tag``, too.
    """
    scope.setdefault("state", {}).update(known)
