"""Limits: what is allowed, and what a refusal says."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from sandbox.errors import ErrorCode, OperationError, SandboxError
from sandbox.guest.protocol.wire import MAX_MESSAGE, MAX_REPLY
from sandbox.limits import GIB, MIB, MOST_KEPT_BYTES, WRITABLE_SHARE_OF_MEMORY, Limits
from sandbox.operations import Run

FIELDS = [f.name for f in dataclasses.fields(Limits) if f.name != "disk"]
FRACTIONS = (
    "cpus", "timeout_seconds", "max_timeout_seconds", "cpu_seconds_per_command", "lifetime_seconds", "idle_seconds",
    "lease_seconds", "network_silent_seconds",
)  # fmt: skip
OPTIONAL = (
    "disk_bytes", "tmp_bytes", "shm_bytes", "cpu_seconds_per_command", "lifetime_seconds", "idle_seconds", "network_bytes",
    "network_silent_seconds",
)  # fmt: skip


def made(name: str, value: Any) -> Limits:
    return Limits(**{name: value})


def refused(**fields: object) -> SandboxError:
    with pytest.raises(SandboxError) as caught:
        Limits(**fields)  # type: ignore[arg-type]
    assert caught.value.code is ErrorCode.invalid_limits
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("value", [0, -1, True, "1", math.inf, math.nan, b"1"])
def test_only_positive_numbers(name: str, value: object) -> None:
    error = refused(**{name: value})
    assert f"{name}={value!r}" in error.message


@pytest.mark.parametrize("name", FIELDS)
def test_fractions_only_where_they_make_sense(name: str) -> None:
    if name in FRACTIONS:
        assert getattr(made(name, 1.5), name) == 1.5
        assert repr(getattr(made(name, 20), name)) == "20.0", "what JSON brought back is what was written"
    else:
        assert "whole number" in refused(**{name: 1.5}).message


@pytest.mark.parametrize("name", FIELDS)
def test_none_only_where_there_is_a_default(name: str) -> None:
    if name in OPTIONAL:
        assert getattr(made(name, None), name) is None
    else:
        refused(**{name: None})


def test_a_guest_needs_room() -> None:
    assert "32 MiB" in refused(memory_bytes=32 * MIB - 1).message
    assert "at least 16" in refused(pids=15).message
    assert "at least 0.01" in refused(cpus=0.0099).message
    Limits(memory_bytes=32 * MIB, pids=16, cpus=0.01)


def test_what_is_sent_with_each_command_can_be_carried_out() -> None:
    assert MOST_KEPT_BYTES + MAX_REPLY == MAX_MESSAGE
    assert "room for 62914560" in refused(keep_output_bytes=MOST_KEPT_BYTES + 1).message
    for name in ("timeout_seconds", "cpu_seconds_per_command"):
        assert "at most 100000000 (three years)" in refused(**{name: 1.1e8}).message
    for limits in (Limits(spill_bytes=1), Limits(max_timeout_seconds=1), Limits(keep_output_bytes=MOST_KEPT_BYTES)):
        args = Run.model_validate({"command": "true"}).prepare(limits).args
        assert args["keep_output_bytes"] <= limits.spill_bytes
        assert args["timeout_seconds"] <= limits.max_timeout_seconds
    with pytest.raises(OperationError, match="at most 62914560"):
        Run.model_validate({"command": "true", "keep_output_bytes": MOST_KEPT_BYTES + 1}).prepare(Limits(spill_bytes=GIB))


def test_places_fit_into_memory() -> None:
    error = refused(memory_bytes=512 * MIB, disk="memory", tmp_bytes=200 * MIB)
    assert "tmp_bytes=209715200" in error.message
    assert "three quarters of memory_bytes (536870912)" in error.message
    refused(memory_bytes=512 * MIB, tmp_bytes=500 * MIB)
    assert "shm_bytes=524288000" in refused(memory_bytes=512 * MIB, shm_bytes=500 * MIB).message


@given(
    memory=st.integers(32 * MIB, 1 << 40),
    kind=st.sampled_from(["auto", "hard", "memory"]),
    disk=st.none() | st.integers(1, 1 << 40),
    tmp=st.none() | st.integers(1, 1 << 32),
    spill=st.integers(1, 1 << 40),
)
def test_all_places_in_memory_together_never_take_more_than_their_share(
    memory: int, kind: Any, disk: int | None, tmp: int | None, spill: int
) -> None:
    try:
        limits = Limits(memory_bytes=memory, disk=kind, disk_bytes=disk, tmp_bytes=tmp, spill_bytes=spill)
    except SandboxError:
        reject()
    files = [limits.workspace_bytes, limits.home_bytes]
    always = [limits.var_tmp_place_bytes, limits.shm_place_bytes, limits.spill_place_bytes]
    in_memory = [*always, *(files if kind == "memory" else []), *([limits.tmp_place_bytes] if limits.tmp_in_memory else [])]
    assert limits.bytes_in_memory == sum(in_memory)
    assert sum(in_memory) <= memory * WRITABLE_SHARE_OF_MEMORY
    assert min(files + always) >= 0
    assert sum(files) == limits.files_bytes


@given(memory=st.integers(32 * MIB, 1 << 42))
def test_the_defaults_fit_any_memory(memory: int) -> None:
    limits = Limits(memory_bytes=memory, disk="memory")
    assert limits.tmp_place_bytes == min(256 * MIB, memory // 8)
    assert limits.shm_place_bytes == min(64 * MIB, memory // 16)
    assert limits.files_bytes == memory * 7 // 16


def test_files_take_no_memory_unless_that_is_asked_for() -> None:
    """UX 4: half of the memory limit went to files, and pip ran out of room in a home of 256 MiB."""
    limits = Limits()
    assert (limits.workspace_bytes, limits.home_bytes, limits.tmp_place_bytes) == (8 * GIB, 8 * GIB, 8 * GIB)
    assert limits.bytes_in_memory <= limits.memory_bytes // 8 + MIB * 2
    assert not limits.tmp_in_memory
    assert Limits(tmp_bytes=100 * MIB).tmp_in_memory


def test_they_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Limits().pids = 5  # type: ignore[misc]


def test_the_share_of_the_places_to_the_byte() -> None:
    # three quarters of 512 MiB, less /tmp (an eighth), /var/tmp, /dev/shm and the spill place (a sixteenth each)
    limits = Limits(memory_bytes=512 * MIB, disk="memory", disk_bytes=224 * MIB)
    assert limits.bytes_in_memory == 384 * MIB
    assert "disk_bytes" in refused(memory_bytes=512 * MIB, disk="memory", disk_bytes=224 * MIB + 1).message


@pytest.mark.parametrize("value", ["soft", "", None, True, 1])
def test_a_disk_is_hard_or_what_there_is(value: object) -> None:
    assert f"disk={value!r}" in refused(disk=value).message


def test_a_lease_needs_time_for_a_word() -> None:
    assert "at least 1" in refused(lease_seconds=0.5).message
