"""Delegation in recorded runs: what is paused, killed, put off or fails in an agent below is so for the whole tree."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent import Agent, AgentRun, Budget, Hooks, Memory
from agent.core.status import RunStatus
from agent.record.recorder import current_recorder
from agent.record.resume import begin, execute_recorded, resume
from agent.record.store import EventLog, record_of, verify_all
from sandbox import LocalEnvironment

from .delegating_runs import (
    CALLS,
    DONE,
    FINISH,
    MIDDLE,
    PRICE,
    WORKER,
    Killed,
    MortalLog,
    call,
    delegate,
    done_in,
    moments,
    run,
    tree,
    tree_of,
)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[LocalEnvironment]:
    with LocalEnvironment(track_changes=False) as made:
        yield made


@pytest.fixture(autouse=True)
def _clean(sandbox: LocalEnvironment) -> None:
    sandbox.run("rm -f done file", session=None).unwrap()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    with EventLog(tmp_path / "runs.db") as made:
        yield made


def ident(log: EventLog) -> str:
    """The run's id, another in each log: the sandbox of these tests knows by it what it has carried out."""
    return f"{log.path.parent.name}-{log.path.stem}"


def executed(log: EventLog, agent: Agent) -> AgentRun:
    return execute_recorded(agent, "go", log, run=ident(log))


def gone_on_with(log: EventLog, agent: Agent, **options: Any) -> AgentRun:
    with log.begin(ident(log)) as writer:
        return resume(agent, writer, **options)


def check_whole(log: EventLog, outcome: AgentRun, sandbox: LocalEnvironment, where: Any = "") -> None:
    """Everything was done once, in order, and all that was used is counted at the top."""
    assert outcome.status is RunStatus.finished, (where, outcome.reason)
    assert done_in(sandbox) == DONE, where
    assert all(verdict.intact and verdict.ended for verdict in verify_all(log)), where
    records = tree_of(log, ident(log))
    assert [record.agent for record in records] == ["", "middle", "worker", "worker"], where
    assert [record.status for record in records] == ["finished"] * 4, where
    assert [len(record.steps) for record in records] == [5, 4, 4, 4], where
    assert records[0].usage.calls == CALLS == outcome.usage.calls, where
    assert records[0].usage.cost_usd == pytest.approx(CALLS * PRICE), where
    assert records[1].usage.calls == 8, where
    assert records[0].messages == outcome.memory.items, where
    answers = [step.envelope or {} for record in records for step in record.steps]
    assert all(answer.get("tool_executed") is True for answer in answers), where
    usage = (records[0].steps[1].envelope or {})["result"]["usage"]
    assert (usage["calls"], usage["steps"]) == (8, 4), where
    assert sum(step.usage.calls for step in records[0].steps) == CALLS, where


def test_a_tree_and_its_record(log: EventLog, sandbox: LocalEnvironment) -> None:
    check_whole(log, executed(log, tree(sandbox)), sandbox)


def moments_of(path: Path, agent: Agent) -> list[int]:
    """Where to kill a run of this agent, so that it dies at every kind of event."""
    with MortalLog(path) as log:
        executed(log, agent)
        return moments(log.seen)


@pytest.mark.exhaustive
def test_killed_at_every_kind_of_event_of_the_tree(sandbox: LocalEnvironment, tmp_path: Path) -> None:
    """Whichever agent was at work: it goes on where it was, nothing is done twice, and what it used is counted."""
    sample = moments_of(tmp_path / "whole.db", tree(sandbox))
    assert len(sample) > 30, "a tree has that many kinds of events"
    for dies_at in sample[::2]:  # the next test has the others
        sandbox.run("rm -f done file", session=None).unwrap()
        path = tmp_path / f"{dies_at}.db"
        assert died(path, tree(sandbox), dies_at, after=True)
        with EventLog(path) as log:
            known = record_of(log, ident(log))
            if known.status == "finished":
                continue  # it died behind its last event
            counted = sum(step.decided is not None for record in tree_of(log, ident(log)) for step in record.steps)
            assert known.usage.calls == counted, (dies_at, "what is in the log is counted before it goes on, too")
            check_whole(log, gone_on_with(log, tree(sandbox)), sandbox, dies_at)


