"""The old contracts as data: every type there and back, malformed ones refused with words, plans under any change."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.contracts import MalformedActionError, State, action_from_dict, observation_from_dict
from agent.contracts.actions import (
    ACTIONS,
    Action,
    CmdKillAction,
    CmdRunAction,
    FileWriteAction,
    MessageAction,
    NullAction,
)
from agent.contracts.early import Event, action_of
from agent.contracts.late import hub_name
from agent.contracts.observations import (
    OBSERVATIONS,
    BrowserOutputObservation,
    CmdOutputObservation,
    NullObservation,
    Observation,
)
from agent.contracts.tasks import CLOSED, STATES, RootTask
from sandbox.errors import ToolError

TEXT = st.text(max_size=30)
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXT,
    int: st.integers(-3, 10_000),
    bool: st.booleans(),
    dict[str, Any]: st.dictionaries(TEXT, st.none() | st.integers() | TEXT | st.lists(TEXT, max_size=2), max_size=3),
    list[str]: st.lists(TEXT, max_size=3),
    list[Any]: st.lists(TEXT, max_size=3),
}


def events_of(kinds: tuple[type[Any], ...]) -> st.SearchStrategy[Any]:
    """Instances of all the types, also with id, cause, source and time."""

    def of(kind: type[Any]) -> st.SearchStrategy[Any]:
        hints, names = get_type_hints(kind), [field.name for field in dataclasses.fields(kind)]
        return st.builds(kind, **{name: VALUES[hints[name]] for name in names})

    @st.composite
    def stamped(draw: st.DrawFn) -> Any:
        event = draw(st.sampled_from(kinds).flatmap(of))
        event.id = draw(st.integers(-1, 50))
        event.cause = draw(st.none() | st.integers(0, 50))
        event.source = draw(st.sampled_from([None, "user", "agent"]))
        event.timestamp = draw(st.sampled_from([None, "2024-05-14T12:00:00"]))
        return event

    return stamped()


def stamps(event: Any) -> tuple[Any, ...]:
    return (event.id, event.cause, event.source, event.timestamp)


@pytest.mark.exhaustive
@given(events_of(ACTIONS))
def test_every_action_comes_back_from_its_data(action: Action) -> None:
    again = action_from_dict(json.loads(json.dumps(action.to_dict())))
    assert (again, type(again), stamps(again)) == (action, type(action), stamps(action))
    assert action_from_dict(action.to_memory()) == action
    assert not {"id", "timestamp", "cause", "message"} & set(action.to_memory())


@pytest.mark.exhaustive
@given(events_of(OBSERVATIONS))
def test_every_observation_comes_back_from_its_data(observation: Observation) -> None:
    again = observation_from_dict(json.loads(json.dumps(observation.to_dict())))
    assert (again, type(again), stamps(again)) == (observation, type(observation), stamps(observation))


def test_all_types_of_the_reference_are_there() -> None:
    assert {a.type for a in ACTIONS} == {
        "run", "kill", "run_ipython", "browse", "browse_interactive", "read", "write", "recall", "delegate", "finish", "reject",
        "summarize", "add_task", "modify_task", "change_agent_state", "message", "null",
    }  # fmt: skip
    assert {o.type for o in OBSERVATIONS} == {
        "run", "run_ipython", "browse", "read", "write", "recall", "delegate", "error", "success", "agent_state_changed", "null",
    }  # fmt: skip


def test_a_model_is_not_shown_pictures_and_trees() -> None:
    page = BrowserOutputObservation("text", "http://a/", screenshot="x" * 9, dom_object={"a": 1})
    assert page.to_memory() == {
        "observation": "browse", "content": "text", "extras": {"url": "http://a/", "status_code": 200, "error": False},
    }  # fmt: skip
    assert page.to_dict()["extras"]["screenshot"] == "x" * 9


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (None, "must be an object"), ("run", "must be an object"), ([], "must be an object"), ({}, "'action' is missing"),
        ({"action": "fly"}, "no action 'fly'"), ({"action": 3}, "no action 3"), ({"action": ["run"]}, "no action"),
        ({"action": "run"}, "command: Field required"), ({"action": "run", "args": {"command": 1}}, "command"),
        ({"action": "run", "args": []}, "command: Field required"), ({"action": "run", "args": [1]}, "must be an object"),
        ({"action": "run", "args": {"command": "a", "timeout": 3}}, "timeout"),
        ({"action": "kill", "args": {"id": "x"}}, "command_id"),
    ],
)  # fmt: skip
def test_what_is_no_action_is_refused_with_words(data: Any, says: str) -> None:
    with pytest.raises(MalformedActionError) as refused:
        action_from_dict(data)
    assert says in refused.value.message
    assert refused.value.hint


@given(
    st.recursive(
        st.none() | st.integers() | TEXT, lambda v: st.lists(v, max_size=3) | st.dictionaries(TEXT, v, max_size=3)
    )
)
def test_nonsense_is_refused_in_no_other_way(data: Any) -> None:
    for read in (action_from_dict, observation_from_dict):
        for each in (
            data,
            {"action": data},
            {"action": "run", "args": data},
            {"observation": data},
            {"observation": "run", "extras": data},
        ):
            with pytest.raises(MalformedActionError):
                read(each)


def test_names_of_the_early_contract() -> None:
    assert action_from_dict({"action": "write", "args": {"path": "a", "contents": "b"}}) == FileWriteAction("a", "b")
    assert action_from_dict({"action": "kill", "args": {"id": 3}}) == CmdKillAction(3)
    assert action_from_dict({"action": "think", "args": {"thought": "hm"}}) == MessageAction("hm")
    read = observation_from_dict({"observation": "output", "content": "hi"})
    assert read == CmdOutputObservation("hi", -1, "")
    assert (
        action_of(Event("run", {"command": "ls"}))
        == CmdRunAction("ls")
        == action_of({"action": "run", "args": {"command": "ls"}})
    )
    wrongs: list[Any] = [None, 3, "run", {}, Event("fly"), Event("run", {"cmd": "ls"})]
    for wrong in wrongs:
        with pytest.raises(MalformedActionError):
            action_of(wrong)


IDS = st.sampled_from(["", "0", "1", "0.0", "0.1", "0.0.0", "-1", "x", "0.", "9", "٣"])
CHANGES = st.lists(st.tuples(st.sampled_from(["add", "set"]), IDS, st.sampled_from([*STATES, "done"])), max_size=25)


@given(CHANGES)
def test_a_plan_keeps_its_rules(changes: list[tuple[str, str, str]]) -> None:
    plan = RootTask("all")
    for kind, ident, state in changes:
        before = plan.to_dict()
        try:
            if kind == "add":
                plan.add_subtask(
                    ident, f"goal of {state}", [{"goal": "inner", "state": state}] if state in STATES else None
                )
            else:
                plan.set_subtask_state(ident, state)
        except ToolError:
            assert plan.to_dict() == before
    for task in plan.walk():
        assert all(below.id == f"{task.id}.{n}".lstrip(".") for n, below in enumerate(task.subtasks))
        if task.id:
            assert plan.get_task_by_id(task.id) is task
    current = plan.get_current_task()
    assert current is None or (current.goal and current.state == "in_progress")
    assert RootTask.from_dict(json.loads(json.dumps(plan.to_dict()))).to_dict() == plan.to_dict()


def test_closing_and_reopening() -> None:
    plan = RootTask("all")
    plan.add_subtask("", "a", ["b", "c"])
    plan.set_subtask_state("0.0", "abandoned")
    plan.set_subtask_state("0", "completed")
    assert [t.state for t in plan.walk()] == ["completed", "completed", "abandoned", "completed"]
    plan.set_subtask_state("0.1", "in_progress")
    assert [t.state for t in plan.walk()] == ["in_progress", "in_progress", "abandoned", "in_progress"]
    current = plan.get_current_task()
    assert current is not None
    assert current.goal == "c"
    plan.set_subtask_state("0", "verified")
    assert plan.state == "completed"
    plan.add_subtask("0", "d")
    assert all(t.state not in CLOSED for t in (plan, plan.get_task_by_id("0")))


@pytest.mark.exhaustive
@given(st.lists(st.tuples(events_of(ACTIONS), events_of(OBSERVATIONS)), max_size=6), st.data())
def test_a_state_comes_back(pairs: list[tuple[Action, Observation]], data: st.DataObject) -> None:
    state = State(RootTask("all"), inputs={"a": 1})
    for number, (action, observation) in enumerate(pairs):
        if data.draw(st.booleans()):
            state.updated_info = []
        action.id = observation.id = -1
        state.add(action, observation)
        assert (action.id, observation.id) == (2 * number, 2 * number + 1)
        assert observation.cause == (None if action.type == "null" else action.id)
    again = State.from_dict(json.loads(json.dumps(state.to_dict())))
    assert (again.history, again.updated_info, again.inputs) == (state.history, state.updated_info, {"a": 1})
    for wrong in ({}, {"history": 3}, None):
        with pytest.raises(ValueError, match="not the state"):
            State.from_dict(wrong)  # type: ignore[arg-type]


def test_the_intent_is_what_the_user_said_last() -> None:
    state = State()
    for text, source in (("first", "user"), ("mine", "agent"), ("second", "user"), ("more of mine", "agent")):
        said = MessageAction(text)
        said.source = source
        state.add(said, NullObservation(""))
    state.add(NullAction(), NullObservation(""))
    assert state.get_current_user_intent() == "second"


def test_agents_by_their_old_names() -> None:
    known = ["codeact", "study_repo_for_task", "swe_agent", "coder"]
    old = ["CodeActAgent", "StudyRepoForTaskAgent", "SWEAgent", "CoderAgent", "coder", "Nobody"]
    assert [hub_name(name, known) for name in old] == [
        "codeact",
        "study_repo_for_task",
        "swe_agent",
        "coder",
        "coder",
        "Nobody",
    ]
