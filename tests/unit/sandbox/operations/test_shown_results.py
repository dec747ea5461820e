"""What a model is shown of a result: the tool's own text at any size, cut once and in order, with ranges that are true (A1)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from agent.core.actions import Action
from agent.core.envelopes import text_of
from agent.core.registry import ActionRegistry
from agent.language import FunctionCallingLanguage
from agent.memory import WindowMemory
from agent.memory.exchange import exchange
from agent.model.response import Response, ToolCall
from agent.tools.sandbox_tools import SandboxAction, sandbox_tools
from sandbox import LocalEnvironment
from sandbox import operations as op
from sandbox.operations import OPERATIONS
from sandbox.text.excerpt import SHOWN_CHARS

SLACK = 300  # for the lines around a result


@pytest.fixture(scope="module")
def env() -> Iterator[LocalEnvironment]:
    with LocalEnvironment() as environment:
        yield environment


def shown(env: LocalEnvironment, operation: str, /, **args: Any) -> str:
    """The answer as it stands in the next prompt of an agent."""
    actions = sandbox_tools()
    action = next(a for a in actions if a.name == operation)
    envelope = env.execute_action(action, args)
    memory = WindowMemory()
    memory.add_memory({"role": "user", "content": "task"})
    call = ToolCall(operation, json.dumps(args), "1")
    for message in exchange(Response("", (call,)), envelope):
        memory.add_memory(message)
    prompt = FunctionCallingLanguage().construct_prompt(actions, env, [], memory)
    return str(next(m["content"] for m in prompt.messages if m["role"] == "tool"))


@pytest.mark.parametrize("count", [4000, 9000, 40_000])
def test_a1_output_of_any_size_is_shown_as_text_cut_once_in_order_with_the_exit_code(env: LocalEnvironment, count: int) -> None:
    text = shown(env, "run", command=f"seq 1 {count}; exit 3")
    assert len(text) <= SHOWN_CHARS + SLACK
    assert not text.startswith("{")
    numbers = [int(line) for line in text.splitlines() if line.isdigit()]
    assert numbers == sorted(set(numbers))
    assert (numbers[0], numbers[-1]) == (1, count)
    assert text.splitlines()[-1].startswith("[exit code 3]") or "[exit code 3]" in text
    assert len(re.findall("left out|cut", text)) == 1, text[-600:]


def test_a1_the_file_with_all_of_the_output_is_named_and_has_it(env: LocalEnvironment) -> None:
    text = shown(env, "run", command="seq 1 3000")
    said = re.search(r"([\d,]+) bytes are left out here\. All of the output is in (\S+): read or search", text)
    assert said
    whole = "".join(f"{n}\n" for n in range(1, 3001))
    assert env.read(said[2]).unwrap().content == whole
    kept = "".join(f"{line}\n" for line in text.splitlines() if line.isdigit())
    assert int(said[1].replace(",", "")) == pytest.approx(len(whole) - len(kept), abs=4)


def test_a1_short_output_is_shown_whole(env: LocalEnvironment) -> None:
    assert shown(env, "run", command="seq 1 3") == "1\n2\n3\n[exit code 0]"


def test_a1_a_read_that_is_cut_names_the_lines_that_are_shown(env: LocalEnvironment) -> None:
    env.write("long.txt", "".join(f"line {n}\n" for n in range(1, 20_001))).unwrap()
    begun, parts = 1, []
    for _ in range(2):
        text = shown(env, "read", path="long.txt", start_line=begun)
        said = re.search(r"\[lines (\d+)-(\d+) of 20000 are shown; read on with start_line=(\d+)\]", text)
        assert said
        assert len(text) <= SHOWN_CHARS + SLACK
        lines = text.splitlines()[:-1]
        assert (lines[0], lines[-1]) == (f"line {said[1]}", f"line {said[2]}")
        assert int(said[1]) == begun
        begun = int(said[3])
        parts += lines
    assert parts == [f"line {n}" for n in range(1, begun)]


def test_a1_a_read_of_bytes_that_is_cut_names_the_bytes_that_are_shown(env: LocalEnvironment) -> None:
    env.write("wide.txt", "äöü-" * 10_000).unwrap()
    text = shown(env, "read", path="wide.txt", offset=7, max_bytes=60_000)
    said = re.search(r"\[bytes 7-(\d+) of 70000 are shown; read on with offset=(\d+)\]", text)
    assert said
    assert said[1] == said[2]
    further = shown(env, "read", path="wide.txt", offset=int(said[2]), max_bytes=60_000)
    assert (text.split("\n")[0] + further.split("\n")[0])[:15_000] == ("äöü-" * 10_000)[4:15_004]


def test_a1_other_long_results_are_cut_as_their_own_text(env: LocalEnvironment) -> None:
    env.run("mkdir many && cd many && touch $(seq -f 'file-with-a-long-name-%05g' 1 2000)", session=None).unwrap()
    listed = shown(env, "list", path="many", max_entries=5000)
    assert re.search(r"\[the first (\d+) of 2,000 entries are shown", listed)
    assert "bytes)" not in listed  # a list of empty files does not repeat "(0 bytes)" (s17)
    env.write("hits.txt", "needle in a line\n" * 2000).unwrap()
    found = shown(env, "search", pattern="needle", max_matches=5000)
    assert re.search(r"\[the first \d+ of 2000 matches; narrow", found)
    for text in (listed, found):
        assert len(text) <= SHOWN_CHARS + SLACK
        assert not text.startswith("{")


def test_a1_logs_name_the_bytes_that_are_left_out(env: LocalEnvironment) -> None:
    ident = env.run("seq 1 4000").unwrap().id
    text = shown(env, "logs", id=ident)
    said = re.search(r"bytes (\d+)-(\d+) are left out here: see them with offset=(\d+)", text)
    assert said
    middle = env.logs(ident, offset=int(said[1]), max_bytes=int(said[2]) - int(said[1])).unwrap().content
    whole = re.sub(r"\n\[\.\.\. .*\.\.\.\]\n", lambda _: f"\n{middle}", text)
    assert [int(line) for line in whole.splitlines()[:-1]] == list(range(1, 4001))


def test_a1_progress_bars_do_not_use_up_the_room(env: LocalEnvironment) -> None:
    text = shown(env, "run", command=r"for i in $(seq 1 3000); do printf '\r%5d done' $i; done; echo; echo end")
    assert text == " 3000 done\nend\n[exit code 0]"


def test_a1_a_window_with_little_room_shows_less_of_the_same_text_and_not_json(env: LocalEnvironment) -> None:
    action = SandboxAction("run")
    envelope = env.execute_action(action, {"command": "seq 1 9000"})
    memory = WindowMemory(limit_tokens=2000)
    memory.add_memory({"role": "user", "content": "task"})
    for message in exchange(Response("", (ToolCall("run", "{}", "1"),)), envelope):
        memory.add_memory(message)
    text = action.show(memory.get_memories()[-1]["content"])
    assert len(text) < 3000
    numbers = [int(line) for line in text.splitlines() if line.isdigit()]
    assert numbers == sorted(set(numbers))
    assert text.endswith("[exit code 0]")


def test_a1_the_answer_of_a_tool_on_the_host_is_cut_once_and_a_tool_may_ask_for_more_room(env: LocalEnvironment) -> None:
    for metadata, most in (({}, SHOWN_CHARS), ({"shown_chars": 30_000}, 30_000)):
        action = Action("report", lambda: "word " * 20_000, "Report.", metadata=metadata)
        ActionRegistry([action])
        text = action.show(env.execute_action(action, {}))
        assert most - 100 < len(text) < most + 100
        assert len(re.findall("left out", text)) == 1


def test_a1_the_two_streams_are_not_doubled_in_json() -> None:
    envelope = {"tool_executed": True, "result": op.RunResult(output="a" * 50_000, stdout="a" * 50_000).model_dump()}
    assert len(text_of(envelope)) < SHOWN_CHARS + SLACK
    assert '"stdout"' not in text_of(envelope)


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_d_every_result_of_a_tool_has_its_own_words(operation: str) -> None:
    """No JSON after or instead of words (D: delete_nonempty, kill_ended, end_session)."""
    if operation in ("upload", "download"):
        return  # for the host's own code
    kind = OPERATIONS[operation].result
    own = {"to_text", "_words"} & {name for base in kind.__mro__[: kind.__mro__.index(op.Result)] for name in vars(base)}
    assert own
