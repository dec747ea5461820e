"""Tools of MCP servers in a sandbox, of good ones and of those that do harm."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp.types import JSONRPCRequest

from agent import Action, ActionRegistry, Goal, JsonLanguage, ScriptedModel
from agent.core.registry import lint
from agent.hub import AgentSpec, Hub, Setting, build
from agent.job.job import Job, agent_of
from agent.layers.risk import Risk, by_pattern
from agent.mcp import client as mcp_client
from agent.mcp.inbound import Inbound
from agent.mcp.messages import decoded, too_deep
from agent.mcp.results import shown_result
from agent.mcp.stdio import SandboxWire
from agent.mcp.tools import MAX_DESCRIPTION_CHARS, schema_of, tool_of
from agent.tools import finish_action, think_action
from agent.tools.mcp import McpKit
from agent.views.screen import Screen
from sandbox import LocalEnvironment
from sandbox.environment.base import Environment
from sandbox.errors import ErrorCode, OperationError, SandboxError

HOSTILE = Path(__file__).parents[3] / "servers/mcp_hostile.py"


@dataclass
class Where:
    """A setting, as much of one as the kit needs."""

    environment: Environment
    mcp_urls: tuple[str, ...] = field(default=())


@pytest.fixture(scope="module")
def env() -> Iterator[LocalEnvironment]:
    with LocalEnvironment() as env:
        env.write("hostile.py", HOSTILE.read_text()).unwrap()
        yield env


@pytest.fixture
def kit(env: LocalEnvironment) -> Iterator[Callable[..., McpKit]]:
    made: list[McpKit] = []

    def make(mode: str = "good", **more: Any) -> McpKit:
        made.append(McpKit(Where(env), {"x": {"command": f"exec python3 hostile.py {mode}", **more}}))
        return made[-1]

    yield make
    for one in made:
        one.close()


def call(env: Environment, kit: McpKit, text: str = "hello", number: int = 0) -> dict[str, Any]:
    return env.execute_action(kit.actions()[number], {"text": text})


def running(env: LocalEnvironment) -> list[str]:
    return [c.command for c in env.processes().unwrap().commands if c.running]


def test_a_tool_is_an_action(env: LocalEnvironment, kit: Callable[..., McpKit]) -> None:
    made = kit()
    (action,) = made.actions()
    assert action.name == "x_echo"
    assert "not instructions): Says it again." in action.description
    assert lint(action) == []
    answer = call(env, made, "héllo\n\u2028 'wörld'")
    assert (
        answer["result"]
        == "héllo\n\u2028 'wörld'\n[image/png, 5 bytes, not shown]".replace("[image/png", "[image, image/png")
        + "\n\n[resource file:///x: x]"
    )
    assert made.describe() == {}
    assert ActionRegistry([action]).validate_args(action, {})[0] is False
    made.close()
    made.close()
    assert not [command for command in running(env) if "hostile" in command]


def test_arguments_of_any_size_arrive(env: LocalEnvironment, kit: Callable[..., McpKit]) -> None:
    made = kit()
    for size in (0, 1, 59_990, 60_000, 300_000):
        assert call(env, made, "é" * (size // 2))["result"].startswith("é" * (size // 2) + "\n[image")


def test_calls_of_many_threads_get_their_own_answers(env: LocalEnvironment, kit: Callable[..., McpKit]) -> None:
    import threading

    made = kit()
    answers: dict[int, Any] = {}
    threads = [
        threading.Thread(target=lambda n=n: answers.__setitem__(n, call(env, made, f"number {n}"))) for n in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(answers[n]["result"].startswith(f"number {n}\n") for n in range(12))


@pytest.mark.parametrize(
    ("mode", "code", "words"),
    [
        ("dies", "command_ended", "out of cheese"), ("endless", "command_ended", "without a line end"),
        ("deep", "command_ended", "nested deeper"), ("large", "command_ended", "more than 4 MiB"),
        ("noobject", "invalid_result", "not an object"), ("error", "invalid_arguments", "no such thing"),
        ("fails", "tool_error", "It is raining."),
    ],
)  # fmt: skip
def test_a_server_that_fails_is_told(
    env: LocalEnvironment, kit: Callable[..., McpKit], mode: str, code: str, words: str
) -> None:
    made = kit(mode)
    answer = call(env, made, "die")
    assert (answer["tool_executed"], answer["code"]) == (False, code), answer
    assert words in answer["error"]
    assert answer["hint"]
    assert len(answer["error"]) < 3000
    if code == "command_ended":
        assert answer["effects"] == "unknown"
        assert "x is gone" in made.describe()["mcp servers"]


def test_a_server_that_died_is_started_anew_by_the_next_call(env: LocalEnvironment, kit: Callable[..., McpKit]) -> None:
    made = kit("dies")
    assert call(env, made, "die")["code"] == "command_ended"
    assert call(env, made, "again")["result"].startswith("again")
    assert made.describe() == {}


def test_a_slow_tool_is_given_up_and_the_server_lives(env: LocalEnvironment, kit: Callable[..., McpKit]) -> None:
    made = kit("slow", timeout_seconds=1)
    started = time.monotonic()
    answer = call(env, made, "wait")
    assert time.monotonic() - started < 10
    assert (answer["code"], answer["effects"]) == ("timeout", "unknown")
    assert made.describe() == {}


@pytest.mark.exhaustive
def test_a_server_that_asks_without_end_is_given_up_in_time(env: LocalEnvironment, kit: Callable[..., McpKit]) -> None:
    made = kit("pings", timeout_seconds=1)
    started = time.monotonic()
    assert call(env, made)["tool_executed"] is False
    assert time.monotonic() - started < 8


@pytest.mark.parametrize(("mode", "words"), [("wrongid", "for you"), ("noise", "hello")])
def test_what_is_no_answer_is_none(env: LocalEnvironment, kit: Callable[..., McpKit], mode: str, words: str) -> None:
    assert call(env, kit(mode))["result"] == words


def test_a_server_may_ask_whether_we_are_there_and_nothing_else(
    env: LocalEnvironment, kit: Callable[..., McpKit]
) -> None:
    pong, refused = json.loads(call(env, kit("asks"))["result"])
    assert pong["result"] == {}
    assert "sampling/createMessage" in refused["error"]["message"]


def test_a_tool_that_changed_is_not_called(env: LocalEnvironment, kit: Callable[..., McpKit]) -> None:
    made = kit("changing")
    assert call(env, made)["tool_executed"] is True
    answer = call(env, made)
    assert answer["code"] == "invalid_result"
    assert "not what it was at the start" in answer["error"]
    assert "keys" not in made.actions()[0].description


def test_a_tool_that_changed_while_the_run_rested_is_not_called(
    env: LocalEnvironment, kit: Callable[..., McpKit]
) -> None:
    first, again = kit(), kit()
    state = json.loads(json.dumps(first.snapshot()))
    again.restore(state)
    assert call(env, again)["tool_executed"] is True
    state["x"]["echo"] = "something else"
    again.restore(state)
    assert call(env, again)["code"] == "invalid_result"
    with pytest.raises(ValueError, match="not the state"):
        again.restore([1])


def test_strange_tools_are_left_out_or_made_harmless(env: LocalEnvironment, kit: Callable[..., McpKit]) -> None:
    made = kit("strange")
    by_name = {action.name: action for action in made.actions()}
    assert set(by_name) == {"x_echo", "x_pattern", "x_recursive", "x_root", "x_words"}
    assert len(made.problems) == 8
    words = by_name["x_words"].description
    assert len(words) < MAX_DESCRIPTION_CHARS + 200
    assert not set("\x1b\u202e\U000e0041\n") & set(words)
    assert "pattern" not in json.dumps(by_name["x_pattern"].parameters)
    registry = ActionRegistry(made.actions())
    assert registry.validate_args(by_name["x_recursive"], {"a": {"n": {"n": {}}}}) == (True, "ok")
    assert registry.validate_args(by_name["x_root"], {"b": 1}) == (True, "ok")


@pytest.mark.exhaustive
def test_many_tools_are_bounded(kit: Callable[..., McpKit]) -> None:
    assert len(kit("many").actions()) == 200
    assert len(kit("pages").actions()) == 1
    made = kit("many", tools=["echo3", "echo7", "nothing"])
    assert [action.name for action in made.actions()] == ["x_echo3", "x_echo7"]
    assert "x: it has no tool 'nothing'" in made.problems


@pytest.mark.parametrize(("mode", "words"), [("refuses", "no licence found"), ("old", "1999-01-01")])
def test_a_server_that_does_not_start_is_told(
    env: LocalEnvironment, kit: Callable[..., McpKit], mode: str, words: str
) -> None:
    with pytest.raises(SandboxError, match=words) as caught:
        kit(mode)
    assert caught.value.hint
    assert not [command for command in running(env) if "hostile" in command]


@pytest.mark.exhaustive
def test_pages_without_end_are_one_listing(
    env: LocalEnvironment, kit: Callable[..., McpKit], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    answer = mcp_client._answer

    async def slowly(method: str, wire: Any, awaited: Any, seconds: float, **more: Any) -> Any:
        if method == "tools/list":
            asked.append(seconds)
            await anyio.sleep(0.05)
        return await answer(method, wire, awaited, seconds, **more)

    monkeypatch.setattr(mcp_client, "_answer", slowly)
    assert len(kit("pages").actions()) == 1
    listings = asked
    assert listings == sorted(listings, reverse=True)
    assert listings[0] - listings[-1] > 0.05 * (len(listings) - 2)


def test_what_is_missing_is_told_to_user_and_model(env: LocalEnvironment) -> None:
    servers = {
        "good": {"command": "exec python3 hostile.py good", "tools": ["echo", "nothing"]},
        "odd": {"command": "exec python3 hostile.py strange"},
        "dead": {"command": "echo \'no\u202e licence\' >&2; exit 3", "optional": True},
    }
    spec = AgentSpec(
        name="user", description="Uses it.", goals=(Goal("Use it."),), actions=("mcp", "finish"),
        kit_options={"mcp": {"servers": servers}},
    )  # fmt: skip
    prompts: list[str] = []

    def brain(prompt: Any) -> Any:
        prompts.append(str(prompt.messages))
        return {"tool": "finish", "args": {"summary": "s"}}

    stream = io.StringIO()
    job = Job(
        task="go", repo=None, brain=brain, spec=spec, hub=Hub(), open_environment=lambda _: env,
        language=JsonLanguage(),
    )  # fmt: skip
    agent = agent_of(job, env, Screen(stream))
    assert agent.execute("go").ok
    [made] = getattr(agent.environment, "kits", [])
    made.close()
    told = stream.getvalue()
    for words in (
        "dead did not start, and its tools are missing",
        "no licence",
        "good: it has no tool 'nothing'",
        "odd: a tool is left out: the schema of",
    ):
        assert words in told
        assert words in prompts[0]
    assert not [action for action in agent.actions.get_actions() if action.name.startswith("dead")]


def test_an_optional_server_at_an_address_that_nobody_named_is_refused(env: LocalEnvironment) -> None:
    with pytest.raises(SandboxError, match="has not named it"):
        McpKit(Where(env), {"x": {"url": "http://127.0.0.1:1/mcp", "optional": True}})


def test_no_tool_takes_a_name_of_ours(env: LocalEnvironment) -> None:
    """Whatever server and tool are called, the rules do not take it for an operation of the sandbox."""
    env.write("for.py", HOSTILE.read_text().replace('"name": "echo"', '"name": "for"')).unwrap()
    made = McpKit(Where(env), {"wait": {"command": "exec python3 for.py"}})
    (action,) = made.actions()
    made.close()
    assert action.name.startswith("wait_for_")
    assert by_pattern(action, {"text": "x"}).risk is Risk.unknown
    assert by_pattern(Action("wait_for", lambda: None, "W."), {}).risk is Risk.unknown
    assert by_pattern(Action("read", lambda: None, "R."), {}).risk is Risk.unknown
    for ours in (think_action(), finish_action()):
        assert by_pattern(ours, {}).risk is Risk.low


@pytest.mark.parametrize("mode", ["strict", "ignores", "liar"])
def test_a_server_that_cannot_take_the_probe_for_the_newest_version_works(
    kit: Callable[..., McpKit], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One exits on a message that it does not know, one never answers it, one answers nonsense."""
    if mode == "strict":  # it is to see the probe before it is asked in another way
        monkeypatch.setattr("agent.mcp.client.PROBE_SECONDS", 60.0)
    assert [action.name for action in kit(mode).actions()] == ["x_echo"]


