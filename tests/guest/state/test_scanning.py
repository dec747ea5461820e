"""Fetching files that change while they are read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from sandbox.guest.protocol.records import WANTED
from sandbox.guest.state import fetching as fetching_files
from sandbox.state.contents import Contents
from sandbox.state.store import Store
from sandbox.state.table import Entry
from tests.guest.calls import RealCall, place_at


def test_a_hole_made_while_a_file_is_read_counts_as_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = place_at(tmp_path)
    (tmp_path / "workspace/f").write_bytes(b"x" * 10_000)
    seek = os.lseek

    def punched(fd: int, at: int, how: int) -> int:
        return at if how == os.SEEK_HOLE and at == 0 else seek(fd, at, how)

    monkeypatch.setattr(os, "lseek", punched)
    call: Any = RealCall(place, {}, [WANTED.pack(0, 1) + b"f"])
    assert fetching_files.fetch(call) == {"files": 1}
    store = Store(1 << 20)
    contents = Contents(store, [Entry(0, b"f", 0o644, 0, 0, 10_000, 0, 0, 0, 1, 1, b"f", b"")])
    contents.take(bytes(call.sent))
    contents.finish()
    assert contents.torn == [(0, b"f")]
    store.release()
