"""Owning a kept sandbox, while others look at who owns it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandbox.docker.kept import owners

IDENT = "f" * 32


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@contextmanager
def looking() -> Iterator[None]:
    """Look at the owner all the time, from three threads."""
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            owners.owner_of(IDENT)
            owners.ownerless_seconds(IDENT)

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_a_look_is_not_taken_for_an_owner() -> None:
    with looking():
        for _ in range(300):
            ownership = owners.claim(IDENT)
            assert ownership is not None
            found = owners.owner_of(IDENT)
            assert found is not None
            assert (found.alive, found.pid) == (True, os.getpid())
            assert owners.claim(IDENT) is None
            ownership.release()


def test_those_who_look_at_once_leave_one_record() -> None:
    ownership = owners.claim(IDENT)
    assert ownership is not None
    os.close(ownership._descriptor)  # type: ignore[arg-type]  # as the kernel does for one that died
    with looking():
        for _ in range(300):
            found = owners.owner_of(IDENT)
            assert found is not None
            assert not found.alive
    assert owners.ownerless_seconds(IDENT) is not None
