"""A kept sandbox outlives its hosts: who serves it, who may take it over, and when it ends for want of a host."""

from __future__ import annotations

import time

from ..protocol.reattach import OWNER_DEAD, SILENT_SECONDS, TAKE_OVER, Call, answer_prefix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Lease:
    """How long a sandbox waits for its host: times are monotonic seconds.

    A host that sends nothing for this long is gone, though the pipe may stand (an engine that went under live-restore).
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.heard = time.monotonic()

    def left(self) -> float:
        """Seconds until the sandbox is to end, unless its host is heard."""
        return self.heard + self.seconds - time.monotonic()

    def renew(self) -> None:
        """The host was heard."""
        self.heard = time.monotonic()


class Keeper(Lease):
    """The lease of a kept sandbox, and its present host."""

    def __init__(self, token: bytes, seconds: float, nonce: bytes, where: bytes) -> None:
        super().__init__(seconds)
        self.token = token
        self._prefix = answer_prefix(token)
        self._nonce = nonce
        self._where = where
        self.detached = False

    def alone(self) -> bool:
        """Whether it has no host, as far as can be told."""
        return self.detached or time.monotonic() - self.heard >= SILENT_SECONDS

    def accepts(self, call: Call) -> bool:
        """Whether the caller becomes the host: nobody is, or it is the same one again, or it may take over."""
        dead = bool(call.flags & OWNER_DEAD) and call.where == self._where
        return bool(self.alone() or self.same_host(call) or dead or call.flags & TAKE_OVER)

    def same_host(self, call: Call) -> bool:
        """Whether the present host calls: its stream was cut, or it calls twice because the answer was late."""
        return self._nonce in (call.replaces, call.nonce)

    def take(self, call: Call) -> bytes:
        """The caller is the host from now on; what it is answered."""
        self._nonce, self._where, self.detached = call.nonce, call.where, False
        self.renew()
        return self._prefix + call.nonce


def lease_of(hello: dict[str, Any], nonce: bytes) -> Lease:
    """The lease that the first HELLO asks for."""
    keep = hello.get("keep")
    if not keep:
        return Lease(float(hello["place"]["limits"]["lease_seconds"]))
    return Keeper(bytes.fromhex(keep["token"]), float(keep["seconds"]), nonce, bytes.fromhex(keep["where"]))
