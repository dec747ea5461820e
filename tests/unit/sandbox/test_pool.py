"""A pool hands out sandboxes in order, none twice and none that is dead, and says why where it cannot."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import pytest

from sandbox import AsyncSandboxPool, LocalEnvironment, SandboxPool, SideService
from sandbox.docker.spec import HostParts, SandboxSpec
from sandbox.errors import ErrorCode, SandboxError, SandboxUnavailableError
from sandbox.limits import Limits
from sandbox.network.policy import Network
from sandbox.pipe.transport import Transport
from sandbox.testing import FakeEnvironment

ROOT = Path(__file__).parents[3]


class Member(FakeEnvironment):
    """A sandbox without a guest, which notes what becomes of it."""

    def __init__(self, maker: Maker, **options: Any) -> None:
        super().__init__()
        self.maker, self.options = maker, options
        self.alive, self.ended, self.waited = False, 0, False
        self.taken: Member | None = None

    def stand_by(self) -> Self:
        self.maker.begun.append(time.monotonic())
        self.maker.members.append(self)
        while not self.maker.turns.acquire(timeout=30):
            raise AssertionError("the test has left a creation waiting")
        if self.maker.error is not None:
            raise self.maker.error
        self.alive = True
        return self

    @property
    def stands_by(self) -> bool:
        return self.alive

    def give_away(self, backend: Any) -> tuple[Any, Transport | None]:
        self.alive = False
        return backend, None

    def adopt(self, member: Any, at_close: Callable[[], None]) -> None:
        member.give_away(None)
        self.taken, self._at_close = member, at_close

    def start(self) -> Self:
        if self.taken is not None and self.taken in self.maker.silent:
            raise SandboxUnavailableError("no_answer", "It does not answer.")
        if self.taken is not None:
            self.maker.started.add(self.taken)
        return super().start()

    def close(self, *, wait: bool = False) -> None:
        self.alive, self.ended, self.waited = False, self.ended + 1, self.waited or wait
        if self.taken is not None:
            self.taken.ended += 1
        super().close(wait=wait)


class Maker:
    """Makes members: as many as ``turns`` has, or none but ``error``."""

    def __init__(self, turns: int = 1000) -> None:
        self.turns = threading.Semaphore(turns)
        self.error: SandboxError | None = None
        self.members: list[Member] = []
        self.begun: list[float] = []
        self.silent: set[Member] = set()
        self.started: set[Member] = set()
        self.asked: list[dict[str, Any]] = []
        self.askers: list[int] = []
        self.refuses: Callable[[dict[str, Any]], Exception | None] = lambda _: None

    def __call__(self, **options: Any) -> Member:
        self.asked.append(options)
        self.askers.append(threading.get_ident())
        if (error := self.refuses(options)) is not None:
            raise error
        return Member(self, **options)


def eventually(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    until = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < until:
        time.sleep(0.005)
    assert value
    return value


@pytest.fixture
def maker() -> Maker:
    return Maker()


@pytest.fixture
def local() -> Iterator[SandboxPool[LocalEnvironment]]:
    options: dict[str, Any] = {"limits": Limits(lifetime_seconds=600.0, idle_seconds=600.0), "env": {"A": "pool", "B": "pool"}}
    with SandboxPool(size=1, environment=LocalEnvironment, **options) as pool:
        yield pool


# What is acquired


def test_what_is_acquired_works_and_is_never_given_again(local: SandboxPool[LocalEnvironment]) -> None:
    with local.acquire() as first:
        assert first.run("echo here > file; cat file").unwrap().output == "here\n"
        with local.acquire() as second:
            assert second.run("ls").unwrap().output == ""
            assert second.workspace != first.workspace
    assert first.backend.process is None
    with local.acquire() as third:
        assert third.run("ls").unwrap().output == ""
        assert third.changes().unwrap().changes == ()


def test_what_a_caller_gives_replaces_what_the_pool_has(local: SandboxPool[LocalEnvironment]) -> None:
    with local.acquire(env={"A": "mine"}, idle_seconds=60.0) as env:
        assert env.run('echo "$A$B"').unwrap().output == "mine\n"
        left = env.usage().unwrap()
        assert left.idle_left_seconds is not None
        assert left.idle_left_seconds <= 60.0
    with local.acquire() as env:
        assert env.run('echo "$A$B"').unwrap().output == "poolpool\n"


def test_clocks_start_when_it_is_acquired() -> None:
    limits = Limits(lifetime_seconds=3.0, idle_seconds=600.0)
    with SandboxPool(size=1, environment=LocalEnvironment, limits=limits) as pool:
        eventually(lambda: pool.stats().ready == 1)
        time.sleep(3.5)  # longer than its lifetime, and than the guest takes to notice that
        with pool.acquire() as env:
            used = env.usage().unwrap()
            assert used.lifetime_left_seconds is not None
            assert used.lifetime_left_seconds > 0
            assert used.uptime_seconds + used.lifetime_left_seconds <= 3.5
            eventually(lambda: not env.run("true").ok)
            with pytest.raises(SandboxUnavailableError, match="lifetime of 3 seconds was over"):
                env.run("true").unwrap()
        assert pool.stats().discarded == 0


def test_nothing_of_a_caller_is_sent_before_it_is_acquired(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    greet = Transport.open

    def record(self: Transport, hello: dict[str, Any], seconds: float) -> dict[str, Any]:
        sent.append(hello)
        return greet(self, hello, seconds)

    monkeypatch.setattr(Transport, "open", record)
    with SandboxPool(size=1, environment=LocalEnvironment, env={"TOKEN": "s3cret-of-the-pool"}) as pool:
        eventually(lambda: pool.stats().ready)
        assert "s3cret-of-the-pool" not in repr(sent)
        assert sent[0]["place"]["limits"]["idle_seconds"] is None
        with pool.acquire() as env:
            assert env.run("echo $TOKEN").unwrap().output == "s3cret-of-the-pool\n"


def test_members_are_made_without_what_belongs_to_callers(maker: Maker) -> None:
    with SandboxPool(size=1, environment=maker, image="i", env={"A": "b"}, network=Network.open(), workspace="w") as pool:
        eventually(lambda: pool.stats().ready)
        assert maker.members[0].options == {"image": "i"}
        with pool.acquire(workspace="v") as env:
            assert env.options == {"image": "i", "env": {"A": "b"}, "network": Network.open(), "workspace": "v"}


def test_environments_of_callers_without_options_are_made_ahead(maker: Maker) -> None:
    """To make one took a third of an acquire."""
    with SandboxPool(size=2, environment=maker, image="i") as pool:
        me, acquired = threading.get_ident(), []
        made = maker.askers.count(me)  # the pool has tried its options
        for _ in range(6):
            eventually(lambda: pool.stats().ready == 2)
            acquired.append(pool.acquire())
        assert maker.askers.count(me) == made
        assert len(set(map(id, acquired))) == 6
        assert all(env.options == {"image": "i"} for env in acquired)
        assert pool.acquire(env={"A": "c"}).options == {"image": "i", "env": {"A": "c"}}
        assert maker.askers.count(me) == made + 1
        eventually(lambda: pool.stats().ready == 2)
        for _ in range(5):
            pool.acquire(env={})
            eventually(lambda: pool.stats().ready == 2)
        assert len(pool._ahead) <= 2


@pytest.mark.parametrize("changing", [{"env": {"A": "b"}}, {"workspace": "w"}, {"ca_bundle": "c"}, {"read_roots": ("/r",)}])
def test_what_may_change_is_read_when_a_sandbox_is_acquired(maker: Maker, changing: dict[str, Any]) -> None:
    with SandboxPool(size=1, environment=maker, image="i", **changing) as pool:
        eventually(lambda: pool.stats().ready == 1)
        made = maker.askers.count(threading.get_ident())
        pool.acquire()
        assert maker.askers.count(threading.get_ident()) == made + 1


def test_an_environment_that_cannot_be_made_ahead_does_not_stop_the_pool(maker: Maker) -> None:
    """Members are made all the same: others may give other options."""
    with SandboxPool(size=1, environment=maker, network=Network.open()) as pool:
        eventually(lambda: pool.stats().ready == 1)
        maker.refuses = lambda options: ValueError("no network") if "network" in options and "env" not in options else None
        pool.acquire()  # the one that was made before
        eventually(lambda: pool.stats().ready == 1)
        with pytest.raises(ValueError, match="no network"):
            pool.acquire()
        assert pool.acquire(env={"A": "b"}).options == {"network": Network.open(), "env": {"A": "b"}}


# In order


def test_callers_are_served_in_the_order_in_which_they_came(maker: Maker) -> None:
    maker.turns = threading.Semaphore(0)
    served: list[int] = []
    with ThreadPoolExecutor(6) as threads, SandboxPool(size=1, environment=maker) as pool:

        def acquire(number: int) -> None:
            pool.acquire()
            served.append(number)

        for number in range(6):
            threads.submit(acquire, number)
            eventually(lambda number=number: pool.stats().waiting == number + 1)  # type: ignore[misc]
        for number in range(6):
            maker.turns.release()
            eventually(lambda number=number: len(served) == number + 1)  # type: ignore[misc]
        maker.turns.release()  # for the one that stands by then: the end of the pool waits for it
    assert served == list(range(6))


def test_refilling_makes_one_at_a_time(maker: Maker) -> None:
    maker.turns = threading.Semaphore(0)
    with SandboxPool(size=3, environment=maker) as pool:
        for number in range(3):
            eventually(lambda number=number: len(maker.members) == number + 1)  # type: ignore[misc]
            time.sleep(0.05)
            assert pool.stats().creating == 1
            maker.turns.release()
        eventually(lambda: pool.stats().ready == 3)
        time.sleep(0.05)
        assert pool.stats().created == 3


def test_callers_that_wait_are_made_for_side_by_side(maker: Maker) -> None:
    maker.turns = threading.Semaphore(0)
    with ThreadPoolExecutor(8) as threads, SandboxPool(size=1, environment=maker) as pool:
        acquired = [threads.submit(pool.acquire) for _ in range(8)]
        eventually(lambda: len(maker.members) == 4)
        time.sleep(0.05)
        assert pool.stats().creating == 4, "bounded"
        maker.turns.release(20)
        assert len({each.result().taken for each in acquired}) == 8


def test_refilling_does_not_begin_with_an_acquire(maker: Maker) -> None:
    with SandboxPool(size=1, environment=maker) as pool:
        eventually(lambda: pool.stats().ready)
        before = time.monotonic()
        pool.acquire()
        eventually(lambda: len(maker.begun) == 2)
    assert maker.begun[1] - before >= 0.1


def test_no_more_than_max_size_are_there_at_once(maker: Maker) -> None:
    with ThreadPoolExecutor(1) as threads, SandboxPool(size=1, max_size=2, environment=maker) as pool:
        first, second = pool.acquire(), pool.acquire()
        third = threads.submit(pool.acquire)
        eventually(lambda: pool.stats().waiting == 1)
        time.sleep(0.3)
        assert len(maker.members) == 2
        with pytest.raises(SandboxError, match="in use: 2 of at most 2;") as raised:
            pool.acquire(timeout_seconds=0.01)
        assert raised.value.code is ErrorCode.capacity
        second.close()
        second.close()
        assert third.result().taken is maker.members[2]
        first.close()


def test_a_pool_that_may_make_no_more_waits_for_a_close(maker: Maker) -> None:
    with SandboxPool(size=2, max_size=2, environment=maker) as pool:
        eventually(lambda: pool.stats().ready == 2)
        with pool.acquire():
            time.sleep(0.2)  # longer than refilling waits after an acquire
            assert pool._members._next_look() > 0.1, "nothing can be done before: it must not look all the time"
        eventually(lambda: pool.stats().ready == 2)


# What goes wrong


def refused() -> SandboxError:
    return SandboxError(ErrorCode.image_not_found, "The image 'none' is not on this engine.", "Get it.")


def test_a_failure_is_raised_to_the_caller_who_waits(maker: Maker) -> None:
    maker.error = refused()
    with SandboxPool(size=1, environment=maker) as pool:
        for _ in range(3):  # at once, whatever pause refilling makes
            with pytest.raises(SandboxError) as raised:
                pool.acquire(timeout_seconds=30)
            assert raised.value.code is ErrorCode.image_not_found
        maker.error = None
        assert pool.acquire(timeout_seconds=30).taken
        assert pool.stats().failures >= 3


def test_refilling_that_fails_is_tried_again_less_and_less_often(maker: Maker) -> None:
    maker.error = refused()
    with SandboxPool(size=1, environment=maker) as pool:
        eventually(lambda: len(maker.begun) == 3)
        assert pool.stats().failures >= 2
        first, second, third = maker.begun[:3]
        assert second - first >= 0.5
        assert third - second >= 1.0
        maker.error = None
        eventually(lambda: pool.stats().ready)
    assert all(member.ended for member in maker.members)


def test_an_exception_of_the_maker_is_a_failure(maker: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    with SandboxPool(size=1, environment=maker) as pool:
        eventually(lambda: pool.stats().ready)
        monkeypatch.setattr(Member, "stand_by", lambda _: 1 / 0)
        pool.acquire()
        with pytest.raises(SandboxError, match="division") as raised:
            pool.acquire()
        assert raised.value.code is ErrorCode.start_failed


def test_a_member_that_has_died_is_replaced_and_never_given(maker: Maker) -> None:
    with SandboxPool(size=2, environment=maker) as pool:
        eventually(lambda: pool.stats().ready == 2)
        dead = maker.members[0]
        dead.alive = False
        assert pool.acquire().taken is maker.members[1]
        eventually(lambda: pool.stats().ready == 2)
        assert dead.ended
        assert pool.stats().discarded == 1
        for each in maker.members[2:]:  # while nobody asks
            each.alive = False
        eventually(lambda: pool.stats().discarded == 3 and pool.stats().ready == 2)


def test_a_member_that_does_not_begin_is_not_given(maker: Maker) -> None:
    with SandboxPool(size=2, environment=maker) as pool:
        eventually(lambda: pool.stats().ready == 2)
        maker.silent.add(maker.members[0])
        assert pool.acquire().taken is maker.members[1]
        assert maker.members[0].ended
        stats = pool.stats()
        assert (stats.discarded, stats.acquired, stats.in_use) == (1, 1, 1)


def test_members_that_all_do_not_begin_are_not_tried_for_ever(maker: Maker) -> None:
    with SandboxPool(size=3, environment=maker) as pool:
        eventually(lambda: pool.stats().ready == 3)
        maker.silent.update(maker.members)
        with pytest.raises(SandboxUnavailableError, match="does not answer"):
            pool.acquire()
        assert all(member.ended for member in maker.members[:3])


def test_a_member_that_is_too_old_is_replaced(maker: Maker) -> None:
    with SandboxPool(size=1, max_age_seconds=0.3, environment=maker) as pool:
        eventually(lambda: pool.stats().discarded >= 2)
        assert maker.members[0].ended
        assert pool.acquire().taken not in maker.members[:2]


def test_a_wrong_option_of_a_caller_takes_no_member(local: SandboxPool[LocalEnvironment]) -> None:
    eventually(lambda: local.stats().ready == 1)
    with pytest.raises(TypeError, match="env must be"):
        local.acquire(env=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="no option 'image'"):
        local.acquire(image="other")  # type: ignore[call-arg]
    for option, words in (("name", "cannot have name"), ("keep", "cannot have keep"), ("metadata", "no metadata")):
        with pytest.raises(SandboxError, match=words) as raised:
            local.acquire(**{option: "work"})  # type: ignore[arg-type]
        assert raised.value.code is ErrorCode.invalid_configuration
        assert raised.value.hint
    with pytest.raises(SandboxError, match="lifetime_seconds=-1"):
        local.acquire(lifetime_seconds=-1)
    with pytest.raises(SandboxError, match="without a bridge"):
        local.acquire(network=Network.bridge())
    for seconds in (-1, float("nan")):
        with pytest.raises(SandboxError, match="not a time to wait"):
            local.acquire(timeout_seconds=seconds)
    assert (local.stats().ready, local.stats().in_use) == (1, 0)


def test_a_start_that_fails_destroys_the_member(local: SandboxPool[LocalEnvironment], tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="cannot be given a workspace"):
        local.acquire(workspace=tmp_path)
    assert local.stats().in_use == 0
    with local.acquire() as env:
        assert env.run("true").ok


# The pool itself


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": 0}, "nothing ready"),
        ({"size": -1}, "nothing ready"),
        ({"size": 3, "max_size": 2}, "less than size=3"),
        ({"size": 1, "max_age_seconds": 0}, "not an age"),
        ({"size": 1, "max_age_seconds": float("nan")}, "not an age"),
        ({"size": 1, "keep": True}, "DockerEnvironment\\(keep="),
        ({"size": 1, "name": "work"}, "DockerEnvironment\\(name="),
        ({"size": 1, "metadata": {}}, "no metadata"),
        ({"size": 1, "services": {"db": SideService(image="postgres", port=5432)}}, "side services db"),
        ({"size": 1, "parts": HostParts()}, "parts without a spec"),
        ({"size": 1, "spec": SandboxSpec(), "image": "other"}, "not both: image"),
        ({"size": 1, "spec": SandboxSpec(keep=True)}, "cannot have keep"),
        ({"size": 1, "spec": SandboxSpec(env=("A",))}, "Give env again"),
        ({"size": 1, "profile": "unknown"}, "profile"),
    ],
)  # fmt: skip
def test_a_pool_that_cannot_be_is_refused_when_it_is_made(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SandboxError, match=words):
        SandboxPool(**options)


@pytest.mark.parametrize("options", [{"size": True}, {"size": 1.5}, {"size": 1, "max_size": "2"}, {"size": 1, "imgae": "x"}, {}])
def test_wrong_types_are_type_errors(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        SandboxPool(**options)


@pytest.mark.parametrize(
    ("first", "words"), [("gamebox/base", "write image='gamebox/base'"), (7, "spec must be a SandboxSpec, not int")]
)
def test_what_is_not_a_spec_is_a_type_error_that_says_what_to_write(first: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        SandboxPool(first, size=1)


def test_a_pool_that_was_only_made_has_started_nothing(maker: Maker) -> None:
    pool = SandboxPool(size=1, environment=maker)
    time.sleep(0.05)
    assert maker.members == []
    with pytest.raises(SandboxError, match="not started"):
        pool.acquire()
    pool.close()
    pool.close(wait=True)
    with pytest.raises(SandboxError, match="was closed"):
        pool.start()
    assert repr(pool) == "<SandboxPool closed>"


def test_close_ends_members_those_under_way_too_and_waits_of_callers(maker: Maker) -> None:
    maker.turns = threading.Semaphore(2)
    with ThreadPoolExecutor(2) as threads:
        pool = SandboxPool(size=2, environment=maker).start()
        eventually(lambda: pool.stats().ready == 2)
        used = pool.acquire(), pool.acquire()
        waiting = [threads.submit(pool.acquire) for _ in range(2)]
        eventually(lambda: pool.stats().creating == 2)
        closing = threading.Thread(target=pool.close)
        closing.start()
        for each in waiting:
            with pytest.raises(SandboxError, match="was closed") as raised:
                each.result()
            assert raised.value.code is ErrorCode.sandbox_closed
        maker.turns.release(2)
        closing.join(10)
    assert [bool(member.ended) for member in maker.members] == [False, False, True, True]
    for env in used:
        env.close()


def test_two_closes_at_once_lose_no_member_and_a_later_one_waits_for_all(maker: Maker) -> None:
    pool = SandboxPool(size=20, environment=maker).start()
    eventually(lambda: pool.stats().ready == 20)
    closing = [threading.Thread(target=pool.close) for _ in range(4)]
    for each in closing:
        each.start()
    for each in closing:
        each.join(30)
    assert all(member.ended for member in maker.members)
    pool.close(wait=True)
    assert all(member.waited for member in maker.members)


def test_what_was_being_made_is_waited_for_too(maker: Maker) -> None:
    maker.turns = threading.Semaphore(0)
    pool = SandboxPool(size=1, environment=maker).start()
    eventually(lambda: pool.stats().creating == 1)
    threading.Timer(0.1, maker.turns.release).start()
    pool.close(wait=True)
    assert [(bool(member.ended), member.waited) for member in maker.members] == [(True, True)]


def test_a_sandbox_that_its_caller_dropped_still_counts(maker: Maker) -> None:
    """Nobody closed it, so it still runs."""
    with SandboxPool(size=1, max_size=1, environment=maker) as pool:
        pool.acquire()
        gc.collect()
        assert pool.stats().in_use == 1
        with pytest.raises(SandboxError, match="in use: 1 of at most 1;"):
            pool.acquire(timeout_seconds=0.3)
        assert len(maker.members) == 1


def test_the_end_of_the_program_waits_once_for_all_pools() -> None:
    """In each of them a sandbox is being made that will not be ready."""
    program = """
