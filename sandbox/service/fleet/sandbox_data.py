"""A sandbox as it is answered."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from sandbox.docker.spec import SandboxSpec
from sandbox.service.clock import iso
from sandbox.service.store.tables.sandboxes import SandboxRecord

# Sandboxes are often made from the same spec, and a list has many of them.
MOST_SPECS = 1024


def sandbox_data(record: SandboxRecord) -> dict[str, Any]:
    """Return what is answered of a sandbox. Values of its variables are not."""
    return {
        "id": record.id,
        "state": record.state,
        "reason": record.reason,
        "post_mortem": record.post_mortem,
        "created_at": iso(record.created_at),
        "ends_at": iso(record.ends_at),
        "ended_at": iso(record.ended_at),
        "time_to_live_seconds": record.time_to_live_seconds,
        "metadata": dict(record.metadata),
        **_of_spec(json.dumps(record.spec, sort_keys=True)),
        "secrets": dict(record.options.get("secrets", {})),
        "cache": bool(record.options.get("cache")),
        "description": dict(record.description),
    }


def _service_data(service: Any) -> dict[str, Any]:
    """Return what is answered of a service. Of its headers with secrets that is nothing."""
    return {
        "name": service.name,
        "upstream": service.upstream,
        "methods": list(service.methods),
        "paths": list(service.paths),
        "plain_headers": dict(service.plain_headers),
    }


@lru_cache(MOST_SPECS)
def _of_spec(data: str) -> dict[str, Any]:
    """Return what is answered of a spec, which came from ``to_data``. Nobody may change it."""
    spec = SandboxSpec.from_data(json.loads(data))
    return {
        "image": spec.image,
        "profile": spec.profile,
        "idle_seconds": spec.limits.idle_seconds,
        "limits": asdict(spec.limits),
        "network": {
            "mode": spec.network.mode,
            "rules": [rule.text for rule in spec.network.rules],
            "denied": [rule.text for rule in spec.network.denied],
            "exempt": [rule.text for rule in spec.network.exempt],
        },
        "env": list(spec.env),
        "services": [_service_data(service) for _, service in spec.services],
    }
