"""``gamebox run --forward``: ports of the sandbox on the loopback of this host, while the command runs."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sandbox.errors import ErrorCode, SandboxError

if TYPE_CHECKING:
    from sandbox.environment.sandboxed import SandboxedEnvironment

_SPEC = re.compile(r"(?:(\d{1,5}):)?(\d{1,5})")


def ports_of(specs: Sequence[str]) -> list[tuple[int, int]]:
    """(port of the sandbox, port of the host or 0) of each "PORT" or "HOST_PORT:PORT". Raises SandboxError."""
    found = []
    for spec in specs:
        match = _SPEC.fullmatch(spec)
        if match is None or not 0 < int(match[2]) < 65536 or int(match[1] or 0) > 65535:
            raise SandboxError(
                ErrorCode.invalid_configuration,
                f"--forward {spec!r} does not name a port.",
                "Write it as 8000, or as 9000:8000 for port 9000 on this host.",
            )
        found.append((int(match[2]), int(match[1] or 0)))
    return found


def forward(sandbox: SandboxedEnvironment, ports: Sequence[tuple[int, int]]) -> None:
    """Open them, and say on standard error where each is. Raises SandboxError."""
    for port, host_port in ports:
        sys.stderr.write(f"port {port}: {sandbox.forward(port, host_port).unwrap().url}\n")
        sys.stderr.flush()
