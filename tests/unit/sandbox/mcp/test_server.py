"""The server with the official client in one process, over a sandbox without isolation: what a client sees of each call."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import jsonschema
import mcp_types as types
import pytest
from mcp.client import Client
from mcp.shared.exceptions import MCPError

from sandbox.envelope import Failure, Success
from sandbox.errors import SandboxError
from sandbox.limits import Limits
from sandbox.local import LocalEnvironment
from sandbox.mcp import answers, resources, session, stdio, tools
from sandbox.mcp.place import OwnSandbox
from sandbox.mcp.server import make_server
from sandbox.mcp.session import Session
from sandbox.mcp.tools import DEFAULT_TOOLS, chosen_tools
from sandbox.operations import ReadResult
from sandbox.pipe.watching import CancelToken

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)


@contextlib.asynccontextmanager
async def connected(
    *, asks: bool = False, names: tuple[str, ...] = (), mode: Any = "legacy", limits: Limits | None = None, **options: Any
) -> AsyncIterator[tuple[Client, OwnSandbox]]:
    """A client of a server whose sandbox is a process of this host."""
    place = OwnSandbox(lambda: LocalEnvironment(limits=limits))
    working, offered = Session(place, asks=asks), chosen_tools(names)
    try:
        async with Client(make_server(lambda _: working, lambda _: offered), mode=mode, **options) as client:
            yield client, place
    finally:
        await place.close()


async def call(client: Client, tool: str, **args: Any) -> tuple[str, Any]:
    """Call a tool; return the text and the structured content."""
    answer = await client.call_tool(tool, args)
    assert isinstance(answer.content[0], types.TextContent)
    jsonschema.validate(answer.structured_content, chosen_tools((tool,))[tool].definition.output_schema or {})
    assert answer.is_error is not answer.structured_content["tool_executed"]
    return answer.content[0].text, answer.structured_content


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(work())  # type: ignore[arg-type]


def test_calls_are_answered_with_the_text_that_models_read_and_the_envelope() -> None:
    async def work() -> None:
        async with connected() as (client, place):
            listed = (await client.list_tools()).tools
            assert [tool.name for tool in listed] == list(DEFAULT_TOOLS)
            assert place._starting is None, "the sandbox starts with the first call"
            text, data = await call(client, "run", command="echo out; echo err >&2; exit 3")
            assert text == "out\nerr\n[exit code 3]"
            assert (data["result"]["stdout"], data["result"]["exit_code"]) == ("out\n", 3)
            assert (await call(client, "run", command="cat; echo $?"))[0] == "0\n[exit code 0]", "an empty input, not an open one"
            assert (await call(client, "write", path="a.txt", content="äöü\n"))[0].startswith("[created a.txt")
            assert "HINT" in (await call(client, "read", path="none.txt"))[0]
            text, data = await call(client, "read", path=["x"])
            assert (data["code"], "schema" in data) == ("invalid_arguments", False)
            assert (await call(client, "run", command="id", user="root"))[1]["code"] == "invalid_arguments"
            # A name that is no valid Unicode, and an output that is none.
            await call(client, "run", command="touch $'\\xff'; printf '\\xfe'", argv=None)
            assert "�" in (await call(client, "list"))[0] or "?" in (await call(client, "list"))[0]
            with pytest.raises(MCPError, match="There is no tool"):
                await client.call_tool("delete", {"path": "a.txt"})

    run(work)


def test_a_long_command_goes_on_and_keeps_its_shell_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with connected() as (client, _):
            await call(client, "run", command="true", session=None)  # the sandbox has started
            monkeypatch.setattr(session, "ANSWER_SECONDS", 1.5)
            text, data = await call(client, "run", command="echo a; until [ -e go ]; do sleep 0.05; done; echo b")
            ident = data["result"]["id"]
            assert data["result"]["running"]
            assert f"still running with id {ident}" in text
            monkeypatch.setattr(session, "ANSWER_SECONDS", 60.0)
            text, data = await call(client, "run", command="echo c")
            assert (data["code"], f"wait_for(id={ident!r}, exit=true)" in text) == ("too_many_commands", True)
            assert (await call(client, "run", command="echo c", session=None))[0] == "c\n[exit code 0]"
            await call(client, "run", command="touch go", session=None)
            while not (await call(client, "wait_for", id=ident, exit=True, timeout_seconds=999))[1]["tool_executed"]:
                pass
            assert "b" in (await call(client, "logs", id=ident))[0]
            assert (await call(client, "run", command="echo d"))[0].startswith("d\n")
            both = await asyncio.gather(*(call(client, "run", command=f"sleep 0.2; echo {n}") for n in range(2)))
            assert [text.split("\n")[0] for text, _ in both] == ["0", "1"], "calls in one shell take turns"

    run(work)


def test_a_cancelled_call_leaves_nothing_running() -> None:
    async def work() -> None:
        async with connected() as (client, _):
            await call(client, "run", command="true")
            under_way = asyncio.create_task(client.call_tool("run", {"command": "touch begun; exec sleep 987.25"}))
            assert (await call(client, "wait_for", file="begun"))[1]["tool_executed"]
            under_way.cancel()
            with pytest.raises(asyncio.CancelledError):
                await under_way
            look = "grep -laz '^987[.]25$' /proc/[0-9]*/cmdline || echo none"
            for _ in range(100):
                left = (await call(client, "run", command=look, session=None))[0]
                if left.startswith("none"):
                    return
                await asyncio.sleep(0.05)
            pytest.fail(left)

    run(work)


def test_progress_has_the_last_line_of_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.mcp.server.PROGRESS_SECONDS", 0.1)

    async def work() -> None:
        seen: list[tuple[float, str | None]] = []

        async def progress(progress: float, total: float | None, message: str | None) -> None:
            seen.append((progress, message))

        async with connected() as (client, _):
            for seconds in (1, 4, 16):  # until the machine let the callback see it
                seen.clear()
                command = f"printf 'one\\n\\33[31mtwo\\33[0m\\n'; sleep {seconds}"
                await client.call_tool("run", {"command": command}, progress_callback=progress)
                if "two" in [message for _, message in seen]:
                    break
        assert "two" in [message for _, message in seen]
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)

    run(work)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_a_user_is_asked_before_changes(mode: str) -> None:
    async def work() -> None:
        asked: list[str] = []

        async def elicit(_: Any, params: Any) -> types.ElicitResult:
            asked.append(params.message)
            if "no" in params.message:
                return types.ElicitResult(action="decline")
            return types.ElicitResult(action="accept", content={"always": "forever" in params.message})

        async with connected(asks=True, mode=mode, elicitation_callback=elicit) as (client, _):
            assert (await call(client, "run", command="echo \u202eyes"))[1]["tool_executed"]
            assert asked == ["May run be carried out in the sandbox?\ncommand: echo <U+202E>yes"]
            text, data = await call(client, "write", path="no.txt", content="x")
            assert (data["code"], data["effects"]) == ("approval_refused", "none")
            assert (await call(client, "read", path="no.txt"))[1]["code"] == "path_not_found", "nothing was done, nobody was asked"
            await call(client, "run", command="echo forever")
            await call(client, "run", command="echo no more")
            assert len(asked) == 3
        async with connected(asks=True, mode=mode) as (client, _):
            text, data = await call(client, "run", command="echo")
            assert (data["code"], "cannot ask" in text) == ("approval_refused", True)

    run(work)


def test_files_are_resources_and_images_are_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "MOST_BYTES", 1000)

    async def work() -> None:
        async with connected(limits=Limits()) as (client, place):
            env = await place._ready()
            for path, data in (("x.png", PNG), ("fake.png", b"\x00\x01"), ("ä b.txt", "é".encode()), ("large", bytes(1001))):
                (await env.upload(data, path)).unwrap()
            answer = await client.call_tool("read", {"path": "x.png"})
            image = answer.content[1]
            assert isinstance(image, types.ImageContent)
            assert (image.mime_type, base64.b64decode(image.data)) == ("image/png", PNG)
            assert len((await client.call_tool("read", {"path": "fake.png"})).content) == 1
            (blob,) = (await client.read_resource("gamebox://files/x.png")).contents
            assert isinstance(blob, types.BlobResourceContents)
            assert (base64.b64decode(blob.blob), blob.mime_type) == (PNG, "image/png")
            (text,) = (await client.read_resource("gamebox://files/%C3%A4%20b.txt")).contents
            assert isinstance(text, types.TextResourceContents)
            assert (text.text, text.mime_type) == ("é", "text/plain")
            (folder,) = (await client.read_resource("gamebox://files/.")).contents
            assert "x.png" in getattr(folder, "text", "")
            (about,) = (await client.read_resource("gamebox://sandbox")).contents
            assert "sandbox" in getattr(about, "text", "")
            for uri, why in (
                ("gamebox://files/large", "larger than 1000 bytes"),
                ("gamebox://files/none", "none"),
                ("gamebox://files/../../../etc/passwd", "outside"),
                ("gamebox://files//etc/passwd", "outside"),
                ("file:///etc/passwd", "There is no resource"),
                ("gamebox://files/" + "a" * 20_000, "There is no resource"),
            ):
                with pytest.raises(MCPError, match=why):
                    await client.read_resource(uri)
            assert len((await client.list_resources()).resources) == 2
            assert len((await client.list_resource_templates()).resource_templates) == 1

    run(work)


def test_a_lost_sandbox_is_said_to_be_lost_and_the_next_call_has_another(tmp_path: Path) -> None:
    async def work() -> None:
        async with connected() as (client, place):
            await call(client, "write", path="a.txt", content="x")
            env = await place._ready()
            await env.close()
            text, data = await call(client, "read", path="a.txt")
            assert (data["code"], "next call starts a new sandbox" in text) == ("sandbox_closed", True)
            assert (await call(client, "read", path="a.txt"))[1]["code"] == "path_not_found"

    run(work)


def test_an_idle_sandbox_ends_and_one_at_work_does_not() -> None:
    async def work() -> None:
        place = OwnSandbox(LocalEnvironment)
        working, tools_ = Session(place), chosen_tools()
        ending = asyncio.create_task(stdio._end_idle(place, working, 0.3))

        def has_a_sandbox() -> bool:
            return place._starting is not None

        try:
            args = {"command": "touch a; sleep 1.5"}
            under_way = asyncio.create_task(working.carry_out(tools_["run"], args, CancelToken(), None))
            await asyncio.sleep(1)
            assert has_a_sandbox(), "a call is under way"
            assert (await under_way).ok
            for _ in range(600):
                await asyncio.sleep(0.05)
                if not has_a_sandbox():
                    break
            listed = await working.carry_out(tools_["read"], {"path": "a"}, CancelToken(), None)
            assert isinstance(listed, Failure)
            assert listed.code == "path_not_found", "the next call has another sandbox"
        finally:
            ending.cancel()
            await place.close()

    run(work)


def test_large_answers_are_cut_and_say_so() -> None:
    async def work() -> None:
        async with connected(names=("run", "read")) as (client, _):
            await call(client, "run", command="head -c 600000 /dev/zero | tr '\\0' x | fold -w 100 > big.txt")
            text, data = await call(client, "read", path="big.txt")
            assert len(str(data)) < 1.2 * answers.MOST_STRUCTURED_CHARS
            assert "left out" in data["result"]["content"]
            assert "read on with start_line=" in text
            text, data = await call(client, "run", command="cat big.txt")
            assert data["result"]["spill_path"] in text
            assert len(data["result"]["output"]) < 2 * tools.KEEP_OUTPUT_BYTES

    run(work)


def test_texts_that_are_no_unicode_can_be_sent() -> None:
    answer = answers.result_of(Success(ReadResult(path="a\udcff", content="\ud800")))
    assert '"path":"a?"' in answer.model_dump_json()
    assert getattr(answer.content[0], "text", "") == "?"


def test_tools_are_chosen_by_name() -> None:
    assert list(chosen_tools(("browse", "forward", "browse"))) == ["browse", "forward"]
    for names, why in ((("run", "upload"), "'upload'"), ((*DEFAULT_TOOLS, "browse"), "too many")):
        with pytest.raises(SandboxError, match=why):
            chosen_tools(names)
    for tool in chosen_tools().values():
        jsonschema.Draft202012Validator.check_schema(tool.definition.input_schema)
        jsonschema.Draft202012Validator.check_schema(tool.definition.output_schema or {})
    assert chosen_tools()["run"].definition.input_schema["properties"]["wait_seconds"]["default"] == tools.ANSWER_SECONDS
    assert "user" not in chosen_tools()["run"].definition.input_schema["properties"]


def test_a_port_is_forwarded() -> None:
    async def work() -> None:
        async with connected(names=("run", "forward")) as (client, _):
            text, data = await call(client, "forward", port=8123)
            assert data["result"]["url"].startswith("http://127.0.0.1:")
            assert data["result"]["url"] in text
            for wrong in ({"port": True}, {"port": 70_000}, {"port": "8"}, {}):
                assert (await call(client, "forward", **wrong))[1]["code"] == "invalid_arguments"

    run(work)