def died(path: Path, agent: Agent, dies_at: int, after: bool, *, going_on: bool = False) -> bool:
    """Whether the run died at that event; else it came to its end."""
    with MortalLog(path) as log:
        log.dies_at, log.after = dies_at, after
        try:
            if going_on:
                gone_on_with(log, agent)
            else:
                executed(log, agent)
        except Killed:
            return True
    return False


@pytest.mark.exhaustive
@pytest.mark.parametrize("every", [3, 5, 11])
def test_killed_over_and_over(sandbox: LocalEnvironment, tmp_path: Path, every: int) -> None:
    """Each time a few events further, also while it is being resumed, until it is through."""
    path = tmp_path / "runs.db"
    died(path, tree(sandbox), every, after=True)
    for attempt in range(120):
        dies_at = every + attempt % 3 + 3  # RunResumed of three agents is no way forward
        if not died(path, tree(sandbox), dies_at, after=bool(attempt % 2), going_on=True):
            break
        with EventLog(path) as log:
            if record_of(log, ident(log)).status == "finished":
                break
    with EventLog(path) as log:
        outcome = record_of(log, ident(log))
        assert outcome.status == "finished", attempt
        assert done_in(sandbox) == DONE
        assert outcome.usage.calls == CALLS
        assert all(verdict.intact for verdict in verify_all(log))


@pytest.mark.exhaustive
def test_a_limit_of_cost_holds_for_a_tree_that_is_killed_at_every_kind_of_event(sandbox: LocalEnvironment, tmp_path: Path) -> None:
    """No kill gives new money: the calls of all processes together are what the limit allows, one over, and the one that was
    under way when it was killed.
    """
    budget = Budget(max_cost_usd=6.5 * PRICE)
    sample = moments_of(tmp_path / "whole.db", tree(sandbox, budget=budget))
    assert len(sample) > 25
    for dies_at in sample[1::2]:
        sandbox.run("rm -f done file", session=None).unwrap()
        asked: list[str] = []
        path = tmp_path / f"{dies_at}.db"
        assert died(path, tree(sandbox, budget=budget, asked=asked), dies_at, after=False)
        with EventLog(path) as log:
            if record_of(log, ident(log)).status is None:
                outcome = gone_on_with(log, tree(sandbox, budget=budget, asked=asked))
                assert outcome.status is RunStatus.max_cost, dies_at
            assert record_of(log, ident(log)).usage.calls == 7, dies_at
        assert len(asked) <= 8, (dies_at, asked)


# --- pausing ------------------------------------------------------------------
@pytest.mark.parametrize("where", ["middle1", "worker0", "worker2", "worker3"])
def test_ctrl_c_while_an_agent_below_thinks_pauses_all(log: EventLog, sandbox: LocalEnvironment, where: str) -> None:
    hit: list[bool] = []

    def interrupted(steps: list[Any], name: str) -> list[Any]:
        def step(number: int, own: Any) -> Any:
            def reply(prompt: Any) -> Any:
                if f"{name}{number}" == where and not hit:
                    hit.append(True)
                    raise KeyboardInterrupt
                return own

            return reply

        return [step(number, own) for number, own in enumerate(steps)]

    scripts: dict[str, Any] = {"middle": interrupted(MIDDLE, "middle"), "worker": interrupted(WORKER, "worker")}
    outcome = executed(log, tree(sandbox, **scripts))
    assert outcome.status is RunStatus.paused
    assert done_in(sandbox)[-1] in ("m1", "w1", "worker"), "nothing was done above after that"
    assert {record.status for record in tree_of(log, ident(log))} == {"paused"}
    outcome = gone_on_with(log, tree(sandbox, **scripts))
    assert outcome.status is RunStatus.finished
    assert done_in(sandbox) == DONE
    records = tree_of(log, ident(log))
    assert [len(record.steps) for record in records] == [5, 4, 4, 4]
    assert records[0].usage.calls == CALLS + 1 == outcome.usage.calls, "the call that was interrupted was paid for"


