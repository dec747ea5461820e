"""What programs do with the SDK of E2B, whatever its version: commands, files, terminals, pauses, watching, in both flavours."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from e2b import AsyncSandbox, CommandExitException, FileType, PtySize, Sandbox, TimeoutException


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Any]:
    made = Sandbox.create(timeout=300, metadata={"suite": "smoke"}, envs={"COLOUR": "red"})
    yield made
    assert made.kill()
    assert not made.is_running()


def test_commands(sandbox: Any) -> None:
    done = sandbox.commands.run("echo $COLOUR; whoami; pwd; echo oh >&2")
    assert (done.stdout, done.stderr, done.exit_code) == ("red\nuser\n/home/user\n", "oh\n", 0)
    with pytest.raises(CommandExitException) as failed:
        sandbox.commands.run("exit 3")
    assert failed.value.exit_code == 3
    with pytest.raises(TimeoutException):
        sandbox.commands.run("sleep 60", timeout=1)
    assert sandbox.commands.run("whoami", user="root").stdout == "root\n"


def test_standard_input(sandbox: Any) -> None:
    running = sandbox.commands.run("cat", background=True, stdin=True)
    sandbox.commands.send_stdin(running.pid, "typed\n")
    assert running.pid in [each.pid for each in sandbox.commands.list()]
    other = sandbox.commands.connect(running.pid)
    assert other.pid == running.pid
    assert sandbox.commands.kill(running.pid)
    with pytest.raises(CommandExitException):
        running.wait()


def test_files(sandbox: Any) -> None:
    sandbox.files.write("folder/one.txt", "one")
    sandbox.files.write("folder/two.bin", b"\xff\x00" * 500_000)
    assert sandbox.files.read("folder/one.txt") == "one"
    assert bytes(sandbox.files.read("folder/two.bin", format="bytes")) == b"\xff\x00" * 500_000
    assert [each.name for each in sandbox.files.list("folder")] == ["one.txt", "two.bin"]
    info = sandbox.files.get_info("folder/one.txt")
    assert (info.type, info.size, info.owner) == (FileType.FILE, 3, "user")
    assert httpx.get(sandbox.download_url("folder/one.txt")).text == "one"
    sandbox.files.rename("folder/one.txt", "moved.txt")
    sandbox.files.remove("moved.txt")
    assert not sandbox.files.exists("moved.txt")
    sandbox.files.write("/solution/steps/one.sh", "echo one")  # E2B's server is root, and gives the folders to the user
    sandbox.files.make_dir("/data/here")
    sandbox.commands.run("echo roots > /data/here/file", user="root")
    sandbox.files.write("/data/here/file", "the user's")
    assert sandbox.commands.run("sh /solution/steps/one.sh; stat -c %U /solution /data/here").stdout == "one\nuser\nuser\n"


def test_watching(sandbox: Any) -> None:
    sandbox.files.make_dir("watched")
    handle = sandbox.files.watch_dir("watched")
    sandbox.files.write("watched/new.txt", "new")
    found = []
    for _ in range(50):
        found += handle.get_new_events()
        if found:
            break
        time.sleep(0.1)
    assert "new.txt" in [each.name for each in found]
    handle.stop()


def test_terminals(sandbox: Any) -> None:
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80))
    sandbox.pty.send_stdin(terminal.pid, b"echo $((6*7)); exit\n")
    printed: list[bytes] = []
    terminal.wait(on_pty=printed.append)
    assert b"42\r\n" in b"".join(printed)


def test_lists_and_pauses(sandbox: Any) -> None:
    info = sandbox.get_info()
    assert (info.metadata["suite"], info.template_id) == ("smoke", "base")
    pause = getattr(sandbox, "pause", None) or sandbox.beta_pause
    pause()
    assert not sandbox.is_running()
    again = Sandbox.connect(sandbox.sandbox_id, timeout=300)
    assert again.commands.run("echo awake").stdout == "awake\n"


def test_the_asynchronous_client() -> None:
    async def work() -> None:
        made = await AsyncSandbox.create(timeout=120)
        try:
            done = await asyncio.gather(*(made.commands.run(f"echo {number}") for number in range(8)))
            assert [each.stdout for each in done] == [f"{number}\n" for number in range(8)]
            await made.files.make_dir("watched")
            events: list[Any] = []
            handle = await made.files.watch_dir("watched", on_event=events.append)
            await made.files.write("watched/a.txt", "a")
            assert await made.files.read("watched/a.txt") == "a"
            for _ in range(100):
                if events:
                    break
                await asyncio.sleep(0.1)
            assert events
            await handle.stop()
        finally:
            await made.kill()

    asyncio.run(work())