def test_a_silent_server_is_not_waited_for(
    env: LocalEnvironment, kit: Callable[..., McpKit], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.mcp.client.START_SECONDS", 1.0)
    with pytest.raises(SandboxError) as caught:
        kit("silent")
    assert caught.value.code is ErrorCode.timeout


def test_without_the_sdk_an_agent_says_what_to_install(env: LocalEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp.types.version", None)  # as where it is not installed
    with pytest.raises(SandboxError, match="package mcp") as caught:
        McpKit(Where(env), {"x": {"command": "true", "optional": True}})
    assert "gamebox[mcp]" in caught.value.hint


def test_agents_and_their_commands_do_not_import_the_sdk() -> None:
    """It takes a second of processor time, which runs without a server must not pay."""
    used = "import sys, agent, agent.cli.app, agent.tools.mcp, agent.job.options, agent.hub as h; h.default(()).names()"
    code = f"{used}; print([name for name in sys.modules if name.split('.')[0] in ('mcp', 'mcp_types', 'httpx2', 'anyio')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_program_that_is_not_there(env: LocalEnvironment) -> None:
    with pytest.raises(SandboxError, match=r"not found|127"):
        McpKit(Where(env), {"x": {"command": "no-such-program-at-all"}})


@pytest.mark.parametrize(
    "servers",
    [
        {}, [], {"X": {"command": "c"}}, {"x": {}}, {"x": {"command": "c", "url": "u"}}, {"x": {"command": "c", "more": 1}},
        {"x": {"command": "c", "timeout_seconds": 0}}, {"x": {"command": "c", "tools": "echo"}}, {"x": 3},
    ],
)  # fmt: skip
def test_declarations_that_are_none(env: LocalEnvironment, servers: Any) -> None:
    with pytest.raises(ValueError, match="server"):
        McpKit(Where(env), servers)


def test_an_address_must_be_named_by_the_user(env: LocalEnvironment) -> None:
    with pytest.raises(SandboxError, match="has not named it"):
        McpKit(Where(env), {"x": {"url": "http://127.0.0.1:1/mcp"}})
    with pytest.raises(SandboxError) as caught:
        McpKit(Where(env, ("http://127.0.0.1:1/mcp",)), {"x": {"url": "http://127.0.0.1:1/mcp"}})
    assert caught.value.code is ErrorCode.connection_failed


def test_an_agent_uses_it_by_name(env: LocalEnvironment) -> None:
    spec = AgentSpec(
        name="user", description="Uses it.", goals=(Goal("Use it."),), actions=("mcp", "finish"),
        kit_options={"mcp": {"servers": {"x": {"command": "python3 hostile.py good"}}}},
    )  # fmt: skip
    steps = [
        {"tool": "x_echo", "args": {"text": "hi"}},
        {"tool": "x_echo", "args": {}},
        {"tool": "finish", "args": {"summary": "s"}},
    ]
    agent = build(spec, Setting(environment=env, hub=Hub(), brain=ScriptedModel(steps)))
    run = agent.execute("go")
    assert run.ok
    assert [(s.envelope or {})["tool_executed"] for s in run.steps] == [True, False, True]
    for made in getattr(agent.environment, "kits", ()):
        made.close()


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.sampled_from(["#/$defs/a", "#", "object", "string"]),
    lambda v: (
        st.lists(v, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["$ref", "$defs", "a", "type", "properties", "items", "anyOf", "enum", "pattern", "required"]
            ),
            v,
            max_size=5,
        )
    ),
    max_leaves=25,
)


