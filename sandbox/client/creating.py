"""Create a sandbox of a service, once however often it is asked for, and undo a creation that was interrupted."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field
from typing import Any

import httpx

from sandbox.errors import SandboxError
from sandbox.frozen import dataclass
from sandbox.interrupts import Shield

from .http.service import Call, Service

# A start may wait for an image to be built.
START_SECONDS = 600.0
UNDO_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Creation:
    """A sandbox that is asked for at ``path``, with what makes asking again safe."""

    service: Service
    path: str
    body: Mapping[str, Any]
    key: str = field(default_factory=lambda: secrets.token_hex(16))

    def carry_out(self) -> Any:
        """Return what the service says of the new sandbox. Raises SandboxError; nothing is left behind after an interruption."""
        try:
            return self.service.json(self._call(START_SECONDS))
        except SandboxError:
            raise
        except BaseException:  # the service makes it all the same
            with Shield():
                self._undo()
            raise

    def _call(self, seconds: float) -> Call:
        headers = {"Idempotency-Key": self.key}
        body = json.dumps(self.body).encode()
        return Call("POST", self.path, body, headers=headers, read_seconds=seconds, repeatable=True)

    def _undo(self) -> None:
        with suppress(SandboxError, httpx.HTTPError, ValueError, AttributeError):
            said = self.service.send_once(self._call(UNDO_SECONDS)).json()
            made = [said, *said.get("items", ())]
            for ident in [each.get("id") or each.get("sandbox_id") for each in made]:  # made, or being made
                if isinstance(ident, str) and ident.isalnum():
                    path = f"/v1/sandboxes/{ident}"
                    self.service.request(Call("DELETE", path, read_seconds=UNDO_SECONDS, patience_seconds=0))
