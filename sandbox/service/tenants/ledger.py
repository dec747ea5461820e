"""What the sandboxes of all tenants take: reserved before a sandbox is written down, released when nothing of it is left.

It is kept in memory, and is a fold of the records in the store: after a kill it is made again from those. It never waits, so what
is checked and what is reserved are one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from sandbox.errors import ErrorCode
from sandbox.frozen import dataclass
from sandbox.service.http.problems import Problem, ProblemCode
from sandbox.text.wording import size

from .amounts import MILLI, Amounts, DiskRoom
from .rules import Quota

log = logging.getLogger(__name__)

# Where nothing says when something will be released.
RETRY_SECONDS = 15


@dataclass(slots=True)
class _Account:
    """What one tenant has: ``held`` by the ids of its sandboxes, ``stored`` are bytes of checkpoints and snapshots."""

    held: dict[str, Amounts] = field(default_factory=dict)
    total: Amounts = field(default_factory=Amounts)
    stored: dict[str, int] = field(default_factory=dict)
    stored_bytes: int = 0


class Ledger:
    """The reservations. ``quota_of`` returns the quota of a tenant; ``disk_factor`` how often free space may be promised."""

    def __init__(self, quota_of: Callable[[str], Quota], disk_factor: float) -> None:
        self._quota_of, self._disk_factor = quota_of, disk_factor
        self._accounts: dict[str, _Account] = {}
        self._tenants: dict[str, str] = {}  # by the ids of sandboxes
        self._paused: dict[str, Amounts] = {}  # what they take when they run
        self.volumes: dict[str, tuple[int, int]] = {}
        """How many volumes each tenant has, and their bytes when they were last counted."""
        self.promised_bytes = 0
        """The disks of all sandboxes together."""

    def used(self, tenant: str) -> Amounts:
        """Return what the sandboxes of a tenant take together."""
        return self._account(tenant).total

    def stored_bytes(self, tenant: str) -> int:
        """Return the size of a tenant's checkpoints and snapshots."""
        return self._account(tenant).stored_bytes

    # Sandboxes

    def restore(
        self, tenant: str, sandbox: str, amounts: Amounts, *, paused: bool = False, stopped: bool = False
    ) -> None:
        """Note a sandbox that the store has. Nothing is refused: it is there."""
        self._hold(tenant, sandbox, amounts)
        if paused:
            self.pause(sandbox, stopped=stopped)

    def reserve(self, tenant: str, wanted: Mapping[str, Amounts], room: DiskRoom | None) -> None:
        """Reserve what new sandboxes take, by their ids, all of it or nothing. Raises Problem.

        ``room`` is that for disks, None if it is not known.
        """
        together = sum(wanted.values(), Amounts())
        self._check(tenant, together)
        if room is not None and together.disk_bytes:
            there = room.free_bytes + min(room.written_bytes, self.promised_bytes)
            left = max(0, int(there * self._disk_factor) - self.promised_bytes)
            if together.disk_bytes > left:
                raise _no_room(together, left, int(room.total_bytes * self._disk_factor))
        for sandbox, amounts in wanted.items():
            self._hold(tenant, sandbox, amounts)

    def release(self, sandbox: str) -> None:
        """Release what a sandbox takes; does nothing if that was done."""
        tenant = self._tenants.pop(sandbox, None)
        if tenant is None:
            return
        account = self._account(tenant)
        amounts = account.held.pop(sandbox)
        account.total -= amounts
        self.promised_bytes -= amounts.disk_bytes
        self._paused.pop(sandbox, None)
        self._tidy(tenant)

    def pause(self, sandbox: str, *, stopped: bool = False) -> None:
        """Release the processors of a sandbox. It keeps memory and disk; one that is ``stopped`` has no memory either."""
        tenant = self._tenants.get(sandbox)
        if tenant is None or sandbox in self._paused:
            return
        amounts = self._account(tenant).held[sandbox]
        self._paused[sandbox] = amounts
        self._replace(tenant, sandbox, amounts.stopped() if stopped else amounts.paused())

    def resume(self, sandbox: str, *, forced: bool = False) -> None:
        """Reserve again what it has released. Raises Problem, unless it is ``forced``: it runs already."""
        amounts = self._paused.get(sandbox)
        if amounts is None:
            return
        tenant = self._tenants[sandbox]
        if not forced:
            self._check(tenant, amounts - self._account(tenant).held[sandbox])
        del self._paused[sandbox]
        self._replace(tenant, sandbox, amounts)

    # Checkpoints

    def store(self, tenant: str, sandbox: str, size_bytes: int, *, forced: bool = False) -> bool:
        """Reserve room for a checkpoint; return whether there is enough. ``forced``: it is there already."""
        return (forced or sandbox in self._tenants) and self.keep(tenant, sandbox, size_bytes, forced=forced)

    def keep(self, tenant: str, place: str, size_bytes: int, *, forced: bool = False) -> bool:
        """Reserve room for what belongs to no sandbox; return whether there is enough. ``forced``: it is there already."""
        most = None if forced else self._quota_of(tenant).checkpoint_bytes
        if most is not None and self.stored_bytes(tenant) + size_bytes > most:
            return False
        account = self._account(tenant)
        account.stored[place] = account.stored.get(place, 0) + size_bytes
        account.stored_bytes += size_bytes
        return True

    def unstore(self, tenant: str, sandbox: str, size_bytes: int | None = None) -> None:
        """Release the room of a checkpoint, or of all of a sandbox."""
        account = self._account(tenant)
        known = account.stored.pop(sandbox, 0)
        gone = known if size_bytes is None else min(known, size_bytes)
        if known > gone:
            account.stored[sandbox] = known - gone
        account.stored_bytes -= gone
        self._tidy(tenant)

    # Parts

    def _account(self, tenant: str) -> _Account:
        return self._accounts.setdefault(tenant, _Account())

    def _tidy(self, tenant: str) -> None:
        account = self._accounts.get(tenant)
        if account is not None and not account.held and not account.stored:
            del self._accounts[tenant]

    def _hold(self, tenant: str, sandbox: str, amounts: Amounts) -> None:
        if sandbox in self._tenants:
            raise ValueError(f"the sandbox {sandbox} is reserved for already")
        account = self._account(tenant)
        self._tenants[sandbox] = tenant
        account.held[sandbox] = amounts
        account.total += amounts
        self.promised_bytes += amounts.disk_bytes

    def _replace(self, tenant: str, sandbox: str, amounts: Amounts) -> None:
        account = self._account(tenant)
        account.total += amounts - account.held[sandbox]
        account.held[sandbox] = amounts

    def _check(self, tenant: str, more: Amounts) -> None:
        quota, used = self._quota_of(tenant), self.used(tenant)
        cpus = None if quota.cpus is None else round(quota.cpus * MILLI)
        for name, most, have, want in (
            ("sandboxes", quota.sandboxes, used.sandboxes, more.sandboxes),
            ("memory_bytes", quota.memory_bytes, used.memory_bytes, more.memory_bytes),
            ("cpus", cpus, used.milli_cpus, more.milli_cpus),
            ("disk_bytes", quota.disk_bytes, used.disk_bytes, more.disk_bytes),
        ):
            if most is not None and want and have + want > most:
                raise over_quota(name, most, have, want)


