"""A tenant for which nobody has set a quota has a share of the host, and the operator none."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sandbox.service import check
from sandbox.service.settings import read_settings
from sandbox.service.store.database import Database
from sandbox.service.tenants.host_share import OF_HOST, Host, measure_host, share_of
from sandbox.service.tenants.tenants import Tenants

GIB = 1 << 30
HOST = Host(memory_bytes=64 * GIB, disk_bytes=1000 * GIB, free_bytes=100 * GIB, data_bytes=100 * GIB)


def test_a_share_of_the_host() -> None:
    assert share_of(HOST, 0.5, 1.0, 4 * GIB) == {
        "sandboxes": 256,
        "memory_bytes": 32 * GIB,
        "disk_bytes": 500 * GIB,
        "checkpoint_bytes": 50 * GIB,
    }
    assert share_of(HOST, 0.25, 2.0, 4 * GIB)["disk_bytes"] == 500 * GIB
    assert share_of(HOST, 0.0, 1.0, 4 * GIB) == {}


def test_a_small_host_has_room_for_two_sandboxes_as_they_are_by_default() -> None:
    small = share_of(Host(GIB, 8 * GIB, GIB, 8 * GIB), 0.5, 1.0, 4 * GIB)
    assert (small["memory_bytes"], small["disk_bytes"], small["sandboxes"]) == (4 * GIB, 12 * GIB, 32)


def test_what_is_set_takes_the_place_of_the_share(tmp_path: Path) -> None:
    settings = read_settings({"data": tmp_path, "quota": {"sandboxes": 5}})
    quota = settings.default_quota(HOST)
    assert (quota.sandboxes, quota.memory_bytes, quota.requests_under_way) == (5, 32 * GIB, 2000)
    unbounded = read_settings({"data": tmp_path, "tenant_share": 0}).default_quota(HOST)
    assert (unbounded.sandboxes, unbounded.memory_bytes, unbounded.checkpoint_bytes) == (None, None, 64 * GIB)


def test_tenants_have_it_and_are_told_and_the_operators_own_is_not_bounded(tmp_path: Path) -> None:
    settings = read_settings({"data": tmp_path})

    async def work() -> tuple[dict[str, Any], ...]:
        database = Database(tmp_path / "service.db")
        tenants = Tenants(settings, database)
        await tenants.load()
        await tenants.create("plain", "", {}, {})
        await tenants.create("free", "", {}, dict.fromkeys(OF_HOST))
        quotas = tuple(tenants.get(each).quota.model_dump() for each in ("plain", "free", "default"))
        header = dict(tenants.get("plain").headers(tenants.ledger))["Gamebox-Quota"]
        assert f'"memory_bytes";q={quotas[0]["memory_bytes"]};r=' in header
        database.close()
        return quotas

    plain, free, own = asyncio.run(work())
    share = share_of(measure_host(tmp_path), 0.5, 1.0, settings.disk_bytes)
    assert {name: plain[name] for name in OF_HOST} == share
    assert [free[name] for name in OF_HOST] == [None] * 4
    assert [own[name] for name in OF_HOST] == [None, None, None, 64 * GIB]
    _check_names_those_without_a_bound(tmp_path)


def _check_names_those_without_a_bound(folder: Path) -> None:
    found = {each.name: each for each in check._tenants(read_settings({"data": folder, "quota": {"disk_bytes": 1}}))}
    assert found["quota"].state == "holds"
    assert found["tenant"].text.startswith("The tenant free has no bound on sandboxes, memory_bytes, disk_bytes, checkpoint_bytes:")
    found = {each.name: each for each in check._tenants(read_settings({"data": folder, "tenant_share": 0}))}
    assert (found["quota"].state, found["tenant"].state) == ("limited", "limited")
    assert "no bound on sandboxes, memory_bytes, disk_bytes: set [quota] or tenant_share" in found["quota"].text


def test_a_share_of_disks_that_is_more_than_is_free_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "measure_host", lambda _: HOST)
    (found,) = check._tenants(read_settings({"data": tmp_path}))
    assert found.state == "limited"
    assert "may have 256 sandboxes with 32.0 GiB of memory and 500.0 GiB of disks" in found.text
    assert "Only 100.0 GiB of disks can be promised" in found.text
