"""Approvals within delegated agents, in recorded runs: what waits survives, and is carried out exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent import Agent, AgentRun
from agent.core.status import RunStatus
from agent.layers.approvals import Answer, ApprovalPolicy, ApprovalRequest, ApprovingEnvironment
from agent.record.resume import execute_recorded, resume
from agent.record.store import EventLog, record_of, verify_all
from agent.views.terminal_approvals import require_approvals
from sandbox import LocalEnvironment

from .delegating_runs import (
    BOSS,
    DONE,
    FINISH,
    Killed,
    Moment,
    MortalLog,
    call,
    delegate,
    done_in,
    moments,
    tree,
    tree_of,
)

LATER, YES = Answer(verdict="later"), Answer(verdict="approve")


@pytest.fixture
def sandbox() -> Iterator[LocalEnvironment]:
    with LocalEnvironment(track_changes=False) as made:
        yield made


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    with EventLog(tmp_path / "runs.db") as made:
        yield made


class Asked:
    """Answers with what is given, and with ``then`` when that is used up; keeps what it was asked."""

    def __init__(self, *answers: Answer, then: Answer = LATER) -> None:
        self.answers, self.then = list(answers), then
        self.requests: list[ApprovalRequest] = []

    def __call__(self, request: ApprovalRequest) -> Answer:
        self.requests.append(request)
        return self.answers.pop(0) if self.answers else self.then


def approving(asked: Asked) -> dict[str, Any]:
    """Every agent of the tree asks for what is risky; commands are."""

    def built(agent: Agent, setting: Any) -> None:
        policy = ApprovalPolicy(tools={"run": "always"})
        agent.environment = ApprovingEnvironment(agent.environment, policy, asked, registry=agent.actions)

    return {"on_built": built}


def gone_on_with(log: EventLog, agent: Agent) -> AgentRun:
    with log.begin("r") as writer:
        return resume(agent, writer)


@pytest.mark.exhaustive
def test_every_action_of_a_tree_put_off_and_approved_after_a_restart(log: EventLog, sandbox: LocalEnvironment) -> None:
    """Eight commands of three agents: each pauses all, is asked about once more, and carried out once."""
    outcome = execute_recorded(tree(sandbox, **approving(Asked())), "go", log, run="r")
    for number in range(len(DONE)):
        assert outcome.status is RunStatus.paused, outcome.reason
        assert "waits for an approval" in outcome.reason
        assert done_in(sandbox) == DONE[:number]
        assert all(record.status == "paused" for record in tree_of(log, "r") if record.pending)
        asked = Asked(YES)
        outcome = gone_on_with(log, tree(sandbox, **approving(asked)))
        assert [request.tool for request in asked.requests][:1] == ["run"]
    assert outcome.status is RunStatus.finished
    assert done_in(sandbox) == DONE
    kinds = [logged.kind for record in tree_of(log, "r") for logged in log.logged(record.run)]
    assert kinds.count("ApprovalRequested") == kinds.count("ApprovalAnswered") == len(DONE)
    assert all(verdict.intact for verdict in verify_all(log))


@pytest.mark.exhaustive
def test_answers_within_a_tree_survive_a_kill_at_every_kind_of_event(tmp_path: Path) -> None:
    """What was asked and answered is not asked again; what was approved is carried out once."""
    with LocalEnvironment(track_changes=False) as sandbox, MortalLog(tmp_path / "whole.db") as whole:
        execute_recorded(tree(sandbox, **approving(Asked(then=YES))), "go", whole, run="r")
    sample = moments([Moment("", moment.kind, None) for moment in whole.seen])  # the first and the last of each kind
    assert len(sample) > 15
    for dies_at in sample:
        asked = Asked(then=YES)
        with LocalEnvironment(track_changes=False) as sandbox, MortalLog(tmp_path / f"{dies_at}.db") as mortal:
            mortal.dies_at, mortal.after = dies_at, True
            with pytest.raises(Killed):
                execute_recorded(tree(sandbox, **approving(asked)), "go", mortal, run="r")
            with EventLog(mortal.path) as log:
                if record_of(log, "r").status is None:
                    gone_on_with(log, tree(sandbox, **approving(asked)))
                assert done_in(sandbox) == DONE, dies_at
                answered = [s.answered for record in tree_of(log, "r") for s in record.steps if s.answered is not None]
                assert len(answered) == len(DONE), dies_at
                assert len(asked.requests) <= len(DONE) + 1, "one answer may be lost with the process that heard it"


def test_an_edit_and_a_rejection_below(log: EventLog, sandbox: LocalEnvironment) -> None:
    boss = [delegate("worker", task="x"), FINISH]
    worker = [call("run", command="echo one >> done"), call("run", command="echo two >> done"), FINISH]
    execute_recorded(tree(sandbox, boss=boss, worker=worker, **approving(Asked())), "go", log, run="r")
    edit = Answer(verdict="edit", args={"command": "echo edited >> done"})
    asked = Asked(edit, Answer(verdict="reject", reason="not that"))
    outcome = gone_on_with(log, tree(sandbox, boss=boss, worker=worker, **approving(asked)))
    assert outcome.status is RunStatus.finished
    assert done_in(sandbox) == ["edited"]
    below = tree_of(log, "r")[1]
    assert [(step.envelope or {}).get("code") for step in below.steps] == [None, "approval_refused", None]
    assert [step.answered and step.answered.verdict for step in below.steps] == ["edit", "reject", None]


def test_a_delegation_that_waits_for_an_approval_itself(log: EventLog, sandbox: LocalEnvironment) -> None:
    def built(asked: Asked) -> Any:
        return lambda agent, setting: require_approvals(agent, "always", asked)

    outcome = execute_recorded(tree(sandbox, on_built=built(Asked(YES))), "go", log, run="r")
    assert (outcome.status, outcome.reason) == (RunStatus.paused, "delegate waits for an approval.")
    outcome = gone_on_with(log, tree(sandbox, on_built=built(Asked(then=YES))))
    assert (outcome.status, len(outcome.steps)) == (RunStatus.finished, len(BOSS) - 1)
    assert done_in(sandbox) == DONE