import atexit, time
from sandbox import LocalEnvironment, SandboxPool, interrupts
interrupts.EXIT_SECONDS = 1.0
LocalEnvironment.stand_by = lambda self: time.sleep(600)
pools = [SandboxPool(size=1, environment=LocalEnvironment).start() for _ in range(20)]
while not all(pool.stats().creating for pool in pools):
    time.sleep(0.01)
began = time.monotonic()
atexit._run_exitfuncs()
print(time.monotonic() - began)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert 0.9 < float(done.stdout) < 15.0  # and not 20


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a finalizer may swallow the Ctrl-C
def test_ctrl_c_loses_no_sandbox(maker: Maker) -> None:
    """At any moment of an acquire in the main thread: each member is still ready, or ended, or has reached its caller."""
    main = threading.get_ident()
    with SandboxPool(size=60, environment=maker) as pool:
        eventually(lambda: pool.stats().ready == 60)
        for _ in range(50):
            timer = threading.Timer(random.uniform(0.0, 0.003), lambda: signal.pthread_kill(main, signal.SIGINT))
            with contextlib.suppress(KeyboardInterrupt):
                timer.start()
                pool.acquire().close()
                while timer.is_alive():
                    time.sleep(0.001)
                time.sleep(0.01)
            timer.join()
            assert pool.stats().waiting == 0
            eventually(lambda: all(m.alive or m.ended or m in maker.started for m in tuple(maker.members)))


