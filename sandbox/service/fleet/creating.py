"""What is written down of a sandbox before it is started, and what those are answered who ask for the same one again."""

from __future__ import annotations

import secrets
import string
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sandbox.docker.environment import DockerEnvironment
from sandbox.docker.spec import SandboxSpec
from sandbox.frozen import dataclass
from sandbox.service.clock import now
from sandbox.service.http.problems import Problem, ProblemCode
from sandbox.service.store.tables.requests import Creation
from sandbox.service.store.tables.sandboxes import SandboxRecord

from . import engine
from .provision import Provision

if TYPE_CHECKING:
    from .admission.pools import Taken


# A service that is restarted meanwhile still comes to pause it.
PAUSE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class NewSandbox:
    """A sandbox that is not started yet. Its container's name is written down first: whatever happens, it is found by that."""

    record: SandboxRecord
    environment: DockerEnvironment
    provision: Provision
    taken: Taken | None = None
    """What stands by for it in a pool; its container is then that one's."""


def new_sandbox(
    tenant: str,
    spec: SandboxSpec,
    provision: Provision,
    metadata: Mapping[str, str],
    life_seconds: float,
) -> NewSandbox:
    """Return a sandbox of the tenant that lives so long. Raises SandboxError for a spec that cannot be fulfilled, or may not be."""
    provision.check(spec)
    spec = replace(spec, limits=replace(spec.limits, lifetime_seconds=life_seconds + seconds_to_pause(provision.options)))
    environment, ident = engine.prepared(spec, provision)
    at = now()
    name = new_id()
    record = SandboxRecord(
        id=name,
        tenant=tenant,
        ident=ident,
        state="creating",
        created_at=at,
        ends_at=at + life_seconds,
        time_to_live_seconds=life_seconds,
        metadata=dict(metadata),
        spec=spec.to_data(),
        options=dict(provision.options),
        sealed=provision.sealed_for(tenant, name),
    )
    return NewSandbox(record, environment, provision)


def pauses_at_end(options: Mapping[str, Any]) -> bool:
    """Return whether a sandbox with these options is paused when its time is over, and not ended."""
    return options.get("at_end") == "pause"


def stops_at_end(options: Mapping[str, Any]) -> bool:
    """Return whether a sandbox that is paused when its time is over is stopped then, so that only its files are kept."""
    return options.get("at_end_memory") is False


def seconds_to_pause(options: Mapping[str, Any]) -> float:
    """Return how long the guest waits for the service beyond the end of a sandbox that is then to be paused."""
    return PAUSE_SECONDS if pauses_at_end(options) else 0.0


def new_id() -> str:
    """Return an id for a sandbox: 20 letters and digits, a letter first."""
    rest = string.ascii_lowercase + string.digits
    return secrets.choice(string.ascii_lowercase) + "".join(secrets.choice(rest) for _ in range(19))


def answer_of_first(first: Creation, digest: bytes, key: str) -> dict[str, Any]:
    """Return the answer to the first creation with an idempotency key. Raises Problem."""
    if first.digest != digest:
        raise Problem(
            422,
            ProblemCode.idempotency_key_reused,
            f"The Idempotency-Key {key!r:.80} was used for another request.",
            "Give each new creation a key of its own.",
        )
    if first.answer is None:
        raise Problem(
            409,
            ProblemCode.creation_in_progress,
            f"The sandbox {first.sandbox} is still being created for this Idempotency-Key.",
            "Send the same request again in a moment.",
            retryable=True,
            headers={"Retry-After": "1"},
            sandbox_id=first.sandbox,
        )
    return dict(first.answer)
