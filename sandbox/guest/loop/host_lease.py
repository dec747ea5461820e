"""The lease of a sandbox: when it ends for lack of a host, and which host may take over a kept one."""

from __future__ import annotations

import time

from ..builtin import deque
from ..protocol.reattach import NO_NONCE, OWNER_DEAD, SILENT_SECONDS, TAKE_OVER, Call, answer_prefix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


# A call is repeated through another entrance, and may arrive there after another host's.
MOST_PAST_NONCES = 64


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

    def begin(self) -> None:
        """Note that somebody uses the sandbox from now on."""


class KeptLease(Lease):
    """The lease of a kept sandbox, and its current host."""

    def __init__(self, token: bytes, seconds: float, nonce: bytes, where: bytes) -> None:
        super().__init__(seconds)
        self.token = token
        self._prefix = answer_prefix(token)
        self._nonce = nonce
        self._past_nonces: deque[bytes] = deque(maxlen=MOST_PAST_NONCES)
        self._where = where
        self._called_at = 0  # the first host did not call
        self.detached = False
        self._kept_seconds = seconds
        # Whether time without a host counts as idle.
        self.idles_alone = False

    def stand_by(self, seconds: float) -> None:
        """Wait no longer than ``seconds`` for a host until ``begin``."""
        self.seconds = min(seconds, self.seconds)

    def begin(self) -> None:
        """Wait for a host as long as the sandbox is to be kept."""
        self.seconds = self._kept_seconds

    def alone(self) -> bool:
        """Return whether the sandbox has no host: it detached, or was silent for too long."""
        return self.detached or time.monotonic() - self.last_heard >= SILENT_SECONDS

    def vacate(self) -> None:
        """Note that the host is gone for certain: any other may come now, and has the whole time of the lease."""
        self.detached = True
        self.renew()

    def accepts(self, call: Call, answered: bool = False) -> bool:
        """Return whether the caller may become the host: there is none, it is the current one, or it may take over.

        A host that has lost the sandbox to another does not get it back by calling again, even when that one has left. ``answered``
        says that the current host has had the answer to its call: what repeats that call comes late. So does a call that was made
        before that of the current host, at the same place.
        """
        if self.same_host(call):
            return not (answered and call.nonce == self._nonce)
        late = call.where == self._where and call.made_at <= self._called_at
        if late or call.replaces != NO_NONCE or call.nonce in self._past_nonces:
            return False
        dead = bool(call.flags & OWNER_DEAD) and call.where == self._where
        return bool(self.alone() or dead or call.flags & TAKE_OVER)

    def same_host(self, call: Call) -> bool:
        """Return whether the current host calls: its stream was cut, or it calls twice because the answer was late."""
        return self._nonce in (call.replaces, call.nonce)

    def accept(self, call: Call) -> bytes:
        """Make the caller the host. Returns the answer to its call."""
        if call.nonce != self._nonce:
            self._past_nonces.append(self._nonce)
        self._nonce, self._where, self._called_at, self.detached = call.nonce, call.where, call.made_at, False
        self.renew()
        return self._prefix + call.nonce


def lease_of(hello: dict[str, Any], nonce: bytes) -> Lease:
    """Return the lease that the first HELLO asks for."""
    keep = hello.get("keep")
    if not keep:
        return Lease(float(hello["place"]["limits"]["lease_seconds"]))
    lease = KeptLease(bytes.fromhex(keep["token"]), float(keep["seconds"]), nonce, bytes.fromhex(keep["where"]))
    lease.idles_alone = keep.get("idles_alone") is True
    if hello.get("stands_by") is True and (seconds := keep.get("stands_by_seconds")) is not None:
        lease.stand_by(float(seconds))
    return lease
