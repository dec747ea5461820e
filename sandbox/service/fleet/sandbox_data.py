"""A sandbox as it is answered."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sandbox.docker.spec import SandboxSpec
from sandbox.service.clock import iso
from sandbox.service.store.sandboxes import SandboxRecord


def sandbox_data(record: SandboxRecord) -> dict[str, Any]:
    """Return what is answered of a sandbox. Values of its variables are not."""
    spec = SandboxSpec.from_data(record.spec)
    return {
        "id": record.id,
        "state": record.state,
        "reason": record.reason,
        "post_mortem": record.post_mortem,
        "image": spec.image,
        "profile": spec.profile,
        "created_at": iso(record.created_at),
        "ends_at": iso(record.ends_at),
        "ended_at": iso(record.ended_at),
        "time_to_live_seconds": record.time_to_live_seconds,
        "idle_seconds": spec.limits.idle_seconds,
        "metadata": dict(record.metadata),
        "limits": asdict(spec.limits),
        "network": {
            "mode": spec.network.mode,
            "rules": [rule.text for rule in spec.network.rules],
            "denied": [rule.text for rule in spec.network.denied],
        },
        "env": list(spec.env),
        "description": dict(record.description),
    }
