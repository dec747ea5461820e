"""The rules of budgets as properties: what is used counts once at every level, limits hold for the whole tree, nothing resets."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agent import Action, ActionRegistry, Agent, Budget, Environment, Goal, RunStatus, Usage
from agent.core import budget as budgets
from agent.core.budget import Meter, charge, current_meter, metering
from agent.core.status import StopRun
from agent.language.structured import StructuredLanguage
from agent.tools import finish_action

# Costs in eighths of a dollar and times in whole seconds: their sums are exact.
COSTS = st.integers(0, 8).map(lambda eighths: eighths / 8)
USAGES = st.builds(
    Usage, calls=st.integers(0, 2), failed_calls=st.integers(0, 1), input_tokens=st.integers(0, 9), output_tokens=st.integers(0, 9),
    estimated_tokens=st.integers(0, 5), cost_usd=COSTS, unpriced_calls=st.sampled_from([0, 0, 0, 0, 1]),
)  # fmt: skip
LIMITS = st.builds(
    Budget, max_seconds=st.none() | st.integers(1, 12), max_tokens=st.none() | st.integers(1, 60),
    max_cost_usd=st.none() | COSTS.filter(bool) | st.sampled_from([2.0, 3.5]),
)  # fmt: skip


def exhausted(limits: Budget, used: Usage, seconds: float) -> RunStatus | None:
    """The plain wording of the rule, for one level: the first limit that is reached."""
    tokens = used.input_tokens + used.output_tokens + used.estimated_tokens
    if limits.max_seconds is not None and seconds >= limits.max_seconds:
        return RunStatus.max_seconds
    if limits.max_tokens is not None and tokens >= limits.max_tokens:
        return RunStatus.max_tokens
    if limits.max_cost_usd is not None and (used.cost_usd >= limits.max_cost_usd or used.unpriced_calls):
        return RunStatus.max_cost
    return None


@dataclass
class Level:
    """A run under way, and all that was charged in it and below it."""

    meter: Meter
    began: float
    charged: list[Usage] = field(default_factory=list)

    @property
    def used(self) -> Usage:
        """The sum, field by field."""
        names = asdict(Usage())
        return Usage(**{name: sum(getattr(usage, name) for usage in self.charged) for name in names})


class Clock:
    """In place of the module ``time`` of ``agent.core.budget``."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        """Seconds that go by only when the test says so."""
        return self.now


class Trees(RuleBasedStateMachine):
    """Runs within runs, in any order, with whatever they are charged."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.real, budgets.time = budgets.time, self.clock  # type: ignore[attr-defined, assignment]
        self.levels: list[Level] = []
        self.stacks: list[ExitStack] = []
        self.ended: list[tuple[Meter, Usage]] = []

    def teardown(self) -> None:
        while self.stacks:
            self.stacks.pop().close()
        budgets.time = self.real  # type: ignore[attr-defined]
        assert current_meter() is None

    @rule(limits=LIMITS)
    @precondition(lambda self: len(self.levels) < 4)
    def begin(self, limits: Budget) -> None:
        meter = Meter(limits, started=self.clock.now)
        stack = ExitStack()
        stack.enter_context(metering(meter))
        self.stacks.append(stack)
        self.levels.append(Level(meter, self.clock.now))

    @rule()
    @precondition(lambda self: self.levels)
    def end(self) -> None:
        self.stacks.pop().close()
        level = self.levels.pop()
        self.ended.append((level.meter, level.used))

    @rule(usage=USAGES)
    def use(self, usage: Usage) -> None:
        charge(usage)
        for level in self.levels:
            level.charged.append(usage)

    @rule(seconds=st.integers(1, 4))
    def wait(self, seconds: int) -> None:
        self.clock.now += seconds

    @invariant()
    def each_level_counts_what_is_below_it_once(self) -> None:
        for level in self.levels:
            assert level.meter.usage == level.used
            assert level.meter.seconds == self.clock.now - level.began
        assert current_meter() is (self.levels[-1].meter if self.levels else None)

    @invariant()
    def what_has_ended_counts_no_more(self) -> None:
        for meter, used in self.ended:
            assert meter.usage == used

    @invariant()
    def a_limit_of_any_level_above_ends_the_run_with_its_status(self) -> None:
        for depth, level in enumerate(self.levels, 1):
            over = [exhausted(each.meter.budget, each.used, self.clock.now - each.began) for each in self.levels[:depth]]
            expected = next((status for status in over if status), None)
            if expected is None:
                level.meter.check()
                continue
            with pytest.raises(StopRun) as stop:
                level.meter.check()
            assert stop.value.status is expected

    @invariant()
    def the_time_left_is_the_least_of_all_levels_above(self) -> None:
        for depth, level in enumerate(self.levels, 1):
            ends = [
                max(each.began + each.meter.budget.max_seconds - self.clock.now, 0)
                for each in self.levels[:depth]
                if each.meter.budget.max_seconds is not None
            ]
            assert level.meter.seconds_left() == min(ends, default=None)


TestTrees = pytest.mark.exhaustive(Trees.TestCase)


@dataclass(frozen=True)
class Errand:
    """One step of a run: what its call of the model costs, and the run it starts, if it starts one."""

    usage: Usage
    below: Plan | None = None


@dataclass(frozen=True)
class Plan:
    """A run: its budget, and its steps; then it finishes."""

    budget: Budget
    errands: tuple[Errand, ...]