def test_ctrl_c_while_a_member_changes_hands_loses_nothing(
    local: SandboxPool[LocalEnvironment], monkeypatch: pytest.MonkeyPatch
) -> None:
    give_away = LocalEnvironment.give_away

    def struck(member: LocalEnvironment, backend: Any) -> Any:
        given = give_away(member, backend)
        signal.raise_signal(signal.SIGINT)
        return given

    eventually(lambda: local.stats().ready == 1)
    process = local._members._ready[0].environment.backend.process
    assert process is not None
    monkeypatch.setattr(LocalEnvironment, "give_away", struck)
    with pytest.raises(KeyboardInterrupt):
        local.acquire()
    assert eventually(lambda: process.poll() is not None)
    assert local.stats().in_use == 0


def test_nobody_waits_until_a_member_that_did_not_begin_is_gone(
    local: SandboxPool[LocalEnvironment], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[bool] = []
    close = LocalEnvironment.close

    def note(env: LocalEnvironment, *, wait: bool = False) -> None:
        waits.append(wait)
        close(env, wait=wait)

    def silent(*_: object) -> None:
        raise SandboxUnavailableError("no_answer", "It does not answer.")

    monkeypatch.setattr(LocalEnvironment, "close", note)
    monkeypatch.setattr(LocalEnvironment, "_begin", silent)
    with pytest.raises(SandboxUnavailableError):
        local.acquire()
    assert waits
    assert not any(waits)


IN_A_PROCESS = """
import os, sys, time
from sandbox import LocalEnvironment, SandboxPool
pool = SandboxPool(size=1, environment=LocalEnvironment).start()
while not pool.stats().ready:
    time.sleep(0.01)
member = pool._members._ready[0].environment
print(member.backend.process.pid, member.backend.temporary, flush=True)
"""


def test_the_end_of_the_program_ends_what_stands_by() -> None:
    done = subprocess.run([sys.executable, "-c", IN_A_PROCESS], cwd=ROOT, capture_output=True, text=True, timeout=60)
    pid, folder = done.stdout.split()
    assert (done.returncode, done.stderr) == (0, "")
    assert not os.path.exists(folder)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


def test_a_forked_process_is_refused_and_leaves_the_pool_alone() -> None:
    program = IN_A_PROCESS + """
if not (child := os.fork()):
    try:
        pool.acquire()
    except Exception as error:
        print(error.code, flush=True)
    pool.close()
    os._exit(0)
os.waitpid(child, 0)
with pool.acquire() as env:
    print(env.run("echo works").unwrap().output, end="")
pool.close()
"""
    argv = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[1:] == ["sandbox_owned", "works"], done.stderr


# For asyncio


def test_tasks_get_sandboxes_too() -> None:
    async def one(pool: AsyncSandboxPool, number: int) -> str:
        async with await pool.acquire(env={"N": str(number)}) as env:
            return (await env.run("echo $N")).unwrap().output

    async def main() -> None:
        async with AsyncSandboxPool(size=2, environment=LocalEnvironment) as pool:
            assert await asyncio.gather(*(one(pool, number) for number in range(4))) == ["0\n", "1\n", "2\n", "3\n"]
            assert pool.stats().acquired == 4
            assert pool.stats().in_use == 0

    asyncio.run(main())


def test_a_task_that_is_cancelled_leaves_nothing(maker: Maker) -> None:
    maker.turns = threading.Semaphore(0)

    async def main() -> None:
        async with AsyncSandboxPool(size=1, environment=maker) as pool:
            waiting = [asyncio.create_task(pool.acquire()) for _ in range(3)]
            await asyncio.to_thread(eventually, lambda: pool.stats().waiting == 3)
            assert threading.active_count() < 50
            waiting[0].cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting[0]
            maker.turns.release(10)
            assert len({(await each).environment.taken for each in waiting[1:]}) == 2  # type: ignore[attr-defined]
            await asyncio.to_thread(eventually, lambda: pool.stats().ready == 1)
            maker.turns = threading.Semaphore(0)
            with pytest.raises(SandboxError, match="within 0 s"):
                await asyncio.gather(*(pool.acquire(timeout_seconds=0) for _ in range(2)))
            maker.turns.release(10)

    asyncio.run(main())


def test_tasks_that_wait_hear_that_the_pool_was_closed(maker: Maker) -> None:
    maker.turns = threading.Semaphore(0)

    async def main() -> None:
        async with AsyncSandboxPool(size=1, environment=maker) as pool:
            waiting = asyncio.create_task(pool.acquire())
            await asyncio.to_thread(eventually, lambda: pool.stats().waiting == 1)
            closing = asyncio.create_task(pool.close())
            with pytest.raises(SandboxError, match="was closed"):
                await waiting
            maker.turns.release(10)
            await closing

    asyncio.run(main())


def test_a_task_that_is_cancelled_twice_while_its_sandbox_starts_leaves_nothing(maker: Maker) -> None:
    starting, go = threading.Event(), threading.Event()

    class Slow(Member):
        def start(self) -> Self:
            starting.set()
            go.wait(30)
            return super().start()

    async def main() -> None:
        async with AsyncSandboxPool(size=1, environment=lambda **options: Slow(maker, **options)) as pool:
            acquiring = asyncio.create_task(pool.acquire())
            await asyncio.to_thread(starting.wait, 30)
            for _ in range(3):
                acquiring.cancel()
                await asyncio.sleep(0.02)
            go.set()
            with pytest.raises(asyncio.CancelledError):
                await acquiring
            assert await asyncio.to_thread(eventually, lambda: maker.members[0].ended)
            assert pool.stats().in_use == 0

    asyncio.run(main())


def test_a_task_that_is_cancelled_as_it_enters_or_leaves_its_sandbox_leaves_nothing(maker: Maker) -> None:
    async def main() -> None:
        busy = threading.Event()
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        async with AsyncSandboxPool(size=2, environment=maker) as pool:
            first, second = await pool.acquire(), await pool.acquire()
            asyncio.get_running_loop().run_in_executor(None, busy.wait, 30)  # no thread is free to close anything
            entering, leaving = asyncio.create_task(first.__aenter__()), asyncio.create_task(second.__aexit__())
            await asyncio.sleep(0)
            for task in (entering, leaving):
                task.cancel()
            await asyncio.sleep(0)
            assert pool.stats().in_use == 2
            busy.set()
            for task in (entering, leaving):
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert await asyncio.to_thread(eventually, lambda: pool.stats().in_use == 0)

    asyncio.run(main())
