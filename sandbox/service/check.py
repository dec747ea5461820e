"""What ``gamebox serve --check`` says: what a service with these settings can keep up on this host, and what it cannot."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Literal

from sandbox.docker.container.disks import loop_device
from sandbox.docker.container.disks.disk import free_bytes
from sandbox.docker.container.shortcut import may_take_shortcut
from sandbox.docker.engine.client import connect, engine_address, translated
from sandbox.docker.spec import SandboxSpec
from sandbox.errors import SandboxError
from sandbox.frozen import dataclass
from sandbox.limits import Limits
from sandbox.text.wording import size

from .fleet import engine
from .folder import own_folder
from .keys import DEFAULT_TENANT
from .settings import Settings
from .store.database import STORE
from .store.migrations import STEPS
from .store.tables import tenants as tenant_rows
from .store.tables.tenants import TenantRecord
from .tenants.amounts import amounts_of
from .tenants.host_share import measure_host, unbounded
from .tenants.tenants import quota_of
from .tls import local
from .tls.given import check_tls

ENGINE_SECONDS = 10
# Each sandbox takes a few, each request one.
FEW_DESCRIPTORS = 8192
# A store that cannot grow answers 503.
LITTLE_SPACE = 1 << 30
FEW_SANDBOXES = 10
# Tenants without a bound that are named.
MOST_TENANTS = 10


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: ``fails`` says that the service cannot work so, ``limited`` that something does not hold."""

    name: str
    state: Literal["holds", "limited", "fails"]
    text: str


def _tenants(settings: Settings) -> Iterator[Finding]:
    """Say what a tenant may have for which no quota is set, and which tenants have no bound."""
    host = measure_host(settings.data)
    default = settings.default_quota(host)
    if missing := unbounded(default):
        text = f"A tenant for which no quota is set has no bound on {', '.join(missing)}: set [quota] or tenant_share."
        yield Finding("quota", "limited", text)
    else:
        text = (
            f"A tenant for which no quota is set may have {default.sandboxes} sandboxes with {size(default.memory_bytes or 0)} of "
            f"memory and {size(default.disk_bytes or 0)} of disks, and {size(default.checkpoint_bytes or 0)} of checkpoints."
        )
        free = host.free_bytes * settings.disk_factor
        if more := (default.disk_bytes or 0) > free:
            text += f" Only {size(int(free))} of disks can be promised now to all together: set quota.disk_bytes, or free space."
        yield Finding("quota", "limited" if more else "holds", text)
    quotas = {each.id: quota_of(each, settings, default) for each in _records(settings) if each.id != DEFAULT_TENANT}
    free_ones = {ident: names for ident, quota in quotas.items() if (names := unbounded(quota))}
    for ident, names in list(free_ones.items())[:MOST_TENANTS]:
        text = f"The tenant {ident} has no bound on {', '.join(names)}: set its quota with PATCH /v1/tenants/{ident}."
        yield Finding("tenant", "limited", text)
    if len(free_ones) > MOST_TENANTS:
        yield Finding("tenant", "limited", f"{len(free_ones) - MOST_TENANTS} more tenants have no bound.")


def _records(settings: Settings) -> list[TenantRecord]:
    """Return the tenants in the store; none if it cannot be read."""
    path = settings.data / STORE
    if not path.is_file():
        return []
    with contextlib.suppress(sqlite3.Error), closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as store:
        store.row_factory = sqlite3.Row
        return tenant_rows.every(store)
    return []


def examine(settings: Settings) -> list[Finding]:
    """Return what was found. Nothing is started, and a service that runs is not disturbed."""
    return [
        *_engine(settings),
        _folder(settings),
        *_store(settings),
        *_space(settings),
        *_tenants(settings),
        _descriptors(),
        _address(settings),
        *_names(settings),
    ]


def _engine(settings: Settings) -> Iterator[Finding]:
    try:
        client = connect(ENGINE_SECONDS)
        with translated():
            info, version = client.info(), client.version()["Version"]
    except SandboxError as error:
        yield Finding("engine", "fails", f"{error.message} {error.hint}")
        return
    yield Finding("engine", "holds", f"Docker Engine {version} at {engine_address()} answers.")
    yield _way(past_engine=may_take_shortcut(client))
    if info.get("LiveRestoreEnabled"):
        yield Finding("engine restart", "holds", "Sandboxes survive a restart of the engine (live-restore).")
    else:
        text = "A restart of the engine ends all sandboxes; they are listed as lost. Set live-restore in its configuration."
        yield Finding("engine restart", "limited", text)
    yield Finding("reboot", "limited", "A reboot ends all sandboxes; they are listed as lost.")
    if why := loop_device.problem():
        yield Finding("disk", "limited", f"The sizes of disks are measured but not enforced: {why}.")
    else:
        yield Finding("disk", "holds", "The sizes of disks are enforced.")
    yield _room(settings, free_bytes(client))