@settings(deadline=None)
@given(values, values)
def test_any_declaration_is_a_tool_or_refused(schema: Any, args: Any) -> None:
    """And what it becomes can be checked with, whatever the arguments."""
    try:
        tool = tool_of(
            {"name": "t", "inputSchema": {"type": "object", **schema} if isinstance(schema, dict) else schema}
        )
    except ValueError:
        return
    assert "$ref" not in json.dumps(strip_data(tool.parameters))
    action = Action("t", lambda **_: None, "T.", tool.parameters)
    ActionRegistry().validate_args(action, args)


def strip_data(node: Any) -> Any:
    """A schema without its data (enum and the like), where a reference is only a text."""
    if isinstance(node, Mapping):
        plain = {"enum", "const", "default", "examples", "required", "type"}
        return {key: strip_data(value) for key, value in node.items() if key not in plain}
    return [strip_data(child) for child in node if not isinstance(child, str)] if isinstance(node, list) else None


@given(values)
def test_any_result_is_shown(result: Any) -> None:
    shown = shown_result(result if isinstance(result, dict) else {"content": result, "structuredContent": result})
    json.dumps(shown)


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_any_bytes_are_a_message_or_none(data: bytes | str) -> None:
    assert decoded(data) is None or isinstance(decoded(data), dict)


