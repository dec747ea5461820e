"""Sandboxes as clients of E2B are told of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sandbox.docker.spec import SandboxSpec
from sandbox.limits import MIB
from sandbox.service.clock import now
from sandbox.service.house import House
from sandbox.service.keys import Caller, Scope
from sandbox.service.ports.traffic import OPTION, traffic_token
from sandbox.service.store.tables.sandboxes import SandboxRecord, stopped_at

from .envd.access import options_of, token_of

# Clients take what they may use from this: all of it is there.
ENVD_VERSION = "0.6.13"
CLIENT_ID = "gamebox"


def created(house: House, caller: Caller, record: SandboxRecord, domain: str) -> dict[str, Any]:
    """Return what is answered to a creation, and to those who connect."""
    return {
        **_names(record),
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": token_of(house, record.id, caller.key),
        "domain": domain,
        **({"trafficAccessToken": traffic_token(house.tokens, record.id)} if record.options.get(OPTION) == "token" else {}),
    }


def listed(record: SandboxRecord) -> dict[str, Any]:
    """Return a sandbox as lists have it."""
    limits = SandboxSpec.from_data(record.spec).limits
    return {
        **_names(record),
        "startedAt": _time(record.created_at),
        "endAt": _time(record.ends_at),
        "cpuCount": max(1, round(limits.cpus)),
        "memoryMB": limits.memory_bytes // MIB,
        "diskSizeMB": limits.files_bytes // MIB,
        "metadata": dict(record.metadata),
        **({"volumeMounts": mounts} if (mounts := (options_of(record) or {}).get("volumeMounts")) else {}),
        "state": record.state,
        **({"pauseMode": "full" if stopped_at(record.options) is None else "filesystem"} if record.state == "paused" else {}),
        "envdVersion": ENVD_VERSION,
    }


def detail(house: House, caller: Caller, record: SandboxRecord, domain: str) -> dict[str, Any]:
    """Return all that is told of a sandbox; its token only to those who may use it."""
    options = options_of(record) or {}
    token = {"envdAccessToken": token_of(house, record.id, caller.key)} if caller.scope >= Scope.use else {}
    network = SandboxSpec.from_data(record.spec).network
    return {
        **listed(record),
        **token,
        "domain": domain,
        "allowInternetAccess": network.mode == "open",
        "network": options.get("network", {}),
        "lifecycle": {"autoResume": bool(options.get("auto_resume")), "onTimeout": options.get("on_timeout", "kill")},
    }


def metrics(record: SandboxRecord, usage: Any, cpu_percent: float) -> dict[str, Any]:
    """Return what the kernel counts for a sandbox, in the words of the REST API."""
    limits = SandboxSpec.from_data(record.spec).limits
    at = now()
    places = [each for each in usage.places if each.path not in ("/tmp", "/var/tmp", "/dev/shm")]  # noqa: S108  # of the sandbox
    return {
        "timestamp": _time(at),
        "timestampUnix": int(at),
        "cpuCount": max(1, round(limits.cpus)),
        "cpuUsedPct": round(cpu_percent, 2),
        "memUsed": usage.memory_used_bytes or 0,
        "memTotal": usage.memory_limit_bytes or limits.memory_bytes,
        "memCache": 0,
        "diskUsed": sum(each.size_bytes - each.free_bytes for each in places),
        "diskTotal": sum(each.size_bytes for each in places),
    }


def _names(record: SandboxRecord) -> dict[str, Any]:
    options = options_of(record) or {}
    template = str(options.get("template", "base"))
    return {"templateID": template, "alias": str(options.get("alias", template)), "sandboxID": record.id, "clientID": CLIENT_ID}


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
