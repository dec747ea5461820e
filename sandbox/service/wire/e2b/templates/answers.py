"""Templates as clients of E2B are told of them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from sandbox.limits import MIB
from sandbox.service.settings import Settings
from sandbox.service.store.tables.templates import BuildRecord, Tag, TemplateRecord
from sandbox.service.templates.build_log import Entry
from sandbox.service.wire.e2b.answers import ENVD_VERSION


def time_text(at: float) -> str:
    """Return a time as E2B writes it."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def requested(template: TemplateRecord, build: BuildRecord) -> dict[str, Any]:
    """Return what is answered to a build that was asked for."""
    return {**_names(template), "buildID": build.id, "public": False, "tags": list(build.tags)}


def template(found: TemplateRecord, builds: Iterable[BuildRecord], settings: Settings) -> dict[str, Any]:
    """Return a template as lists have it: with its last build, or the last one that is ready."""
    known = list(builds)
    last = next((each for each in known if each.state == "ready"), known[0] if known else None)
    return {
        **_head(found),
        "buildID": "" if last is None else last.id,
        "cpuCount": 0 if last is None else max(1, round(last.cpus)),
        "memoryMB": 0 if last is None else last.memory_bytes // MIB,
        "diskSizeMB": settings.disk_bytes // MIB,
        "createdBy": None,
        "buildCount": len(known),
        "envdVersion": ENVD_VERSION,
        "buildStatus": "waiting" if last is None else last.state,
    }


def with_builds(found: TemplateRecord, builds: Iterable[BuildRecord], settings: Settings) -> dict[str, Any]:
    """Return a template with its builds."""
    return {**_head(found), "builds": [_build(each, settings) for each in builds]}


def status(build: BuildRecord, entries: Iterable[Entry]) -> dict[str, Any]:
    """Return how a build is going, with a page of its log."""
    lines = [entry(each) for each in entries]
    reason = dict(build.reason)
    return {
        "templateID": build.template,
        "buildID": build.id,
        "status": build.state,
        "logs": [each["message"] for each in lines],
        "logEntries": lines,
        **({"reason": {**reason, "logEntries": []}} if reason else {}),
    }


def entry(found: Entry) -> dict[str, Any]:
    """Return an entry of a log."""
    rest = {name: value for name, value in found.items() if name != "at"}
    return {"timestamp": time_text(found["at"]), **rest}


def tag(found: Tag) -> dict[str, Any]:
    """Return a tag."""
    return {"tag": found.name, "buildID": found.build, "createdAt": time_text(found.created_at)}


def _names(found: TemplateRecord) -> dict[str, Any]:
    return {"templateID": found.id, "names": [f"{found.tenant}/{found.name}"], "aliases": [found.name]}


def _head(found: TemplateRecord) -> dict[str, Any]:
    return {
        **_names(found),
        "public": False,
        "createdAt": time_text(found.created_at),
        "updatedAt": time_text(found.updated_at),
        "lastSpawnedAt": None if found.used_at is None else time_text(found.used_at),
        "spawnCount": found.uses,
    }


def _build(found: BuildRecord, settings: Settings) -> dict[str, Any]:
    ended = {} if found.finished_at is None else {"finishedAt": time_text(found.finished_at)}
    return {
        "buildID": found.id,
        "status": found.state,
        "createdAt": time_text(found.created_at),
        "updatedAt": time_text(found.updated_at),
        **ended,
        "cpuCount": max(1, round(found.cpus)),
        "memoryMB": found.memory_bytes // MIB,
        "diskSizeMB": settings.disk_bytes // MIB,
        "envdVersion": ENVD_VERSION,
    }
