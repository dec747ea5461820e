"""A memory shows less after a prompt was too long, and a resumed run shows the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from agent import CondensingMemory, Memory, RecallMemory, WindowMemory
from agent.memory.messages import tokens


def filled(memory: Memory, steps: int = 60, chars: int = 2000) -> Memory:
    memory.add_memory({"role": "user", "content": "the task"})
    for number in range(steps):
        call = {"id": str(number), "name": "look", "arguments": "{}"}
        memory.add_memory({"role": "assistant", "content": "", "tool_calls": [call]})
        memory.add_memory({"role": "tool", "content": f"{number} " + "x" * chars, "tool_call_id": str(number)})
    return memory


def shown(memory: Memory) -> int:
    return sum(map(tokens, memory.get_memories()))


@pytest.mark.parametrize(
    "memory",
    [Memory(), WindowMemory(), WindowMemory(limit_tokens=None), CondensingMemory(), RecallMemory(WindowMemory())],
    ids=["plain", "window", "unbounded window", "condensing", "recall over a window"],
)
def test_each_time_about_half_is_shown(memory: Memory) -> None:
    filled(memory)
    before = shown(memory)
    assert memory.make_room()
    once = shown(memory)
    assert once <= before * 0.6
    assert memory.make_room()
    assert shown(memory) <= once * 0.6
    kept = memory.get_memories()
    assert kept[0]["content"] == "the task"
    assert kept[-1]["content"].startswith("59 ")
    assert len(memory.items) == 121


@pytest.mark.parametrize("kind", [Memory, WindowMemory, CondensingMemory])
def test_it_ends_and_says_so(kind: type[Memory]) -> None:
    memory = filled(kind())
    assert sum(memory.make_room() for _ in range(50)) < 10
    assert not memory.make_room()


def test_the_oldest_results_are_shortened_first_and_no_message_is_left_out_for_that() -> None:
    memory = filled(Memory())
    assert memory.make_room()
    kept = memory.get_memories()
    assert len(kept) == len(memory.items)
    results = [message["content"] for message in kept if message["role"] == "tool"]
    short = ["characters are left out here" in result for result in results]
    assert short == sorted(short, reverse=True), "the oldest ones"
    assert 1 < sum(short) < len(short) - 1
    assert [result.split()[0] for result in results] == [str(number) for number in range(60)]


def test_then_the_oldest_exchanges_are_left_out_and_a_message_says_so() -> None:
    memory = filled(Memory(), chars=100)
    assert memory.make_room()
    first, notice, *rest = memory.get_memories()
    assert first["content"] == "the task"
    left_out = len(memory.items) - len(rest)
    assert (notice["role"], f"messages 2 to {left_out} " in notice["content"]) == ("user", True)
    assert rest == memory.items[left_out:]
    assert rest[0]["role"] == "assistant", "a call and its answer stay together"


@pytest.mark.parametrize("kind", [Memory, WindowMemory])
def test_the_beginning_stays_the_same_while_the_run_goes_on(kind: type[Memory]) -> None:
    memory = filled(kind())
    memory.make_room()
    before = memory.get_memories()
    memory.add_memory({"role": "assistant", "content": "more"})
    after = memory.get_memories()
    assert after == [*before, {"role": "assistant", "content": "more"}]
    assert memory.get_memories(1) == after[-1:]


def test_an_exchange_that_is_too_long_alone_is_shown_shortened() -> None:
    memory = filled(Memory(), steps=1, chars=100_000)
    assert memory.make_room()
    assert "characters are left out here" in memory.get_memories()[-1]["content"]
    assert len(memory.items[-1]["content"]) > 100_000
    task = Memory()
    task.add_memory({"role": "user", "content": "x" * 100_000})
    assert not task.make_room()


def test_a_memory_that_shows_something_else_says_so_and_is_left_alone() -> None:
    class Latest(Memory):
        def get_memories(self, limit: int | None = None) -> list[dict[str, Any]]:
            return self.items[-1:]

    memory = filled(Latest())
    assert not memory.make_room()
    assert memory.snapshot() is None


def test_a_summary_makes_room_where_the_memory_below_must() -> None:
    memory = filled(CondensingMemory(keep_last=1), steps=1, chars=100_000)
    before = shown(memory)
    assert memory.make_room()
    assert shown(memory) < before * 0.6


def test_a_window_that_became_smaller_says_what_it_leaves_out() -> None:
    memory = filled(WindowMemory())
    assert all(message in memory.items for message in memory.get_memories())
    memory.make_room()
    notice = memory.get_memories()[1]
    left_out = len(memory.items) + 1 - len(memory.get_memories()) + 1
    assert f"messages 2 to {left_out} " in notice["content"]


@pytest.mark.parametrize("kind", [Memory, WindowMemory, lambda: RecallMemory(WindowMemory()), RecallMemory])
def test_a_resumed_run_shows_the_same(kind: Callable[[], Memory]) -> None:
    memory = kind()
    filled(memory)
    assert memory.snapshot() is None
    memory.make_room()
    again = kind()
    again.items.extend(memory.items)
    again.restore(json.loads(json.dumps(memory.snapshot())))
    assert again.get_memories() == memory.get_memories()


@pytest.mark.parametrize(
    "state", [{}, [], 7, {"narrowed_tokens": "9"}, {"narrowed_tokens": 1}, {"narrowed_tokens": 5000, "more": 1}]
)
@pytest.mark.parametrize("kind", [WindowMemory, Memory])
def test_a_state_of_another_kind_is_refused(state: object, kind: type[Memory]) -> None:
    with pytest.raises(ValueError, match=r"no state|not the state"):
        kind().restore(state)


@pytest.mark.parametrize(
    "wrong", [{"first": -1}, {"first": 3}, {"rest": 99}, {"end": 99}, {"recent": 99}, {"most_tokens": -1}, {"end": True}]
)
def test_a_state_that_does_not_fit_the_messages_is_refused(wrong: dict[str, int]) -> None:
    memory = filled(Memory(), steps=5)
    state = {"first": 1, "rest": 2, "recent": 2, "end": 11, "most_tokens": 0}
    memory.restore(state)
    with pytest.raises(ValueError, match=r"no state|not the state"):
        memory.restore({**state, **wrong})
