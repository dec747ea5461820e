"""Stuck detection: circles are told, then they end the run; what makes progress never is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent import Action, ActionRegistry, Agent, Budget, Environment, Goal, JsonLanguage, RunStatus, ScriptedModel, Step
from agent.core.status import StopRun
from agent.hub import AgentSpec, Hub, Setting, build
from agent.layers.sameness import lasting, print_of_action, print_of_answer
from agent.layers.stuck import MARK, StuckDetector, Thresholds
from agent.memory import Memory
from agent.tools import finish_action, think_action
from sandbox.errors import SandboxError, ToolError

Call = tuple[str | None, dict[str, Any], dict[str, Any]]


def answered(result: Any) -> dict[str, Any]:
    return {"tool_executed": True, "result": result, "timestamp": "x", "duration_ms": 3.2, "notices": []}


def failed(error: str) -> dict[str, Any]:
    return {"tool_executed": False, "error": error, "code": "tool_error", "timestamp": "x", "duration_ms": 1.0}


class Run:
    """Feeds steps to a detector as the loop does; ``told`` are the numbers of the steps after which there was a nudge."""

    def __init__(self, **thresholds: Any) -> None:
        self.detector = StuckDetector(Thresholds(**thresholds))
        self.memory = Memory()
        self.number = 0
        self.told: list[int] = []
        self.stopped: StopRun | None = None
        self.says("the task")

    def says(self, text: str) -> None:
        self.memory.add_memory({"role": "user", "content": text})

    def steps(self, *calls: Call) -> Run:
        for tool, args, envelope in calls:
            if self.stopped:
                break
            self.number += 1
            self.detector.on_step_start(Step(self.number), self.memory)
            self.memory.add_memory({"role": "assistant", "content": f"{tool} {args}"})
            self.memory.add_memory({"role": "tool", "content": envelope})
            before = len(self.memory.items)
            try:
                self.detector.on_result(Step(self.number, tool=tool, args=args, envelope=envelope), self.memory)
            except StopRun as stop:
                self.stopped = stop
            if len(self.memory.items) > before:
                assert MARK in self.memory.items[-1]
                self.told.append(self.number)
        return self


def run(output: str, command: str = "make") -> Call:
    return "run", {"command": command}, answered({"output": output, "exit_code": 0})


SAME_ANSWER = [run("nothing to do")] * 4
SAME_ERROR = [("read", {"path": "a"}, failed("There is no a."))] * 3
TALK: list[Call] = [("think", {"thought": f"thought {n}"}, answered("Noted.")) for n in range(4)]
ALTERNATION = [run("red", "test"), run("green", "lint")] * 3
THREE_IN_TURN = [run("a", "one"), run("b", "two"), run("c", "three")] * 2


@pytest.mark.parametrize(
    ("calls", "pattern"),
    [
        (SAME_ANSWER, "same_answer"), (SAME_ERROR, "same_error"), (TALK, "monologue"), (ALTERNATION, "alternating"),
        (THREE_IN_TURN, "alternating"),
    ],
)  # fmt: skip
def test_a_circle_is_told_then_ends_the_run(calls: list[Call], pattern: str) -> None:
    made = Run().steps(*calls)
    assert (made.told, made.stopped) == ([len(calls)], None)
    nudge = made.memory.items[-1]
    assert (nudge["role"], nudge[MARK]) == ("user", pattern)
    assert "going in circles" in nudge["content"]
    made.steps(*calls)
    assert made.stopped is not None
    assert made.stopped.status is RunStatus.stuck
    assert made.number == 2 * len(calls)


def test_the_nudge_says_what_repeats() -> None:
    made = Run().steps(*SAME_ERROR)
    assert 'read {"path": "a"} failed 3 times in a row in the same way' in made.memory.items[-1]["content"]


def test_replies_without_any_action_are_left_to_the_limit_of_the_loop() -> None:
    unreadable: Call = (None, {}, failed("The reply contains no action."))
    made = Run().steps(*[unreadable] * 40)
    assert made.told
    assert made.stopped is None


def test_what_the_user_says_begins_anew() -> None:
    made = Run().steps(*SAME_ANSWER, *SAME_ANSWER[:3])
    made.says("Go on, it takes a while.")
    made.steps(*SAME_ANSWER[:3])
    assert made.told == [4]
    made.steps(SAME_ANSWER[0])
    assert (made.told, made.stopped) == ([4, 11], None)


def test_an_alarm_long_after_the_last_is_a_nudge_again_but_not_for_ever() -> None:
    made = Run(patience=5, nudges=2)
    for turn in range(3):
        made.steps(*SAME_ANSWER, *[run(f"{turn} {n}") for n in range(10)])
    assert len(made.told) == 2
    assert made.stopped is not None


def test_a_pattern_can_be_switched_off() -> None:
    off = {"same_answer": 0, "same_error": 0, "monologue": 0, "alternating": 0}
    for calls in (SAME_ANSWER, SAME_ERROR, TALK, ALTERNATION, THREE_IN_TURN):
        assert Run(**off).steps(*calls * 3).told == []
    assert Run(nudges=0).steps(*SAME_ANSWER).stopped is not None


@pytest.mark.parametrize("wrong", [{"same_answer": 1}, {"alternating": -1}, {"patience": 0}, {"nudges": -1}])
def test_thresholds_that_are_none(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must"):
        Thresholds(**wrong)  # type: ignore[arg-type]


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=60, unique=True))
def test_polling_whose_output_changes_is_no_circle(outputs: list[int]) -> None:
    made = Run().steps(*[run(f"{value} of 1000000 done, 12 s elapsed") for value in outputs])
    assert made.told == []


@given(st.lists(st.sampled_from([SAME_ANSWER[0], SAME_ERROR[0], TALK[0], *ALTERNATION[:2]]), max_size=80))
def test_the_rules(calls: list[Call]) -> None:
    """No alarm without a pattern, and every pattern is one: checked against a plain second wording of the rules."""
    made = Run(patience=1, nudges=99)
    latest: list[tuple[Any, Any]] = []
    for call in calls:
        told = len(made.told)
        made.steps(call)
        if made.stopped:
            break
        latest.append((call[1], call[0]))
        fours, threes = (len(latest) >= n and len(set(map(str, latest[-n:]))) == 1 for n in (4, 3))
        alternates = len(latest) >= 6 and latest[-1] != latest[-2] and latest[-2:] * 3 == latest[-6:]
        three = len(latest) >= 6 and len(set(map(str, latest[-3:]))) == 3 and latest[-3:] * 2 == latest[-6:]
        expected = fours or (threes and call[0] == "read") or alternates or three
        assert (len(made.told) > told) == expected
        if expected:
            latest = []


def pattern_of(latest: list[Call], t: Thresholds) -> tuple[str, bool] | None:
    """The first pattern that these steps end with, and whether it may end the run: the rules in other words."""

    def same(count: int) -> bool:
        return bool(count) and len(latest) >= count and all(call == latest[-1] for call in latest[-count:])

    tool, _, answer = latest[-1]
    if tool and same(t.same_error) and not answer["tool_executed"]:
        return "same_error", True
    if tool and same(t.same_answer):
        return "same_answer", True
    talk = [call[0] is None or call[0] == "think" for call in latest]
    if t.monologue and len(latest) >= t.monologue and all(talk[-t.monologue :]):
        return "monologue", any(call[0] for call in latest[-t.monologue :])
    for length in (2, 3):
        tail = latest[-max(t.alternating, 2 * length) :]
        cycle = tail[:length]
        different = all(a != b for n, a in enumerate(cycle) for b in cycle[:n])
        turns = len(tail) == max(t.alternating, 2 * length) and all(c == cycle[n % length] for n, c in enumerate(tail))
        if t.alternating and turns and different:
            return "alternating", True
    return None


UNREADABLE: Call = (None, {}, failed("The reply contains no action."))
KINDS = st.sampled_from([SAME_ANSWER[0], SAME_ERROR[0], TALK[0], UNREADABLE, *THREE_IN_TURN[:3]])
COUNTS = st.just(0) | st.integers(2, 9)
# Pieces that repeat, for circles seldom come about by chance; between them the user may speak (None).
PIECES = st.builds(lambda piece, times: piece * times, st.lists(KINDS, min_size=1, max_size=3), st.integers(1, 9))
STORIES = st.lists(PIECES | st.just([None]), max_size=8)


@pytest.mark.exhaustive
@settings(deadline=None, max_examples=300)
@given(
    story=STORIES,
    thresholds=st.builds(
        Thresholds, same_answer=COUNTS, same_error=COUNTS, monologue=COUNTS, alternating=COUNTS, patience=st.integers(1, 9),
        nudges=st.integers(0, 3),
    ),
)  # fmt: skip
def test_the_rules_with_any_thresholds(story: list[list[Call | None]], thresholds: Thresholds) -> None:
    made = Run(**{name: getattr(thresholds, name) for name in Thresholds.__slots__})
    latest: list[Call] = []
    nudged: list[int] = []
    for call in (call for piece in story for call in piece):
        if call is None:
            made.says("Go on.")
            latest, nudged = [], []
            continue
        told = len(made.told)
        made.steps(call)
        latest.append(call)
        found = pattern_of(latest, thresholds)
        soon = bool(nudged) and made.number - nudged[-1] <= thresholds.patience
        if found is not None and found[1] and (soon or len(nudged) >= thresholds.nudges):
            assert made.stopped is not None
            return
        assert made.stopped is None
        assert len(made.told) - told == (found is not None)
        if found is not None:
            assert made.memory.items[-1][MARK] == found[0]
            latest = []
            nudged.append(made.number)


@pytest.mark.parametrize(("patience", "ended"), [(3, False), (4, True)])
def test_patience_is_counted_to_the_step(patience: int, ended: bool) -> None:
    made = Run(patience=patience).steps(*SAME_ANSWER * 2)  # the second alarm comes four steps after the first
    assert (made.stopped is not None) == ended


def test_a_run_that_begins_is_not_held_to_what_was_before() -> None:
    made = Run().steps(*SAME_ANSWER[:3])
    made.number = 0
    assert made.steps(*SAME_ANSWER[:3]).told == []
    assert made.steps(SAME_ANSWER[0]).told == [4]


VOLATILE: list[Callable[[int], str]] = [
    lambda n: f"2026-11-22T01:02:{n:02d}.123+00:00",
    lambda n: f"01:02:{n:02d}",
    lambda n: f"1 failed in 0.{n}s",
    lambda n: f"took {n}.5 ms",
    lambda n: f"object at 0x7f{n:06x}",
    lambda n: f"{n:08x}-0000-4000-8000-000000000000",
    lambda n: f"commit a{n:011x}f",
]


@pytest.mark.parametrize("word", VOLATILE)
def test_times_ids_and_addresses_make_no_difference(word: Callable[[int], str]) -> None:
    same = [run(f"FAILED test_x ({word(n)})") for n in range(4)]
    for n, call in enumerate(same):
        call[2].update(timestamp=str(n), duration_ms=n)
        call[2]["result"].update(id=f"c{n}", cpu_seconds=n / 7)
    assert Run().steps(*same).told == [4]


@pytest.mark.parametrize(
    "texts",
    [
        ("3 passed", "4 passed"),
        ("12 s elapsed", "13 s elapsed"),
        ("line 10", "line 11"),
        ("aaaa", "bbbb"),
        ("50 %", "60 %"),
    ],
)
def test_news_make_a_difference(texts: tuple[str, str]) -> None:
    assert print_of_answer(answered(texts[0])) != print_of_answer(answered(texts[1]))
    assert print_of_action("run", {"command": texts[0]}) != print_of_action("run", {"command": texts[1]})


@pytest.mark.exhaustive
@settings(deadline=2000)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v)
    )
)
def test_any_answer_has_a_print(value: Any) -> None:
    assert print_of_answer({"result": value}) == print_of_answer({"result": value})
    assert lasting(lasting(value)) == lasting(value)


def test_a_long_answer_is_compared_in_no_time() -> None:
    """No pattern of ours may take longer than its text is long."""
    for piece in ("0" * 99 + " ", "a1" * 50, "1-1-", "12:", "pid ", "9" * 1000 + "."):
        print_of_answer(answered(piece * (400_000 // len(piece))))


def agent_of(*steps: Any, **thresholds: Any) -> Agent:
    def missing() -> None:
        raise ToolError("It is not there.")

    registry = ActionRegistry([Action("look", missing, "Look."), think_action(), finish_action()])
    return Agent(
        [Goal("Do it.")], JsonLanguage(), registry, ScriptedModel(steps), Environment(),
        hooks=[StuckDetector(Thresholds(**thresholds))], budget=Budget(max_iterations=20),
    )  # fmt: skip


LOOK = {"tool": "look", "args": {}}
FINISH = {"tool": "finish", "args": {"summary": "done"}}


def test_a_run_that_is_stuck_ends_as_such_and_goes_on_when_the_user_says_so() -> None:
    agent = agent_of(*[LOOK] * 9, FINISH)
    stuck = agent.execute("look")
    assert (stuck.status, stuck.iterations, stuck.ok) == (RunStatus.stuck, 6, False)
    assert "look {} failed 3 times" in stuck.reason
    again = agent.execute("Try it again.", stuck.memory)
    assert (again.status, again.iterations) == (RunStatus.finished, 4)
    assert [m[MARK] for m in again.memory.items if MARK in m] == ["same_error", "same_error"]


def test_agents_that_are_built_are_watched() -> None:
    def built(**fields: Any) -> Agent:
        spec = AgentSpec(name="a", description="A.", goals=(Goal("Do it."),), actions=("think", "finish"), **fields)
        steps = [{"tool": "think", "args": {"thought": "hm"}}] * 20 + [FINISH]
        setting = Setting(environment=Environment(), hub=Hub(), brain=ScriptedModel(steps))
        return build(spec, setting)

    assert built().execute("x").status is RunStatus.stuck
    assert built(stuck=None).execute("x").status is RunStatus.finished
    assert built(brain=lambda setting: setting.brain).execute("x").status is RunStatus.finished
    assert built(stuck={"same_answer": 3}).execute("x").iterations == 6
    with pytest.raises(SandboxError, match="invalid thresholds"):
        built(stuck={"same": 3})