def _room(settings: Settings, free: int | None) -> Finding:
    """Say how many sandboxes the disk has room for."""
    if free is None:
        return Finding("room", "limited", "This host does not see the engine's disk: disks are not checked against free space.")
    one = amounts_of(SandboxSpec(limits=Limits(disk_bytes=settings.disk_bytes))).disk_bytes
    count = int(free * settings.disk_factor // one)
    text = f"{size(free)} are free for disks, and may be promised {settings.disk_factor:g} times: {count} sandboxes of {size(one)}."
    if count < FEW_SANDBOXES:
        text += " Lower disk_bytes, or raise disk_factor if sandboxes write little."
    return Finding("room", "limited" if count < FEW_SANDBOXES else "holds", text)


def _way(*, past_engine: bool) -> Finding:
    if past_engine:
        return Finding("way", "holds", "This user is root on the engine's host: the bytes of sandboxes bypass the engine.")
    who = "not root" if os.geteuid() else "not beside the engine's usual socket"
    return Finding("way", "limited", f"This user is {who}: the bytes of sandboxes go through the engine, which is slower.")


def _folder(settings: Settings) -> Finding:
    if not settings.data.exists():
        return Finding("data", "holds", f"{settings.data} will be created.")
    try:
        os.close(own_folder(settings.data))
    except SandboxError as error:
        running = "Another service" in error.message
        return Finding("data", "limited" if running else "fails", f"{error.message} {error.hint}")
    return Finding("data", "holds", f"{settings.data} is free for this service.")


def _store(settings: Settings) -> Iterator[Finding]:
    """Look at the store, which is left as it is."""
    path = settings.data / STORE
    if not path.is_file():
        return
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as store:
            found = store.execute("PRAGMA quick_check(1)").fetchone()[0]
            version = store.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.Error as error:
        found, version = str(error), 0
    if found != "ok":
        yield Finding("store", "fails", f"{path} is damaged ({found}). Restore a backup: gamebox serve restore FILE.")
    elif version > len(STEPS):
        yield Finding("store", "fails", f"{path} was written by a later version of gamebox (its tables have version {version}).")
    elif version < len(STEPS):
        text = f"{path} is of an earlier version: the next start copies it, and migrates its tables from {version} to {len(STEPS)}."
        yield Finding("store", "holds", text)
    else:
        yield Finding("store", "holds", f"{path} is intact.")


def _space(settings: Settings) -> Iterator[Finding]:
    place = next(each for each in (settings.data.absolute(), *settings.data.absolute().parents) if each.exists())
    with contextlib.suppress(SandboxError, OSError):
        if (room := engine.disk_room(())) is not None:
            yield _free("space of the engine", "for sandboxes and images", room.free_bytes)
    with contextlib.suppress(OSError):
        yield _free("space for data", f"below {place}", shutil.disk_usage(place).free)


def _free(name: str, where: str, free: int) -> Finding:
    return Finding(name, "holds" if free >= LITTLE_SPACE else "limited", f"{size(free)} are free {where}.")


def _descriptors() -> Finding:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    enough = hard == resource.RLIM_INFINITY or hard >= FEW_DESCRIPTORS
    shown = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    return Finding("descriptors", "holds" if enough else "limited", f"The process may open {shown} files and connections.")


def _address(settings: Settings) -> Finding:
    try:
        check_tls(settings.tls_cert, settings.tls_key)
    except SandboxError as error:
        return Finding("address", "fails", f"{error.message} {error.hint}")
    if settings.is_loopback:
        return Finding("address", "holds", f"It listens on {settings.host}: only this host can reach it.")
    if settings.is_encrypted:
        return Finding("address", "holds", f"It listens on {settings.host} with TLS.")
    return Finding("address", "holds", f"It listens on {settings.host} for the proxies in {', '.join(settings.behind_proxy)}.")


def _names(settings: Settings) -> Iterator[Finding]:
    """Say whether programs of this host find ports of sandboxes, and trust the certificate, if it is of our own authority."""
    if not settings.is_encrypted:
        return
    if (name := local.unresolved_name(settings)) is not None:
        text = f"Programs on this host cannot find ports: {name} does not resolve. {local.resolving_hint(settings.domain)}"
        yield Finding("names", "limited", text)
    else:
        yield Finding("names", "holds", f"Names below {settings.domain} resolve on this host.")
    if not settings.tls_local:
        return
    files = local.local_tls(settings.data)
    try:
        made = local.examine(settings)
    except SandboxError as error:
        yield Finding("certificate", "fails", f"{error.message} {error.hint}")
        return
    text = f"The next start makes a new {made}." if made else "The certificate is valid."
    yield Finding("certificate", "holds", f"{text} Programs have to trust {files.authority}.")
