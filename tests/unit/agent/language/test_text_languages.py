"""The languages of tags and of fenced commands: whatever a model writes is read as it was meant, or refused with words."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import Action, AgentLanguage, Environment, FencedLanguage, Goal, LanguageError, Memory, Response, TagLanguage
from agent.language.fences import closings, fences
from agent.memory.exchange import exchange
from agent.tools import standard_registry
from agent.tools.message import MessageKit


class Nowhere:
    environment, ask_user, spec, kits = Environment(), None, None, ()


def action(
    name: str, required: Mapping[str, str], optional: Mapping[str, str] | None = None, *, ends: bool = False
) -> Action:
    properties = {key: {"type": kind} for key, kind in {**required, **(optional or {})}.items()}
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return Action(name, lambda **_: 1, f"Does {name}.", schema, ends)


TEXTS = {"start": "integer", "end": "integer", "text": "string"}
OWN = [
    *(a for a in standard_registry().get_actions() if a.name != "edit"),
    action("ipython", {"code": "string"}),
    action("change", TEXTS),
    action("swap", {"path": "string", "old_text": "string", "new_text": "string"}),
    action("go", {"line": "integer"}, {"path": "string"}),
    action("delegate", {"agent": "string", "inputs": "object"}),
    action("up", {}),
]
TAGS, FENCED = TagLanguage(actions=OWN), FencedLanguage(OWN)
TALKING = TagLanguage(actions=[*OWN, *MessageKit(Nowhere()).actions()])
LANGUAGES: list[AgentLanguage] = [TAGS, FENCED, TALKING, TagLanguage(), FencedLanguage()]
PIECES = st.sampled_from(
    ["<execute_bash>", "</execute_bash>", "<execute_write>", "<path>", "</path>", "<content>", "</content>", "<finish/>",
     "<a ", '"', "'", "=", ">", "/>", "\n", "```", "```python\n", "~~~~", "`", "ls", "run ", "change 1:2\n", "end_of_change", "{",
     "}", " ", "\x00", "\u2028", "\ud800", "\r\n", "write 'a'\n", "end_of_write\n", "exit", "&lt;"]
)  # fmt: skip
HOSTILE = st.text() | st.lists(PIECES, max_size=30).map("".join)


def read(language: AgentLanguage, text: Any) -> tuple[Any, Any]:
    found = language.parse_response(text)
    return found["tool"], found["args"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("language", LANGUAGES)
@given(text=HOSTILE, cut=st.booleans())
def test_any_text_is_read_or_refused_and_the_same_each_time(language: AgentLanguage, text: str, cut: bool) -> None:
    try:
        first = language.parse_response(Response(text, cut=cut))
    except LanguageError as error:
        assert error.message.endswith(".")  # noqa: PT017 - either outcome is right, and has a form
        with pytest.raises(LanguageError):
            language.parse_response(Response(text, cut=cut))
        return
    assert isinstance(first["tool"], str)
    assert isinstance(first["args"], dict)
    json.dumps(first, ensure_ascii=False, allow_nan=False).encode()
    assert first == language.parse_response(Response(text, cut=cut))


@given(text=HOSTILE)
def test_nothing_within_a_tag_is_lost(text: str) -> None:
    """What stands between a tag and the first that closes it is the argument, to the last character."""
    if "</execute_write>" in text or "</content>" in text or "\ud800" in text:
        return
    reply = f"<execute_write><path>a</path><content>\n{text}</content></execute_write>"
    assert read(TAGS, reply) == ("write", {"path": "a", "content": text})


@given(text=HOSTILE)
def test_nothing_before_a_marker_is_lost(text: str) -> None:
    """A text of several lines is the argument whatever blocks are in it; what follows its marker is refused."""
    if "end_of_change" in text or "\ud800" in text:
        return
    lines = text if not text or text.endswith("\n") else f"{text}\n"
    assert read(FENCED, f"I see.\n```\nchange 3:5\n{lines}end_of_change\n```") == (
        "change",
        {"start": 3, "end": 5, "text": lines},
    )


LINES = st.sampled_from(["```", "```py", "````", "~~~", "ls", "cat <<E", "E", "", "I look.", "`x`", "run pwd"])


@given(st.lists(LINES, max_size=12).map("\n".join))
def test_a_command_is_run_whole_or_not_at_all(reply: str) -> None:
    """What is run is all that stands between the first line of marks and the last one, which may be missing."""
    try:
        tool, args = read(FENCED, reply)
    except LanguageError:
        return
    found = fences(reply)
    end = found[-1].start if found[1:] and found[-1].closes(found[0]) else len(reply)
    assert tool == "run"
    assert args["command"] == reply[found[0].end : end].strip("\n").removeprefix("run ")


SIMPLE = (
    st.text("abcdef .-_/*", min_size=1, max_size=20).map(str.strip).filter(lambda t: bool(t) and not t.startswith("-"))
)
CALLS = st.one_of(
    st.fixed_dictionaries({"command": SIMPLE}).map(lambda a: ("run", a)),
    st.fixed_dictionaries({"command": SIMPLE, "background": st.booleans()}).map(lambda a: ("run", a)),
    st.fixed_dictionaries({"code": st.text("abc \n()", min_size=1).map(lambda t: "x" + t.strip())}).map(
        lambda a: ("ipython", a)
    ),
    st.fixed_dictionaries({"path": SIMPLE, "content": st.text("ab<>\"'`\n ", max_size=60)}).map(lambda a: ("write", a)),
    st.fixed_dictionaries({"path": SIMPLE, "start_line": st.integers(1, 9)}).map(lambda a: ("read", a)),
    st.fixed_dictionaries(
        {"start": st.integers(1, 99), "end": st.integers(1, 99), "text": st.text("ab \n", max_size=40)}
    ).map(lambda a: ("change", a)),
    st.fixed_dictionaries({"path": SIMPLE, "old_text": st.text("ab\n", min_size=1), "new_text": st.text("ab\n")}).map(
        lambda a: ("swap", a)
    ),
    st.fixed_dictionaries({"line": st.integers(1, 10**9)}).map(lambda a: ("go", a)),
    st.fixed_dictionaries({"agent": SIMPLE, "inputs": st.dictionaries(st.text("ab", min_size=1), SIMPLE)}).map(
        lambda a: ("delegate", a)
    ),
    st.fixed_dictionaries({"summary": SIMPLE}).map(lambda a: ("finish", a)),
    st.just(("up", dict[str, Any]())),
)


@pytest.mark.parametrize("language", [TAGS, FENCED])
@given(call=CALLS)
def test_what_the_prompt_shows_of_a_call_is_read_as_that_call(
    language: AgentLanguage, call: tuple[str, dict[str, Any]]
) -> None:
    """The conversation is told in the form in which the model is to write: what it copies from there must mean the same."""
    name, args = call
    if name == "change" and args["text"] and not args["text"].endswith("\n"):
        args = {**args, "text": args["text"] + "\n"}  # lines end, in a language of lines
    if name == "write" and language is FENCED and args["content"] and not args["content"].endswith("\n"):
        args = {**args, "content": args["content"] + "\n"}
    shown = language.call_text(name, json.dumps(args))
    assert read(language, f"I do that.\n{shown}") == (name, args)


@pytest.mark.exhaustive
@pytest.mark.parametrize("language", [TAGS, FENCED])
@pytest.mark.parametrize(
    "piece",
    ["`", "``` ", "```a\n", "````\n", "~~~\n", "<execute_bash>", "<execute_bash", '<execute_x a="', "<execute_x a='",
     "</execute_bash>", "<execute_bash a=b", "<execute_write><path>", "</path> ", " ", "\n", "a='", "```\n<execute_bash>",
     "`<execute_bash>", "change 1:2\n", "```\nchange 1:2\n", "end_of_change ", '"', "<<", "\r"],
)  # fmt: skip
def test_long_replies_are_read_in_linear_time(language: AgentLanguage, piece: str) -> None:
    text = piece * (100_000 // len(piece))
    started = time.process_time()
    for reply in (
        text,
        f"<execute_bash>{text}",
        f"<execute_write>{text}",
        f"```\nchange 1:2{text}",
        f"```\nwrite {text}",
    ):
        try:
            language.parse_response(reply)
        except LanguageError:
            pass
    assert time.process_time() - started < 5  # a quadratic reader takes minutes


def test_the_first_complete_tag_wins_whatever_it_is() -> None:
    reply = "First <execute_ipython>1</execute_ipython> then <execute_bash>ls</execute_bash> <finish>x</finish>"
    found = TAGS.parse_response(reply)
    assert (found["tool"], found["args"]) == ("ipython", {"code": "1"})
    assert [n["code"] for n in found["notices"]] == ["too_many_actions"]


def test_tags_in_other_things_are_text() -> None:
    fenced = "```\n<execute_bash>rm -rf /</execute_bash>\n```\n"
    assert read(TAGS, f"{fenced}<execute_bash>ls</execute_bash>") == ("run", {"command": "ls"})
    assert TAGS.parse_response(f"{fenced}<execute_bash>ls</execute_bash>")["notices"][0]["code"] == "tag_in_fence"
    assert read(TAGS, "I use `<execute_bash>` now: <finish>ok</finish>") == ("finish", {"summary": "ok"})
    inner = "cat <<'E'\n```\n<finish>no</finish>\n```\nE"
    assert read(TAGS, f"<execute_bash>\n{inner}\n</execute_bash>") == ("run", {"command": inner})
    assert read(TAGS, '<execute_bash>grep "<execute_bash>" a</execute_bash>') == (
        "run",
        {"command": 'grep "<execute_bash>" a'},
    )
    with pytest.raises(LanguageError, match="fenced block"):
        TAGS.parse_response(fenced)


def test_a_fence_that_nothing_closes_hides_nothing() -> None:
    assert read(TAGS, "```python\nx\n<execute_bash>ls</execute_bash>") == ("run", {"command": "ls"})


def test_the_last_tag_may_be_open_but_not_cut() -> None:
    assert read(TAGS, "Now <execute_bash>ls -l\n") == ("run", {"command": "ls -l"})
    with pytest.raises(LanguageError, match="cut off"):
        TAGS.parse_response(Response("Now <execute_bash>rm -rf ./bui", cut=True))
    with pytest.raises(LanguageError, match="not closed"):
        TAGS.parse_response("<execute_write><path>a</path><content>use <execute_bash>rm -rf x</execute_bash> to")


def test_attributes_are_what_the_schema_wants() -> None:
    reply = '<execute_bash timeout_seconds="5" background=true session=null cwd=\'a "b"\'>\nls\n</execute_bash>'
    assert read(TAGS, reply)[1] == {
        "timeout_seconds": 5,
        "background": True,
        "session": None,
        "cwd": 'a "b"',
        "command": "ls",
    }
    assert read(TAGS, "<execute_read start_line=x>007</execute_read>")[1] == {"path": "007", "start_line": "x"}
    assert read(TAGS, '<execute_read path="a &amp;&quot;.py"/>')[1] == {"path": 'a &".py'}


def test_unknown_tags_are_told_by_the_loop_and_other_markup_is_text() -> None:
    assert read(TAGS, "<execute_fly>x</execute_fly>") == ("fly", {})
    with pytest.raises(LanguageError) as caught:
        TAGS.parse_response("<b>bold</b> and List<int>")
    assert "<execute_bash>" in caught.value.hint
    with pytest.raises(LanguageError, match="belongs to no argument"):
        TAGS.parse_response("<execute_swap><path>a</path>loose</execute_swap>")


def test_words_without_a_tag_are_said_to_the_user_where_that_can_be_done() -> None:
    assert read(TALKING, " Which of the two? ") == ("message", {"content": "Which of the two?"})
    with pytest.raises(LanguageError, match="contains no tool tag"):
        TAGS.parse_response("Which of the two?")
    for language in (TAGS, TALKING, FENCED):
        with pytest.raises(LanguageError, match="empty"):
            language.parse_response(" \n")


def test_exit_ends_the_run() -> None:
    assert read(TAGS, "All done. <execute_bash> exit </execute_bash>") == ("finish", {"summary": "All done."})
    assert read(FENCED, "All done.\n```\nexit\n```") == ("finish", {"summary": "All done."})


def test_names_of_tags_can_be_chosen() -> None:
    language = TagLanguage(tags={"shell": "run"}, actions=OWN)
    assert read(language, "<shell>ls</shell>") == ("run", {"command": "ls"})
    with pytest.raises(ValueError, match="not a valid tag name"):
        TagLanguage(tags={"a b": "run"})


def test_one_block_with_one_command() -> None:
    assert read(FENCED, "Look.\n```bash\nls -l | wc\n```\nThen I see.") == ("run", {"command": "ls -l | wc"})
    assert read(FENCED, "```\nread 'my file.py' 3:9\n```") == (
        "read",
        {"path": "my file.py", "start_line": 3, "end_line": 9},
    )
    assert read(FENCED, "```\nipython\n  x = 1\n  x\n```") == ("ipython", {"code": "  x = 1\n  x"})
    assert read(FENCED, "```\nfinish I fixed it.\nTests pass.\n```")[1] == {"summary": "I fixed it.\nTests pass."}
    for reply, why in {
        "```\nls\n```\n```\npwd\n```": "several",
        "no block": "no fenced block",
        "```\n\n```": "empty",
        "```\nread a\nread b\n```": "takes one line",
        "```\nchange 1:2\nx\n```": "does not end",
        "```\nchange 1:2\nx\nend_of_change\nls\n```": "follows end_of_change",
        "```\nread 'a\n```": "quote",
        "```\ngo 1 a b c\n```": "at most 2",
        "```python\nimport os\n```": "marked as python",
        "```\nswap a b c\n```": "JSON",
        "```\nls\n```python\nx": "is not closed",
    }.items():
        with pytest.raises(LanguageError, match=why):
            FENCED.parse_response(reply)


def test_blocks_within_the_block() -> None:
    """A here-document with a block in it is never run by half."""
    inner = "cat >a.md <<'E'\n```python\nx = 1\n```\nE"
    assert read(FENCED, f"```bash\n{inner}\n```") == ("run", {"command": inner})
    bare = "cat >a.md <<'E'\n```\nx = 1\n```\nE"
    assert read(FENCED, f"````\n{bare}\n````") == ("run", {"command": bare})
    with pytest.raises(LanguageError, match="several"):
        FENCED.parse_response(f"```\n{bare}\n```")


def test_a_block_may_be_open_but_not_cut() -> None:
    assert read(FENCED, "```\nls -l") == ("run", {"command": "ls -l"})
    with pytest.raises(LanguageError, match="cut off"):
        FENCED.parse_response(Response("```\nrm -rf ./bui", cut=True))


def test_without_run_an_unknown_word_names_what_there_is() -> None:
    with pytest.raises(LanguageError) as caught:
        FencedLanguage([a for a in OWN if a.name in ("go", "up")]).parse_response("```\nfly 3\n```")
    assert caught.value.hint == "Use one of: go, up."


@given(
    st.lists(st.sampled_from(["```\n", "````\n", "~~~\n", "```py\n", "x\n", "`\n", "```a`\n"]), max_size=40).map(
        "".join
    )
)
def test_a_block_is_closed_by_the_first_line_that_can(text: str) -> None:
    found = fences(text)
    first = [
        next((m for m in range(n + 1, len(found)) if found[m].closes(fence)), None) for n, fence in enumerate(found)
    ]
    assert closings(found) == first


class Described(Environment):
    def describe(self) -> dict[str, str]:
        return {"open file": "a.py"}


@pytest.mark.parametrize("language", [TagLanguage(), FencedLanguage(), TAGS, FENCED])
def test_prompts_tell_everything_in_the_form_of_the_language(language: AgentLanguage) -> None:
    memory = Memory()
    memory.add_memory({"role": "user", "content": "task"})
    ran = {"tool_executed": True, "result": {"id": "c1", "exit_code": 3, "output": "boom\n"}, "notices": []}
    reply = "Look.\n<execute_bash>ls</execute_bash>" if isinstance(language, TagLanguage) else "Look.\n```\nls\n```"
    for said in (reply, {"thought": "Again.", "tool": "run", "args": {"command": "ls"}}):
        for message in exchange(said, ran):
            memory.add_memory(message)
    prompts = [
        language.construct_prompt(OWN[::order], Described(), [Goal(1, "g", "Goal text.")], memory) for order in (1, -1)
    ]
    assert str(prompts[0]) == str(prompts[1])
    messages = prompts[0].messages
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user", "assistant", "user", "user"]
    assert messages[2]["content"] == reply
    assert messages[3]["content"] == messages[5]["content"] == "Result of run:\nboom\n[exit code 3]"
    assert read(language, messages[4]["content"]) == ("run", {"command": "ls"})
    assert messages[-1]["content"] == "# Environment now\n\n## open file\na.py"
    for part in ("Goal text.", "Does swap.", "# Reply"):
        assert part in messages[0]["content"]
