"""A window is bounded in tokens: whatever is said and answered fits, and what is shown follows from the messages alone."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent import Budget, Goal
from agent.hub import AgentSpec, Hub, Setting, build
from agent.memory import CondensingMemory, Memory, WindowMemory
from agent.memory.messages import fitted, original, text_of_message, tokens
from sandbox.local import LocalEnvironment

Message = dict[str, Any]
LIMIT = 2000


def user(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


def exchange(text: str, result: Any, answers: int = 1, as_reply: bool = False) -> list[Message]:
    calls = [{"id": f"i{n}", "name": "run", "arguments": json.dumps({"command": text}, ensure_ascii=False)} for n in range(answers)]
    decision = {"role": "assistant", "content": text} if as_reply else {"role": "assistant", "content": "", "tool_calls": calls}
    content = {"tool_executed": True, "result": result}
    return [decision, *({"role": "tool", "content": content, "tool_call_id": call["id"]} for call in calls)]


# Long texts are written short: hypothesis need not find each of their characters.
texts = st.builds(lambda text, times: text * times, st.text(min_size=1, max_size=8), st.sampled_from([1, 40, 700, 9000]))
results = st.one_of(
    texts,
    st.builds(lambda text: {"stdout": text, "exit_code": 0}, texts),
    st.builds(lambda n: list(range(n)), st.integers(0, 9000)),
)
blocks = st.one_of(st.builds(user, texts), st.builds(exchange, texts, results, st.integers(1, 3), st.booleans()))
conversations = st.builds(lambda task, rest: [user(task), *rest], texts, st.lists(blocks, max_size=25))


@pytest.mark.exhaustive
@settings(deadline=None, max_examples=80)
@given(conversations, st.integers(0, 3), st.sampled_from([2, 9, 200]))
def test_what_is_shown_fits_and_nothing_is_lost_or_parted(conversation: list[list[Message]], keep_first: int, limit: int) -> None:
    memory = WindowMemory(limit, keep_first, limit_tokens=LIMIT)
    added: list[Message] = []
    for block in conversation:
        for message in block:
            memory.add_memory(message)
            added.append(json.loads(json.dumps(message)))
        shown = memory.get_memories()
        assert sum(map(tokens, shown)) <= LIMIT
        assert memory.items == added
        where = [next(i for i, item in enumerate(memory.items) if item is original(message)) for message in shown]
        assert where == sorted(set(where))
        assert where[-len(block) :] == list(range(len(added) - len(block), len(added)))  # the latest exchange
        assert not keep_first or where[0] == 0  # the task
        for index, place in enumerate(where):
            if added[place]["role"] == "tool":
                assert where[index - 1] == place - 1, "a call and its answer were parted"
            if added[place + 1 : place + 2] and added[place + 1]["role"] == "tool":
                assert where[index + 1] == place + 1, "a call was left without its answer"
        for message in shown:
            for call in message.get("tool_calls", ()):
                assert isinstance(json.loads(call["arguments"]), dict)
    again = WindowMemory(limit, keep_first, limit_tokens=LIMIT)
    again.items.extend(memory.items)  # as a run that is resumed does
    assert again.get_memories() == memory.get_memories()


@settings(deadline=None)
@given(texts, results, st.integers(500, 3000))
def test_a_message_is_shown_shorter_only_where_it_must_be_and_says_so(text: str, result: Any, most: int) -> None:
    for message in exchange(text, result):
        before = json.dumps(message)
        shown = fitted(message, most)
        assert json.dumps(message) == before
        assert tokens(shown) <= most
        assert (shown is message) == (tokens(message) <= most)
        if shown is not message:
            says_so = re.search(r"characters (cut|left out|are left out here)", text_of_message(shown))
            assert says_so or text_of_message(shown) == text_of_message(message)


def test_below_the_limit_and_without_one_the_messages_themselves_are_shown() -> None:
    large = [message for _ in range(20) for message in exchange("x", "y" * 4000)]
    for memory in (WindowMemory(), WindowMemory(limit_tokens=None), Memory()):
        for message in large:
            memory.add_memory(message)
        assert all(a is b for a, b in zip(memory.get_memories(), memory.items, strict=True))


def test_it_moves_in_steps() -> None:
    memory = WindowMemory(limit_tokens=LIMIT)
    begins = []
    for message in [*user("task"), *(m for _ in range(100) for m in exchange("x", "y" * 300))]:
        memory.add_memory(message)
        begins.append(memory.items.index(original(memory.get_memories()[1])) if len(memory.items) > 1 else 0)
    assert len(set(map(str, begins))) <= 20


def test_condensing_over_it_knows_a_message_that_is_shown_shorter() -> None:
    memory = CondensingMemory(WindowMemory(limit_tokens=LIMIT), threshold_tokens=1200, summariser=lambda _: "Done: much.")
    for message in [*user("task"), *(m for _ in range(12) for m in exchange("x", "y" * 9000))]:
        memory.add_memory(message)
    shown = memory.get_memories()
    assert memory.condensations
    assert shown[0] is memory.items[0]
    assert [original(message) for message in shown[-2:]] == memory.items[-2:]
    assert memory.shown_tokens == sum(map(tokens, shown)) <= 1200


@pytest.mark.parametrize("limit_tokens", [0, -1, 1999])
def test_a_limit_that_holds_nothing_is_refused(limit_tokens: int) -> None:
    with pytest.raises(ValueError, match="limit_tokens must be at least 2000"):
        WindowMemory(limit_tokens=limit_tokens)


@pytest.mark.exhaustive
@pytest.mark.parametrize("language", ["function_calling", "tags"])
def test_forty_five_large_steps_stay_below_the_limit(language: str) -> None:
    """An agent as the built-in ones are, whose commands print 48 kB each: before, its last prompt had two million bytes."""
    sizes: list[int] = []

    def brain(prompt: Any) -> Any:
        sizes.append(len(json.dumps(prompt.messages, ensure_ascii=False)))
        assert "Count." in str(prompt.messages[1])
        if len(sizes) > 45:
            return {"tool": "finish", "args": {"summary": "counted"}}
        return {"tool": "run", "args": {"command": f"seq {len(sizes)}000000 {len(sizes)}006000"}}

    spec = AgentSpec(name="counter", description="Counts.", goals=(Goal("Count."),), actions=("run", "finish"), language=language)
    with LocalEnvironment() as env:
        made = build(spec, Setting(environment=env, hub=Hub(), brain=brain, budget=Budget(max_iterations=46)))
        run = made.execute("Count.")
    assert run.ok, run.reason
    assert sum(len(json.dumps(message)) for message in run.memory.items) > 2_000_000
    assert max(sizes) < 4 * 100_000 + 20_000  # the limit, and what stands around the memory
