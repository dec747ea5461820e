"""What tenants have is the sum of what their sandboxes take, whatever is done in whatever order, and never more than the quota."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sandbox.docker.spec import SandboxSpec
from sandbox.limits import GIB, MIB, Limits
from sandbox.service.http.problems import Problem
from sandbox.service.tenants.amounts import Amounts, DiskRoom, amounts_of
from sandbox.service.tenants.ledger import CheckpointRoom, Ledger
from sandbox.service.tenants.rules import Quota

QUOTA = Quota(sandboxes=4, memory_bytes=400, cpus=4.0, disk_bytes=1000, checkpoint_bytes=100)
ONE = Amounts(1, 100, 1000, 200)


def ledger(quota: Quota = QUOTA, factor: float = 1.0) -> Ledger:
    return Ledger(lambda tenant: quota, factor)


def refusal(book: Ledger, wanted: dict[str, Amounts], room: DiskRoom | None = None) -> Problem:
    with pytest.raises(Problem) as caught:
        book.reserve("a", wanted, room)
    return caught.value


def test_a_sandbox_takes_what_its_limits_promise() -> None:
    spec = SandboxSpec(limits=Limits(memory_bytes=GIB, cpus=0.5, disk_bytes=4 * GIB))
    assert amounts_of(spec) == Amounts(1, GIB, 500, 6 * GIB), "its /tmp is on the disk, too"
    in_memory = replace(spec, limits=Limits(memory_bytes=GIB, disk="memory"))
    assert amounts_of(in_memory).disk_bytes == 0
    assert amounts_of(replace(spec, limits=replace(spec.limits, tmp_bytes=64 * MIB))).disk_bytes == 4 * GIB


@pytest.mark.parametrize(
    ("taken", "wanted", "name", "status"),
    [
        (4, ONE, "sandboxes", 429),
        (3, replace(ONE, memory_bytes=101), "memory_bytes", 429),
        (0, replace(ONE, memory_bytes=401), "memory_bytes", 403),
        (1, replace(ONE, milli_cpus=3001), "cpus", 429),
        (0, replace(ONE, milli_cpus=4001), "cpus", 403),
        (2, replace(ONE, disk_bytes=601), "disk_bytes", 429),
        (0, replace(ONE, disk_bytes=1001), "disk_bytes", 403),
    ],
)
def test_what_does_not_fit_is_refused_for_now_or_for_good(taken: int, wanted: Amounts, name: str, status: int) -> None:
    book = ledger()
    for n in range(taken):
        book.reserve("a", {str(n): ONE}, None)
    problem = refusal(book, {"more": wanted})
    assert (problem.status, problem.code, problem.fields["quota"]) == (status, "quota_exceeded", name)
    assert ("Retry-After" in problem.headers) == problem.retryable == (status == 429)
    assert book.used("a").sandboxes == taken
    book.reserve("b", {"other": ONE}, None)


def test_a_fork_is_reserved_as_a_whole_or_not_at_all() -> None:
    book = ledger()
    book.reserve("a", {"1": ONE, "2": ONE}, None)
    assert refusal(book, {"3": ONE, "4": ONE, "5": ONE}).status == 429
    assert book.used("a").sandboxes == 2
    assert refusal(book, {str(n): ONE for n in range(5, 10)}).status == 403


def test_of_two_that_want_the_last_place_one_gets_it() -> None:
    """What is checked and what is reserved are one: there is no moment between them at which another one could come."""
    book = ledger(Quota(sandboxes=1))
    book.reserve("a", {"first": ONE}, None)
    assert refusal(book, {"second": ONE}).status == 403 or book.used("a").sandboxes == 1
    book.release("first")
    book.release("first")
    book.reserve("a", {"second": ONE}, None)
    assert book.used("a").sandboxes == 1


def test_the_disks_of_all_tenants_together_are_promised_no_more_often_than_the_operator_says() -> None:
    book = ledger(Quota(), factor=2.0)
    room = DiskRoom(free_bytes=250, total_bytes=400)
    book.reserve("b", {"other": ONE}, room)
    book.reserve("a", {"1": ONE}, room)
    problem = refusal(book, {"2": ONE}, room)
    assert (problem.status, problem.code, problem.headers["Retry-After"]) == (503, "capacity", "15")
    assert problem.fields["largest_disk_bytes"] == 66
    assert "at most 66" in problem.hint
    book.reserve("a", {"2": replace(ONE, disk_bytes=0)}, room)
    book.reserve("a", {"3": ONE}, None)
    book.release("other")
    assert book.promised_bytes == 400


def test_what_sandboxes_have_written_of_what_was_promised_to_them_counts_once() -> None:
    """It is not free any more: 200 of 600 bytes were promised, and written; the other 400 can be promised."""
    book = ledger(Quota())
    book.reserve("a", {"1": ONE}, DiskRoom(free_bytes=600, total_bytes=900))
    two = {"2": ONE, "3": ONE}
    assert refusal(book, two, DiskRoom(400, 900)).status == 503
    assert refusal(book, two, DiskRoom(400, 900, written_bytes=199)).status == 503
    book.reserve("a", two, DiskRoom(400, 900, written_bytes=200))
    # No more than what is theirs, whatever was measured.
    assert refusal(book, {"4": ONE}, DiskRoom(0, 900, written_bytes=5000)).status == 503


def test_a_disk_that_never_fits_is_refused_for_good_with_the_largest_that_does() -> None:
    book, room = ledger(Quota(), factor=2.0), DiskRoom(free_bytes=250, total_bytes=400)
    book.reserve("b", {"other": ONE}, room)
    for wanted in ({"1": replace(ONE, disk_bytes=801)}, {"1": replace(ONE, disk_bytes=401), "2": replace(ONE, disk_bytes=401)}):
        problem = refusal(book, wanted, room)
        assert (problem.status, problem.code, problem.retryable) == (422, "invalid_limits", False)
        largest = problem.fields["largest_disk_bytes"]
        assert f"at most {largest}," in problem.hint
        book.reserve("a", {name: replace(ONE, disk_bytes=largest * 3 // 2) for name in wanted}, room)
        for name in wanted:
            book.release(name)
    assert refusal(book, {"1": replace(ONE, disk_bytes=800)}, room).status == 503


def test_a_paused_one_keeps_all_but_its_processors_and_may_not_come_back() -> None:
    book = ledger()
    book.reserve("a", {"1": replace(ONE, milli_cpus=3000)}, None)
    book.pause("1")
    book.pause("1")
    assert book.used("a") == replace(ONE, milli_cpus=0)
    book.reserve("a", {"2": replace(ONE, milli_cpus=2000)}, None)
    with pytest.raises(Problem) as caught:
        book.resume("1")
    assert caught.value.fields["quota"] == "cpus"
    book.resume("1", forced=True)
    assert book.used("a").milli_cpus == 5000
    book.release("1")
    book.release("2")
    assert book.used("a") == Amounts()


def test_checkpoints_have_room_as_long_as_their_sandbox_is_there() -> None:
    book = ledger()
    book.reserve("a", {"1": ONE}, None)
    room = CheckpointRoom(book, "a", "1")
    assert room.take(60)
    assert not room.take(41)
    assert room.take(40)
    room.give_back(60)
    assert book.stored_bytes("a") == 40
    room.give_back()
    room.give_back()
    assert book.stored_bytes("a") == 0
    book.release("1")
    assert not room.take(1), "one that came too late would be counted for ever"


class Ledgers(RuleBasedStateMachine):
    """A ledger beside the plainest thing that it could be: a dictionary, summed up each time."""

    def __init__(self) -> None:
        super().__init__()
        self.book = ledger()
        self.held: dict[str, tuple[str, Amounts, bool]] = {}
        self.stored: dict[str, int] = {}
        self.number = 0

    def one(self, data: Any) -> str:
        return str(data.draw(st.sampled_from(sorted(self.held))))

    @rule(
        tenant=st.sampled_from("ab"),
        wanted=st.lists(st.builds(Amounts, st.just(1), *[st.integers(0, 300)] * 3), min_size=1, max_size=3),
        room=st.one_of(st.none(), st.builds(DiskRoom, st.integers(0, 3000), st.integers(0, 3000))),
    )
    def reserve(self, tenant: str, wanted: list[Amounts], room: DiskRoom | None) -> None:
        names = {f"s{self.number + n}": amounts for n, amounts in enumerate(wanted)}
        self.number += len(names)
        try:
            self.book.reserve(tenant, names, room)
        except Problem:
            return
        self.held |= {name: (tenant, amounts, False) for name, amounts in names.items()}

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: Any) -> None:
        name = self.one(data)
        tenant = self.held.pop(name)[0]
        self.stored.pop(name, None)
        self.book.unstore(tenant, name)
        self.book.release(name)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def pause(self, data: Any) -> None:
        name = self.one(data)
        tenant, amounts, _ = self.held[name]
        self.book.pause(name)
        self.held[name] = (tenant, amounts, True)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def resume(self, data: Any) -> None:
        name = self.one(data)
        tenant, amounts, _ = self.held[name]
        try:
            self.book.resume(name)
        except Problem:
            return
        self.held[name] = (tenant, amounts, False)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), size=st.integers(0, 80))
    def store(self, data: Any, size: int) -> None:
        name = self.one(data)
        if self.book.store(self.held[name][0], name, size):
            self.stored[name] = self.stored.get(name, 0) + size

    @rule()
    def restart(self) -> None:
        """A service is killed: the next one reads the same sandboxes from the store."""
        self.book = ledger()
        for name, (tenant, amounts, paused) in self.held.items():
            self.book.restore(tenant, name, amounts, paused=paused)
        for name, size in self.stored.items():
            self.book.store(self.held[name][0], name, size, forced=True)

    @invariant()
    def sums_are_right_and_within_the_quota(self) -> None:
        for tenant in "ab":
            mine = [amounts.paused() if paused else amounts for owner, amounts, paused in self.held.values() if owner == tenant]
            used = self.book.used(tenant)
            assert used == sum(mine, Amounts())
            assert used.sandboxes <= 4
            assert used.memory_bytes <= 400
            assert used.milli_cpus <= 4000
            assert used.disk_bytes <= 1000
            kept = sum(size for name, size in self.stored.items() if self.held[name][0] == tenant)
            assert self.book.stored_bytes(tenant) == kept <= 100
        assert self.book.promised_bytes == sum(amounts.disk_bytes for _, amounts, _ in self.held.values())


TestLedgers = Ledgers.TestCase
TestLedgers.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
