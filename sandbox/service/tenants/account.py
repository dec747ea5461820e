"""One tenant of a running service: what holds for it, and what it uses as time passes. It is used in the loop alone."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

from sandbox.service.clock import iso, now
from sandbox.service.http.problems import Problem, ProblemCode
from sandbox.service.requests.spill import SpillRoom
from sandbox.service.store.tables.tenants import TenantRecord
from sandbox.text.wording import size

from .amounts import MILLI
from .ledger import Ledger
from .meters import Meter
from .rules import Ceiling, Quota

MINUTE, DAY = 60.0, 86400.0


class Account:
    """A tenant. ``output`` is the room for output that is kept for those who were cut."""

    def __init__(self, record: TenantRecord, ceiling: Ceiling, quota: Quota, output: SpillRoom) -> None:
        self.output = output
        self.set(record, ceiling, quota)
        self.requests, self.creates = Meter(MINUTE), Meter(MINUTE)
        self.transfers = Meter(DAY, record.transferred, record.transferred_at)
        self.transfers_changed = False
        self.under_way = 0

    def set(self, record: TenantRecord, ceiling: Ceiling, quota: Quota) -> None:
        """Have something else hold from now on. What is in use already is not touched."""
        self.record, self.ceiling, self.quota = record, ceiling, quota
        self.output.set_most(quota.output_bytes)

    @property
    def id(self) -> str:
        """The id of the tenant."""
        return self.record.id

    @property
    def is_deleting(self) -> bool:
        """Whether the tenant is being deleted."""
        return self.record.deleting_at is not None

    # Requests

    def enter(self) -> None:
        """Count a request that begins. Raises Problem if that is one too many; else ``leave`` follows."""
        most = self.quota.requests_under_way
        if most is not None and self.under_way >= most:
            detail = f"{self.under_way} requests of this tenant are under way, of {most} at once."
            raise _exceeded("requests_under_way", detail, most, self.under_way, 1.0)
        self._spend("requests_per_minute", self.requests, 1, self.quota.requests_per_minute)
        if (bytes_left := self.transfer_left()) is not None and bytes_left <= 0:
            raise self._transfer_over()
        self.under_way += 1

    def leave(self) -> None:
        """Count a request that has ended."""
        self.under_way -= 1

    def create(self, count: int) -> None:
        """Count sandboxes that are about to be made. Raises Problem if those are too many."""
        self._spend("creates_per_minute", self.creates, count, self.quota.creates_per_minute)

    def _spend(self, name: str, meter: Meter, amount: int, most: int | None) -> None:
        if most is None:
            return
        wait = meter.spend(amount, most, time.monotonic())
        if wait == math.inf:
            detail = f"A request for {amount} at once exceeds the quota {name}, which is {most}."
            raise Problem(
                403, ProblemCode.quota_exceeded, detail, f"Ask for at most {most}.", quota=name, limit=most, used=amount
            )
        if wait:
            what = name.replace("_per_", " per ")
            raise _exceeded(name, f"This tenant has used up its {most} {what}.", most, most, wait)

    # Transfers

    def transfer(self, count: int) -> Problem | None:
        """Count bytes of a body, in or out; return the problem if those are too many."""
        most = self.quota.transfer_bytes_per_day
        if most is None:
            return None
        self.transfers_changed = True
        return self._transfer_over() if self.transfers.add(count, most, now()) else None

    def transfer_left(self) -> int | None:
        """Return how many bytes may be transferred now; None if there is no bound."""
        most = self.quota.transfer_bytes_per_day
        return None if most is None else self.transfers.left(most, now())

    def _transfer_over(self) -> Problem:
        most = self.quota.transfer_bytes_per_day or 0
        detail = f"This tenant has used its {size(most)} of transfers a day."
        wait = DAY if most == 0 else max(1.0, (self.transfers.level - most) * DAY / most)
        return _exceeded("transfer_bytes_per_day", detail, most, round(self.transfers.level), max(wait, 60.0))

    # What is shown

    def headers(self, ledger: Ledger) -> Iterator[tuple[str, str]]:
        """Yield the headers of an answer that say what is left."""
        policies, states = [], []
        at = time.monotonic()
        for name, meter, most in (
            ("requests", self.requests, self.quota.requests_per_minute),
            ("creates", self.creates, self.quota.creates_per_minute),
        ):
            if most is not None:
                left, reset = meter.left(most, at), meter.reset_seconds(most, at)
                policies.append(f'"{name}";q={most};w=60')
                states.append(f'"{name}";r={left};t={reset}')
                if name == "requests":
                    yield "X-RateLimit-Limit", str(most)
                    yield "X-RateLimit-Remaining", str(left)
                    yield "X-RateLimit-Reset", str(reset)
        if policies:
            yield "RateLimit-Policy", ", ".join(policies)
            yield "RateLimit", ", ".join(states)
        used = self.used(ledger)
        amounts = [
            f'"{name}";q={most};r={max(0, most - used[name])}' for name, most in self._bounds() if most is not None
        ]
        if amounts:
            yield "Gamebox-Quota", ", ".join(amounts)

    def used(self, ledger: Ledger) -> dict[str, Any]:
        """Return what the tenant has in use, by the names of the quotas."""
        held, at = ledger.used(self.id), time.monotonic()
        found: dict[str, Any] = {
            "sandboxes": held.sandboxes,
            "memory_bytes": held.memory_bytes,
            "cpus": held.milli_cpus / MILLI,
            "disk_bytes": held.disk_bytes,
            "checkpoint_bytes": ledger.stored_bytes(self.id),
            "volumes": ledger.volumes.get(self.id, (0, 0))[0],
            "volume_bytes": ledger.volumes.get(self.id, (0, 0))[1],
            "output_bytes": self.output.taken,
            "requests_under_way": self.under_way,
        }
        for name, meter, most in (
            ("creates_per_minute", self.creates, self.quota.creates_per_minute),
            ("requests_per_minute", self.requests, self.quota.requests_per_minute),
        ):
            found[name] = None if most is None else most - meter.left(most, at)
        left, most = self.transfer_left(), self.quota.transfer_bytes_per_day
        found["transfer_bytes_per_day"] = None if left is None or most is None else most - left
        return found

    def data(self) -> dict[str, Any]:
        """Return what is answered of the tenant: what was set for it, and what holds."""
        return {
            "id": self.id,
            "name": self.record.name,
            "state": "deleting" if self.is_deleting else "active",
            "created_at": iso(self.record.created_at),
            "set": {"ceiling": dict(self.record.ceiling), "quota": dict(self.record.quota)},
            **self.rules(),
        }

    def rules(self) -> dict[str, Any]:
        """Return what holds for the tenant."""
        return {"ceiling": self.ceiling.model_dump(mode="json"), "quota": self.quota.model_dump(mode="json")}

    def _bounds(self) -> Iterator[tuple[str, float | int | None]]:
        quota = self.quota
        yield "sandboxes", quota.sandboxes
        yield "memory_bytes", quota.memory_bytes
        yield "cpus", quota.cpus
        yield "disk_bytes", quota.disk_bytes
        yield "checkpoint_bytes", quota.checkpoint_bytes
        yield "volumes", quota.volumes
        yield "volume_bytes", quota.volume_bytes
        yield "output_bytes", quota.output_bytes
        yield "requests_under_way", quota.requests_under_way
        yield "transfer_bytes_per_day", quota.transfer_bytes_per_day


def _exceeded(name: str, detail: str, most: int, used: int, wait: float) -> Problem:
    seconds = max(1, math.ceil(wait))
    return Problem(
        429,
        ProblemCode.quota_exceeded,
        detail,
        f"Send it again in {seconds} s. GET /v1/quota shows what is in use.",
        retryable=True,
        headers={"Retry-After": str(seconds)},
        quota=name,
        limit=most,
        used=used,
    )