@dataclass(frozen=True, slots=True)
class CheckpointRoom:
    """What the checkpoints of one sandbox may take of its tenant's quota."""

    ledger: Ledger
    tenant: str
    sandbox: str

    def take(self, size_bytes: int) -> bool:
        """Reserve room; return whether there was enough."""
        return self.ledger.store(self.tenant, self.sandbox, size_bytes)

    def give_back(self, size_bytes: int | None = None) -> None:
        """Release room; all that the sandbox has without ``size_bytes``."""
        self.ledger.unstore(self.tenant, self.sandbox, size_bytes)


def over_quota(name: str, most: int, have: int, want: int) -> Problem:
    """Return the problem of what does not fit into a quota: 403 if it never will, else 429."""
    shown = {word: _shown(name, amount) for word, amount in (("most", most), ("have", have), ("want", want))}
    what = name.removesuffix("_bytes").replace("_", " ")
    detail = f"This needs {shown['want']} of the quota {what}, and {shown['have']} of {shown['most']} are in use."
    fields: dict[str, Any] = {"quota": name, "limit": _number(name, most), "used": _number(name, have)}
    if want > most:
        hint = f"Ask for at most {shown['most']}; GET /v1/quota shows all quotas. The operator sets them."
        return Problem(403, ProblemCode.quota_exceeded, detail, hint, **fields)
    return Problem(
        429,
        ProblemCode.quota_exceeded,
        detail,
        "Delete a sandbox that is no longer needed (DELETE /v1/sandboxes/{id}), or wait until one ends; "
        "GET /v1/quota shows what is in use.",
        retryable=True,
        headers={"Retry-After": str(RETRY_SECONDS)},
        **fields,
    )


def _number(name: str, amount: int) -> float | int:
    return amount / MILLI if name == "cpus" else amount


def _shown(name: str, amount: int) -> str:
    return size(amount) if name.endswith("_bytes") else f"{_number(name, amount):g}"


def _no_room(want: Amounts, left: int, all_bytes: int) -> Problem:
    """Return the problem of disks that do not fit on the host: 422 if they never will, else 503."""
    largest = left // want.sandboxes * 2 // 3  # half of it comes on top for a /tmp on the disk
    fits = f"Ask for a disk_bytes of at most {largest}, which fits now"
    if want.disk_bytes > all_bytes:
        detail = f"This needs {size(want.disk_bytes)} of disk, and all sandboxes of the host together can have {size(all_bytes)}."
        return Problem(422, ErrorCode.invalid_limits, detail, f"{fits}.", largest_disk_bytes=largest)
    return Problem(
        503,
        ErrorCode.capacity,
        f"This needs {size(want.disk_bytes)} of disk, and the host has {size(left)} left.",
        f"{fits}, or try again when other sandboxes have ended.",
        retryable=True,
        headers={"Retry-After": str(RETRY_SECONDS)},
        largest_disk_bytes=largest,
    )