def test_halves_of_surrogate_pairs_are_replaced() -> None:
    assert decoded(b'{"jsonrpc": "2.0", "\\uD800k": ["\\ud83d\\ude00", "x\\udc00"]}') == {
        "jsonrpc": "2.0",
        "?k": ["\U0001f600", "x?"],
    }


def test_depth() -> None:
    nested: Any = 1
    for _ in range(60):
        nested = [nested]
    assert not too_deep(nested, 61)
    assert too_deep(nested, 60)
    with pytest.raises(OperationError):
        decoded(b'{"a":' * 100_000)


def test_structured_results_are_shown_once() -> None:
    twice = {"content": [{"type": "text", "text": '{"a": 1}'}], "structuredContent": {"a": 1}}
    assert shown_result(twice) == {"structured": {"a": 1}}
    assert shown_result({**twice, "content": []}) == {"text": "", "structured": {"a": 1}}


def test_images_are_passed_on_to_models_that_see() -> None:
    png = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"\0" * 8 + (3).to_bytes(4, "big") + (2).to_bytes(4, "big")).decode()
    image = {"type": "image", "mimeType": "image/png", "data": png}
    false = {**image, "data": "aGVsbG8="}
    shown = shown_result({"content": [{"type": "text", "text": "look"}, image, false]})
    assert shown["images"] == [image]
    assert "3×2 pixels" in shown["text"]
    assert "5 bytes, not shown" in shown["text"]


