"""The lease of a sandbox: when it ends for lack of a host, and which host may take over a kept one."""

from __future__ import annotations

import time

from ..protocol.reattach import OWNER_DEAD, SILENT_SECONDS, TAKE_OVER, Call, answer_prefix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Lease:
    """How many seconds a sandbox waits for a sign of its host.

    A host that sends nothing for this long is gone, even if the pipe is open (an engine that ended under live-restore).
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.last_heard = time.monotonic()

    def left(self) -> float:
        """Return the seconds until the sandbox ends if its host stays silent."""
        return self.last_heard + self.seconds - time.monotonic()

    def renew(self) -> None:
        """Start the lease again: the host sent something."""
        self.last_heard = time.monotonic()


class KeptLease(Lease):
    """The lease of a kept sandbox, and its current host."""

    def __init__(self, token: bytes, seconds: float, nonce: bytes, where: bytes) -> None:
        super().__init__(seconds)
        self.token = token
        self._prefix = answer_prefix(token)
        self._nonce = nonce
        self._where = where
        self.detached = False

    def alone(self) -> bool:
        """Return whether the sandbox has no host: it detached, or was silent for too long."""
        return self.detached or time.monotonic() - self.last_heard >= SILENT_SECONDS

    def accepts(self, call: Call) -> bool:
        """Return whether the caller may become the host: there is none, it is the current one, or it may take over."""
        dead = bool(call.flags & OWNER_DEAD) and call.where == self._where
        return bool(self.alone() or self.same_host(call) or dead or call.flags & TAKE_OVER)

    def same_host(self, call: Call) -> bool:
        """Return whether the current host calls: its stream was cut, or it calls twice because the answer was late."""
        return self._nonce in (call.replaces, call.nonce)

    def accept(self, call: Call) -> bytes:
        """Make the caller the host. Returns the answer to its call."""
        self._nonce, self._where, self.detached = call.nonce, call.where, False
        self.renew()
        return self._prefix + call.nonce


def lease_of(hello: dict[str, Any], nonce: bytes) -> Lease:
    """Return the lease that the first HELLO asks for."""
    keep = hello.get("keep")
    if not keep:
        return Lease(float(hello["place"]["limits"]["lease_seconds"]))
    return KeptLease(bytes.fromhex(keep["token"]), float(keep["seconds"]), nonce, bytes.fromhex(keep["where"]))
