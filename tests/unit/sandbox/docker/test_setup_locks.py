"""Locks between processes: exclusive, shared, and freed by death."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sandbox.docker.engine import locks
from sandbox.errors import ErrorCode, SandboxError

HOLD = """
import sys
from sandbox.docker.engine import locks
locks.hold_shared("thing")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_threads_and_callers_take_turns() -> None:
    inside = 0
    most = 0

    def work() -> None:
        nonlocal inside, most
        with locks.exclusive("a/b"):
            inside += 1
            most = max(most, inside)
            time.sleep(0.01)
            inside -= 1

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_what_another_process_holds_is_in_use_until_it_dies() -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with locks.if_unused("thing") as unused:
            assert not unused
        with locks.if_unused("another thing") as unused:
            assert unused
        second = locks.hold_shared("thing")  # many may use it
        os.close(second)
        other.kill()
        other.wait(10)
        with locks.if_unused("thing") as unused:
            assert unused


def test_nobody_takes_what_is_being_removed() -> None:
    taken = threading.Event()

    def take() -> None:
        os.close(locks.hold_shared("thing"))
        taken.set()

    with locks.if_unused("thing") as unused:
        assert unused
        thread = threading.Thread(target=take)
        thread.start()
        assert not taken.wait(0.1)
    assert taken.wait(10)
    thread.join()


def test_a_folder_that_cannot_be_made_is_an_error_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(SandboxError) as caught, locks.exclusive("x"):
        pass
    assert caught.value.code is ErrorCode.setup_failed
    assert str(tmp_path / "file") in caught.value.message