def test_references_are_written_out() -> None:
    schema = {
        "type": "object", "properties": {"a": {"$ref": "#/$defs/A", "description": "An a."}},
        "$defs": {"A": {"type": "string", "enum": ["x"]}},
    }  # fmt: skip
    assert schema_of("t", schema)["properties"] == {"a": {"type": "string", "enum": ["x"], "description": "An a."}}


def test_no_part_of_a_schema_hides_words_from_the_user() -> None:
    hidden = "\x1b\u202e\U000e0041"
    leaf = {"enum": [f"x{hidden}"], "default": {f"y{hidden}": f"z{hidden}"}, "title": hidden}
    schema = schema_of("t", {"type": "object", "properties": {f"a{hidden}": leaf}})
    assert schema["properties"] == {"a": {"enum": ["x"], "default": {"y": "z"}, "title": ""}}


def test_all_declarations_together_are_bounded() -> None:
    inbound = Inbound()
    inbound.expect(JSONRPCRequest(jsonrpc="2.0", id=1, method="tools/list"))
    tools = [
        {"name": f"t{n}", "inputSchema": {"type": "object", "properties": {"a": {"enum": ["v" * 10_000]}}}} for n in range(200)
    ]
    answer = inbound.accept({"jsonrpc": "2.0", "id": 1, "result": {"tools": tools}})
    assert answer is not None
    assert len(answer.message.model_dump_json()) <= 420_000
    assert len(inbound.problems) > 150


def test_no_declaration_makes_checking_long_or_impossible() -> None:
    """No number can be divided by every other, and unequal things are found by comparing each with each."""
    rules = {"n": {"type": "number", "multipleOf": 0.5}, "a": {"type": "array", "uniqueItems": True}}
    schema = schema_of("t", {"type": "object", "properties": {**rules, "multipleOf": {"type": "string"}}})
    assert schema["properties"] == {"n": {"type": "number"}, "a": {"type": "array"}, "multipleOf": {"type": "string"}}
    action = Action("t", lambda **_: None, "T.", schema)
    arguments = {"n": 10**400, "a": [{"k": number} for number in range(3000)]}
    assert ActionRegistry().validate_args(action, arguments) == (True, "ok")


def test_the_wire_needs_no_terminal_and_keeps_every_byte(env: LocalEnvironment) -> None:
    """What the client builds on: raw standard streams of a running command, apart, in both directions."""
    got: list[Any] = []
    wire = SandboxWire(env, "while read -r line; do echo log >&2; printf '%s\\n' \"$line\"; done")
    wire.open(got.append)
    for text in ('{"jsonrpc":"2.0","method":"a\\u0003\\u0004\\u001b"}', '{"jsonrpc":"2.0","method":"\\r\\t \\\\"}'):
        wire.tell(json.loads(text))
    deadline = time.monotonic() + 120
    while len(got) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    wire.close()
    assert [message["method"] for message in got] == ["a\x03\x04\x1b", "\r\t \\"]
    assert wire.ended
