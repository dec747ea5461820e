"""``gamebox mcp`` as clients start it: real standard streams, a real container, and ends of every kind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mcp.client import Client, stdio
from mcp.client.stdio import StdioServerParameters, stdio_client

from tests.integration.observing import eventually
from tests.integration.own_engine import IMAGE, OwnEngine

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]
GAMEBOX = str(Path(sys.executable).with_name("gamebox"))
OPTIONS = ["mcp", "--image", IMAGE, "--memory", "64m"]
# A client that has called a tool, says which process its server is, and goes on until it is ended.
CLIENT = f"""
import asyncio, sys
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

async def work():
    server = StdioServerParameters(command={GAMEBOX!r}, args={OPTIONS!r}, env=dict(__import__("os").environ))
    async with Client(stdio_client(server), mode="legacy") as client:
        await client.call_tool("run", {{"command": "sleep 1000", "background": True}})
        children = open("/proc/self/task/%d/children" % __import__("os").getpid()).read().split()
        print(*children, flush=True)
        await client.call_tool("run", {{"command": "sleep 1000"}})

asyncio.run(work())
"""


def test_a_workspace_is_copied_in_and_its_changes_are_written_at_the_end(
    tmp_path: Path, engine: OwnEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdio, "PROCESS_TERMINATION_TIMEOUT", 60.0)  # after that, the client kills the server
    work, patch = tmp_path / "work", tmp_path / "changes.patch"
    work.mkdir()
    (work / "a.txt").write_text("one\n")
    server = StdioServerParameters(
        command=GAMEBOX, args=[*OPTIONS, "--workspace", str(work), "--patch", str(patch)], env=dict(os.environ)
    )

    async def main() -> None:
        async with Client(stdio_client(server)) as client:
            edited = await client.call_tool("edit", {"path": "a.txt", "old_text": "one", "new_text": "two"})
            assert not edited.is_error, edited
            ran = await client.call_tool("run", {"command": "cat a.txt; echo stray"})
            assert getattr(ran.content[0], "text", "").startswith("two\nstray\n[exit code 0]")

    asyncio.run(main())
    assert (work / "a.txt").read_text() == "one\n"
    assert eventually(patch.exists)
    assert "+two" in patch.read_text()
    assert engine.nothing_is_left()


def test_nothing_is_left_when_one_end_is_killed(engine: OwnEngine) -> None:
    with contextlib.ExitStack() as stack:
        begun = [
            stack.enter_context(
                subprocess.Popen([sys.executable, "-c", CLIENT], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            )
            for _ in range(3)
        ]
        for each in begun:
            stack.callback(each.kill)
        servers = [int(str(each.stdout and each.stdout.readline())) for each in begun]
        os.kill(begun[0].pid, signal.SIGKILL)
        os.kill(servers[1], signal.SIGKILL)
        os.kill(servers[2], signal.SIGTERM)
        for server in servers:
            assert eventually(lambda server=server: _is_over(server))  # type: ignore[misc]
        assert engine.nothing_is_left()


def _is_over(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except OSError:
        return True


def test_a_wrong_option_is_refused_at_once_and_nothing_else_is_printed(tmp_path: Path) -> None:
    command = [GAMEBOX, *OPTIONS, "--workspace", str(tmp_path / "none")]
    done = subprocess.run(command, input="", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "workspace" in done.stderr
