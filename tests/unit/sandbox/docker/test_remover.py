"""The removal of closed sandboxes in the background: in order, waited for on request, and of this process alone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from sandbox.docker.backend import DockerBackend
from sandbox.docker.container import removal
from sandbox.docker.container.profiles import find_profile
from sandbox.docker.engine.events import Fate
from sandbox.docker.remover import Removal, Remover
from sandbox.docker.spec import SandboxSpec
from sandbox.limits import Limits

NAME = "gamebox-0123456789abcdef"


class Events:
    """An engine's events of one container."""

    def __init__(self, **fate: bool) -> None:
        self.found = Fate(**fate)

    def fate(self, *_: object) -> Fate:
        return self.found


class Removals:
    """Stands for ``removal.remove``: notes the calls, and waits for ``allowed``."""

    def __init__(self, gone: bool = True) -> None:
        self.names: list[str] = []
        self.gone = gone
        self.allowed = threading.Event()
        self.allowed.set()

    def __call__(self, name: str, **_: object) -> bool:
        self.allowed.wait(30)
        self.names.append(name)
        return self.gone


@pytest.fixture
def removals(monkeypatch: pytest.MonkeyPatch) -> Removals:
    made = Removals()
    monkeypatch.setattr(removal, "remove", made)
    return made


def closed(name: str = NAME, events: Any = None) -> tuple[Removal, list[bool]]:
    released: list[bool] = []
    return Removal(name, "a" * 64, released.append, events), released


def test_a_sandbox_that_the_engine_removed_is_not_asked_for(removals: Removals) -> None:
    one, released = closed(events=Events(died=True, removed=True))
    one.finish()
    assert (released, removals.names) == ([True], [])


@pytest.mark.parametrize(
    "fate", [{}, {"died": True}, {"died": True, "removed": True, "killed_by_engine": True}], ids=["lives", "stays", "by hand"]
)
def test_what_the_engine_did_not_remove_is_removed(removals: Removals, fate: dict[str, bool]) -> None:
    one, released = closed(events=Events(**fate))
    one.finish()
    assert (released, removals.names) == ([True], [NAME])


def test_name_and_owner_are_not_free_before_the_container_is_gone(removals: Removals) -> None:
    removals.gone = False
    one, released = closed()
    one.finish()
    assert released == [False]


def test_closed_sandboxes_are_removed_in_order_and_all_are_waited_for(removals: Removals) -> None:
    remover = Remover()
    removals.allowed.clear()
    jobs = [closed(f"gamebox-{number:016x}")[0] for number in range(5)]
    for job in jobs:
        remover.add(job)
    assert not remover.wait(0.05)
    assert not jobs[-1].wait(0.01)
    removals.allowed.set()
    assert remover.wait(10)
    assert removals.names == [job.name for job in jobs]
    later, released = closed()
    remover.add(later)
    assert later.wait(10)
    assert released == [True]


def test_one_that_fails_does_not_hold_up_the_others(removals: Removals, caplog: pytest.LogCaptureFixture) -> None:
    def fails(_: bool) -> None:
        raise OSError("no such lock")

    remover = Remover()
    remover.add(Removal("gamebox-1", "", fails))
    remover.add(Removal("gamebox-2", "", lambda _: None))
    assert remover.wait(10)
    assert removals.names == ["gamebox-1", "gamebox-2"]
    assert "gamebox-1" in caplog.text


def refuse(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_sandbox_that_is_closed_when_no_thread_can_be_started_is_not_waited_for(
    removals: Removals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From Python 3.12 on none can be when the interpreter ends: the remover's runs since the first sandbox was started."""
    remover = Remover()
    remover.begin()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    removals.allowed.clear()
    one, released = closed()
    remover.add(one)
    assert (released, remover.wait(0)) == ([], False)
    removals.allowed.set()
    assert one.wait(10)
    assert released == [True]


def test_in_a_process_that_may_have_no_more_threads_it_is_removed_at_once(
    removals: Removals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading.Thread, "start", refuse)
    one, released = closed()
    Remover().add(one)
    assert (released, removals.names) == ([True], [NAME])


def test_a_forked_process_does_not_inherit_the_work(removals: Removals) -> None:
    remover = Remover()
    os.register_at_fork(after_in_child=remover.forget)
    removals.allowed.clear()
    remover.add(closed()[0])
    child = os.fork()
    if child == 0:
        os._exit(0 if remover.wait(0) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert not remover.wait(0)
    removals.allowed.set()
    assert remover.wait(10)


AT_EXIT = """
import sys, time
from sandbox.docker import remover as module
from sandbox.docker.container import removal
from sandbox import interrupts
interrupts.EXIT_SECONDS = float(sys.argv[2])
def remove(name, **_):
    time.sleep(float(sys.argv[1]))
    print("removed", flush=True)
    return True
removal.remove = remove
module.remover.add(module.Removal("gamebox-1", "", lambda gone: print("released", gone, flush=True)))
"""


@pytest.mark.parametrize(("takes", "waits", "output"), [(0.3, 10, "removed\nreleased True\n"), (60, 0.2, "")])
def test_the_end_of_the_interpreter_waits_for_a_while(takes: float, waits: float, output: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", AT_EXIT, str(takes), str(waits)], capture_output=True, text=True, timeout=50, check=True
    )
    assert ended.stdout == output


def backend(monkeypatch: pytest.MonkeyPatch, kept: bool = False) -> tuple[DockerBackend, list[bool]]:
    """A backend of a sandbox that runs, and how its ownership is released."""
    made = DockerBackend(SandboxSpec(keep=kept), find_profile("default"), Limits(), {}, print)
    made.container_id, released = "a" * 64, list[bool]()

    class Ownership:
        def release(self, *, gone: bool = False) -> None:
            released.append(gone)

    monkeypatch.setattr(made, "_ownership", Ownership())
    return made, released


def test_close_does_not_wait_and_wait_until_gone_does(monkeypatch: pytest.MonkeyPatch, removals: Removals) -> None:
    made, released = backend(monkeypatch)
    removals.allowed.clear()
    made.close(detach=False)
    made.close(detach=False)
    assert released == []
    began = time.monotonic()
    threading.Timer(0.1, removals.allowed.set).start()
    made.wait_until_gone()
    assert time.monotonic() - began >= 0.05
    assert (released, removals.names) == ([True], [made.name])


def test_a_kept_sandbox_that_is_left_is_free_for_the_next_at_once(monkeypatch: pytest.MonkeyPatch, removals: Removals) -> None:
    made, released = backend(monkeypatch, kept=True)
    made.close(detach=True)
    assert (released, removals.names) == ([False], [])