RUN_LIMITS = st.builds(
    Budget, max_iterations=st.integers(1, 7), max_tokens=st.none() | st.integers(1, 60),
    max_cost_usd=st.none() | st.sampled_from([0.5, 1.0, 2.0, 3.5]),
)  # fmt: skip
FREE = Usage(calls=1)


def plans(below: st.SearchStrategy[Plan] | None) -> st.SearchStrategy[Plan]:
    inner: st.SearchStrategy[Plan | None] = st.none() if below is None else st.none() | below
    return st.builds(Plan, RUN_LIMITS, st.lists(st.builds(Errand, USAGES, inner), max_size=6).map(tuple))


class Told:
    """What happened in a tree of runs: calls of the model in their order, and how each run ended and after how many steps."""

    def __init__(self) -> None:
        self.calls: list[Usage] = []
        self.ends: list[tuple[RunStatus, int]] = []


def foretold(plan: Plan, above: Sequence[tuple[Budget, list[Usage]]], told: Told) -> None:
    """What must happen by the rules: a limit is looked at before each step, one's own and all above."""
    own: list[Usage] = []
    chain = [*above, (plan.budget, own)]
    status, steps = RunStatus.max_iterations, 0
    errands = iter(plan.errands)
    while steps < plan.budget.max_iterations:
        over = [exhausted(limits, sum(used, Usage()), 0.0) for limits, used in chain]
        if reached := next((each for each in over if each), None):
            status = reached
            break
        steps += 1
        errand = next(errands, None)
        told.calls.append(FREE if errand is None else errand.usage)
        for _, used in chain:
            used.append(told.calls[-1])
        if errand is None:
            status = RunStatus.finished
            break
        if errand.below is not None:
            foretold(errand.below, chain, told)
    told.ends.append((status, steps))


def carried_out(plan: Plan, told: Told) -> Usage:
    """The same with agents. Answers what the first run says it used."""
    errands = iter(plan.errands)
    started: list[Plan | None] = []

    def brain(prompt: Any) -> Any:
        errand = next(errands, None)
        usage = FREE if errand is None else errand.usage
        charge(usage)
        told.calls.append(usage)
        started.append(None if errand is None else errand.below)
        return {"tool": "finish", "args": {"summary": "done"}} if errand is None else {"tool": "go_on", "args": {}}

    def go_on() -> str:
        below = started[-1]
        if below is not None:
            carried_out(below, told)
        return f"step {len(started)}"

    registry = ActionRegistry([Action("go_on", go_on, "Go on."), finish_action()])
    agent = Agent([Goal("Go on.")], StructuredLanguage(), registry, brain, Environment(), budget=plan.budget)
    run = agent.execute("go")
    told.ends.append((run.status, run.iterations))
    return run.usage


@pytest.mark.exhaustive
@settings(deadline=None, max_examples=150)
@given(plans(plans(plans(None))))
def test_a_tree_of_runs_ends_as_its_limits_say(plan: Plan) -> None:
    expected, found = Told(), Told()
    foretold(plan, (), expected)
    used = carried_out(plan, found)
    assert found.ends == expected.ends
    assert found.calls == expected.calls
    assert used == sum(found.calls, Usage())  # the first run is told of all that was used below it


@settings(deadline=None)
@given(st.lists(USAGES, min_size=1, max_size=12), LIMITS)
def test_a_limit_that_was_reached_stays_reached(usages: list[Usage], limits: Budget) -> None:
    meter = Meter(limits)
    over = False
    for usage in usages:
        before = asdict(meter.usage)
        over = over or exhausted(limits, meter.usage, 0.0) is not None
        assert (reached(meter) is not None) == over
        meter.charge(usage)  # also when it is over: a call that was under way in another thread
        assert all(value >= before[name] for name, value in asdict(meter.usage).items())


def reached(meter: Meter) -> RunStatus | None:
    try:
        meter.check()
    except StopRun as stop:
        return stop.status
    return None


@given(USAGES, USAGES, USAGES)
def test_usages_add_up_in_any_order(a: Usage, b: Usage, c: Usage) -> None:
    assert (a + b) + c == a + (b + c)
    assert a + b == b + a
    assert a + Usage() == a
    assert asdict(a + b) == {name: value + asdict(b)[name] for name, value in asdict(a).items()}


@given(st.sampled_from(["max_iterations", "max_seconds", "max_tokens", "max_cost_usd", "max_invalid_replies"]), st.integers(-3, 0))
def test_a_limit_that_is_not_positive_is_refused(name: str, value: int) -> None:
    for wrong in (value, float(value), float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"{name} must be positive"):
            Budget(**{name: wrong})  # type: ignore[arg-type]


@given(RUN_LIMITS, st.none() | st.integers(1, 9))
def test_other_steps_leave_the_other_limits(limits: Budget, steps: int | None) -> None:
    other = limits.with_iterations(steps)
    assert other.max_iterations == (limits.max_iterations if steps is None else steps)
    assert asdict(other) | {"max_iterations": 0} == asdict(limits) | {"max_iterations": 0}


def test_charges_of_many_threads_are_all_counted() -> None:
    above, meter = Meter(Budget()), Meter(Budget())
    meter.above = above

    def often() -> None:
        for _ in range(2000):
            meter.charge(FREE)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=often) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert (meter.usage.calls, above.usage.calls) == (16_000, 16_000)
