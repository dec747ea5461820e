"""Disks of sandboxes that start at the same time."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
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


def spoil_nothing(kept: Path) -> None:
    pass


def lose_the_end(kept: Path) -> None:
    kept.write_bytes(kept.read_bytes()[:-1])


def let_others_write(kept: Path) -> None:
    kept.chmod(0o666)


def link_elsewhere(kept: Path) -> None:
    kept.symlink_to(kept.rename(kept.parent.with_name("elsewhere")))


def let_others_write_the_folder(kept: Path) -> None:
    kept.parent.chmod(0o777)


def link_the_folder_elsewhere(kept: Path) -> None:
    kept.parent.symlink_to(kept.parent.rename(kept.parents[1] / "elsewhere"))


def take_that_of_another_size(kept: Path) -> None:
    loop_device.formatted(1 << 20, 0)
    (other,) = (path for path in kept.parent.iterdir() if path != kept)
    other.replace(kept)


SPOILED = [lose_the_end, let_others_write, link_elsewhere]
SPOILED += [let_others_write_the_folder, link_the_folder_elsewhere, take_that_of_another_size]


@pytest.mark.parametrize("spoil", [spoil_nothing, *SPOILED])
def test_what_mkfs_wrote_is_kept_for_the_next_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], None]
) -> None:
    """The kernel reads it as root: nothing is used that somebody else may have written."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calls, written = [], ((0, b"super"), (1 << 30, b"table" * 1000))

    def format_disk(size_bytes: int, uid: int, bare: bool) -> tuple[tuple[int, bytes], ...]:
        calls.append(size_bytes)
        return written if size_bytes == 1 << 31 else ()

    monkeypatch.setattr(loop_device, "_format", format_disk)
    for _ in range(2):
        loop_device._formatted.cache_clear()
        assert loop_device.formatted(1 << 31, 1000) == written
    (kept,) = (tmp_path / "gamebox/disks").iterdir()
    spoil(kept)
    loop_device._formatted.cache_clear()
    assert loop_device.formatted(1 << 31, 1000) == written
    assert calls.count(1 << 31) == (1 if spoil is spoil_nothing else 2)


def test_nothing_is_removed_from_a_folder_of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for number in range(loop_device._MOST_KEPT + 5):
        (elsewhere / f"{number:032x}").write_text("")
    (tmp_path / "gamebox").mkdir()
    (tmp_path / "gamebox/disks").symlink_to(elsewhere)
    monkeypatch.setattr(loop_device, "_format", lambda *_: ())
    loop_device._formatted.cache_clear()
    loop_device.formatted(1 << 20, 1000)
    assert len(list(elsewhere.iterdir())) == loop_device._MOST_KEPT + 5


def test_few_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(loop_device, "_format", lambda *_: ())
    for size in range(loop_device._MOST_KEPT + 5):
        loop_device.formatted(size, 1000)
    assert len(list((tmp_path / "gamebox/disks").iterdir())) == loop_device._MOST_KEPT