class Interrupting(LocalEnvironment):
    """Ctrl-C hits once, when the command with this word was carried out and its answer is not seen yet."""

    word, hit = "", False

    def perform(self, request: Any, watch: Any = None) -> Any:
        answer = super().perform(request, watch)
        if not self.hit and self.word and self.word in getattr(request, "command", ""):
            self.hit = True
            raise KeyboardInterrupt
        return answer


@pytest.mark.parametrize("word", ["w1", "$WHO", "m2"])
def test_ctrl_c_while_an_action_of_an_agent_below_is_under_way_pauses_all(log: EventLog, word: str) -> None:
    with Interrupting(track_changes=False) as sandbox:
        sandbox.word = word
        outcome = executed(log, tree(sandbox))
        assert outcome.status is RunStatus.paused
        assert {record.status for record in tree_of(log, ident(log)) if record.pending} == {"paused"}
        check_whole(log, gone_on_with(log, tree(sandbox)), sandbox)


class At(Hooks):
    """Does something once, at a step of the agent it is added to."""

    def __init__(self, step: int, act: Any) -> None:
        self.step, self.act = step, act

    def on_action(self, step: Any, memory: Memory) -> None:
        if step.number == self.step and self.act is not None:
            act, self.act = self.act, None
            act()


def interrupt() -> None:
    raise KeyboardInterrupt


def test_ctrl_c_elsewhere_in_an_agent_below_pauses_all(log: EventLog, sandbox: LocalEnvironment) -> None:
    once = At(2, interrupt)

    def built(agent: Agent, setting: Any) -> None:
        if setting.depth == 2:
            agent.hooks.append(once)

    outcome = executed(log, tree(sandbox, on_built=built))
    assert outcome.status is RunStatus.paused
    assert {record.status for record in tree_of(log, ident(log))} == {"paused"}
    check_whole(log, gone_on_with(log, tree(sandbox)), sandbox)


def test_pausing_the_first_pauses_those_below_before_their_next_step(log: EventLog, sandbox: LocalEnvironment) -> None:
    def built(agent: Agent, setting: Any) -> None:
        if setting.depth == 2:
            agent.hooks.append(At(2, lambda: recorders[0].pause()))

    agent = tree(sandbox, on_built=built)
    with log.begin(ident(log)) as writer:
        recorders = [begin(agent, writer, "go")]
        outcome = agent.execute("go")
    assert outcome.status is RunStatus.paused
    records = tree_of(log, ident(log))
    assert [record.status for record in records] == ["paused"] * 3
    assert len(records[2].steps) == 2
    check_whole(log, gone_on_with(log, tree(sandbox)), sandbox)


def test_a_question_of_an_agent_below_pauses_all_and_it_hears_the_answer(log: EventLog, sandbox: LocalEnvironment) -> None:
    heard: list[str] = []

    def hear(prompt: Any) -> Any:
        heard.extend(str(m["content"]) for m in prompt.metadata["memory"] if m["role"] == "user")
        return FINISH

    fields = {"actions": ("ask_user", "finish"), "kit_options": {"ask_user": {"absent": "pause"}}}
    scripts: dict[str, Any] = {"worker": [call("ask_user", question="red or blue?"), hear], "worker_fields": fields}
    outcome = executed(log, tree(sandbox, boss=[delegate("worker", task="x"), FINISH], **scripts))
    assert (outcome.status, outcome.result) == (RunStatus.paused, {"question": "red or blue?"})
    assert "red or blue?" in outcome.reason
    outcome = gone_on_with(log, tree(sandbox, boss=[delegate("worker", task="x"), FINISH], **scripts), say="blue")
    assert outcome.status is RunStatus.finished
    assert heard == ["x", "blue"]


