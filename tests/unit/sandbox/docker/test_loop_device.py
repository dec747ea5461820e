"""Disks of sandboxes that start at the same time."""

from __future__ import annotations

import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandbox.docker.container.disks import loop_device
from sandbox.docker.container.disks.loop_device import LoopDevice


def test_disks_of_different_sizes_are_formatted_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread waits for the mkfs of another size; of one size only one runs mkfs."""
    both, calls = threading.Barrier(2), []

    def format_disk(size_bytes: int, uid: int, bare: bool) -> tuple[tuple[int, bytes], ...]:
        calls.append(size_bytes)
        both.wait(timeout=10)
        return ()

    monkeypatch.setattr(loop_device, "_formatted", functools.lru_cache(format_disk))
    monkeypatch.setattr(loop_device, "_attach", lambda _: LoopDevice("/dev/loop0", -1))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda size: loop_device.make(size, tmp_path, 1000), [1 << 20, 2 << 20, 1 << 20, 2 << 20]))
    assert sorted(calls) == [1 << 20, 2 << 20]