def test_a_paused_agent_below_pauses_a_run_without_a_log_too(sandbox: LocalEnvironment) -> None:
    fields = {"actions": ("ask_user", "finish"), "kit_options": {"ask_user": {"absent": "pause"}}}
    outcome = tree(
        sandbox, boss=[delegate("worker", task="x"), FINISH], worker=[call("ask_user", question="which?")], worker_fields=fields
    ).execute("go")
    assert (outcome.status, outcome.iterations) == (RunStatus.paused, 1)


@pytest.mark.exhaustive
def test_a_part_that_ended_is_not_asked_again(log: EventLog, sandbox: LocalEnvironment, tmp_path: Path) -> None:
    """Also where it did not finish: the answer is that of its own end."""
    worker = [call("reject", reason="makes no sense")]
    for dies_at in range(5, 60):
        path = tmp_path / f"{dies_at}.db"
        asked: list[str] = []
        if not died(path, tree(sandbox, boss=[delegate("worker", task="x"), FINISH], worker=worker, asked=asked), dies_at, True):
            break
        with EventLog(path) as cut:
            if record_of(cut, ident(cut)).status is not None:
                continue
            ended = [record.status for record in tree_of(cut, ident(cut))[1:]] == ["rejected"]
            asked.clear()
            gone_on_with(cut, tree(sandbox, boss=[delegate("worker", task="x"), FINISH], worker=worker, asked=asked))
            first = record_of(cut, ident(cut)).steps[0].envelope or {}
            assert (first["code"], first["result"]["outputs"]) == ("delegate_not_finished", {"reason": "makes no sense"})
            assert not (ended and "worker0" in asked)
            assert record_of(cut, ident(cut)).usage.calls == 3
    assert dies_at > 12


@pytest.mark.exhaustive
def test_an_agent_below_that_had_taken_its_last_step_is_told_so(sandbox: LocalEnvironment, tmp_path: Path) -> None:
    """It was killed between its last step and the word that this was the last."""
    fields = {"max_iterations": 2}
    for dies_at in range(5, 60):
        path = tmp_path / f"{dies_at}.db"
        sandbox.run("rm -f done", session=None)
        agent = tree(sandbox, boss=[delegate("worker", task="x"), FINISH], worker=[run("w1"), run("w2")], worker_fields=fields)
        if not died(path, agent, dies_at, True):
            break
        with EventLog(path) as log:
            if record_of(log, ident(log)).status is not None:
                continue
            gone_on_with(
                log, tree(sandbox, boss=[delegate("worker", task="x"), FINISH], worker=[run("w1"), run("w2")], worker_fields=fields)
            )
            first = record_of(log, ident(log)).steps[0].envelope or {}
            assert (first["code"], first["result"]["status"]) == ("delegate_not_finished", "max_iterations"), dies_at
            assert done_in(sandbox) == ["w1", "w2"], dies_at
    assert dies_at > 15


def test_in_a_new_sandbox_an_agent_below_is_not_taken_up_but_counted(sandbox: LocalEnvironment, tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    assert died(path, tree(sandbox), 25, after=True)
    with EventLog(path) as log, LocalEnvironment(track_changes=False) as fresh:
        before = record_of(log, ident(log))
        assert [len(part.steps) for part in tree_of(log, ident(log))] == [2, 2, 1]
        assert before.usage.calls == 5
        outcome = gone_on_with(log, tree(fresh), same=False)
        assert outcome.status is RunStatus.finished
        assert (record_of(log, ident(log)).steps[1].envelope or {})["code"] == "effects_unknown"
        assert outcome.usage.calls == 5 + 2 + 4 + 1 == record_of(log, ident(log)).usage.calls
        assert done_in(fresh) == ["b2", "w1", "worker"]


def test_sessions_of_an_agent_below_survive_a_pause_and_end_with_it(log: EventLog, sandbox: LocalEnvironment) -> None:
    with Interrupting(track_changes=False) as env:
        env.word = "$WHO"
        executed(log, tree(env))
        session = ".".join(part.run for part in tree_of(log, ident(log))[1:])
        assert env.run("echo $WHO", session=session).unwrap().output == "worker\n"
        gone_on_with(log, tree(env))
        assert env.run("echo $WHO", session=session).unwrap().output == "\n"
    assert current_recorder() is None
