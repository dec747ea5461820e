"""Watching commands: output as it comes, stopping them from another thread, the same for asyncio."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time

import pytest

from sandbox import AsyncEnvironment, CancelToken
from sandbox.environment.sandboxed import SandboxedEnvironment
from sandbox.errors import ErrorCode, SandboxError
from sandbox.pipe.following import OutputChunk
from sandbox.pipe.watching import Watch, onlooker

from .checks import done, refused, seen_until, so_far

# Of this process: the local case sees the host's processes, and those of containers that another worker's tests run.
_numbers = itertools.count(random.SystemRandom().randrange(10**8, 10**9))


def running(env: SandboxedEnvironment, number: int) -> bool:
    """Whether a ``sleep`` of that many seconds runs; the brackets keep the counting itself from being counted."""
    pattern = f"sleep [{str(number)[0]}]{str(number)[1:]} "
    seen = f"cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c '{pattern}'"
    return done(env.run(seen, session=None)).output != "0\n"


@pytest.mark.needs("commands")
def test_output_is_told(env: SandboxedEnvironment) -> None:
    told: list[tuple[str, str]] = []
    ran = done(env.run("printf out; printf err >&2", on_output=lambda stream, text: told.append((stream, text))))
    assert sorted(told) == [("stderr", "err"), ("stdout", "out")]
    assert (ran.stdout, ran.stderr) == ("out", "err")


def test_a_token_that_was_used_starts_nothing(env: SandboxedEnvironment) -> None:
    token = CancelToken()
    token.cancel()
    assert refused(env.run("printf hello", cancel=token), "cancelled").result is None


def test_output_of_the_background_is_not_watched(env: SandboxedEnvironment) -> None:
    refused(env.run("printf hello", background=True, on_output=print), "invalid_arguments", "logs")


@pytest.mark.needs("commands")
def test_an_onlooker_sees_the_output_that_nobody_else_watches(env: SandboxedEnvironment) -> None:
    """UX 5: the live view sees what the commands of tools print, of which these know nothing."""
    seen: list[str] = []
    own: list[str] = []
    command = "printf out; printf err >&2"
    with onlooker(lambda _, text: seen.append(text)):
        done(env.run(command))
        done(env.run(command, cancel=CancelToken()))
        done(env.run(command, on_output=lambda _, text: own.append(text)))
        done(env.run(command, background=True))
        with onlooker(None):
            done(env.run(command))
    done(env.run(command))
    assert sorted(seen) == ["err", "err", "out", "out"]
    assert sorted(own) == ["err", "out"]


@pytest.mark.needs("shell")
def test_output_comes_while_the_command_runs(env: SandboxedEnvironment, folder: str) -> None:
    def answer(stream: str, text: str) -> None:
        done(env.write(f"{folder}/go", ""))

    done(env.run("echo ready; until [ -e go ]; do sleep 0.01; done", cwd=folder, on_output=answer, timeout_seconds=20))


@pytest.mark.needs("shell")
def test_nothing_is_lost_on_a_slow_caller_and_nobody_else_waits(env: SandboxedEnvironment) -> None:
    told, others = [], []

    def slowly(stream: str, text: str) -> None:
        told.append(text)
        if len(told) == 3:
            others.append(done(env.run("echo other", session="another")).output)
        time.sleep(0.001)

    ran = done(env.run("seq 1 2000000", on_output=slowly, timeout_seconds=60))
    assert "".join(told) == "".join(f"{i}\n" for i in range(1, 2_000_001))
    assert (others, ran.output_bytes, ran.exit_code) == (["other\n"], sum(map(len, told)), 0)


@pytest.mark.needs("shell")
def test_characters_stay_whole(env: SandboxedEnvironment) -> None:
    told: list[str] = []
    command = r"printf '\303'; sleep 0.1; printf '\251'; sleep 0.1; printf '\303'"
    done(env.run(command, on_output=lambda _, text: told.append(text)))
    assert told == ["é", "\ufffd"]


@pytest.mark.exhaustive
@pytest.mark.needs("shell", "python")
def test_pipes_made_larger_are_taken_whole_at_the_end(env: SandboxedEnvironment) -> None:
    program = "import fcntl,os\nfor fd in (1,2):\n fcntl.fcntl(fd,1031,1<<20)\n os.write(fd,b'x'*(1<<20))"
    told: list[str] = []

    def slowly(stream: str, text: str) -> None:
        told.append(text)
        time.sleep(0.05)

    script = f"for i in 1 2 3 4; do python3 -c \"{program}\"; done"
    ran = done(env.run(script, on_output=slowly))
    assert ran.exit_code in (0, 1)  # a user whose share of pipe memory is used up gets none
    assert sum(map(len, told)) == ran.output_bytes


@pytest.mark.needs("shell")
def test_cancel_leaves_nothing_and_answers_with_what_was_printed(env: SandboxedEnvironment) -> None:
    token, number = CancelToken(), next(_numbers)

    def begun(*_: str) -> None:
        threading.Timer(0.2, token.cancel).start()

    command = f"echo begun; sleep {number} & sleep 600"
    failure = refused(env.run(command, on_output=begun, cancel=token, timeout_seconds=60), "cancelled", effects="unknown")
    assert so_far(failure).output == "begun\n"
    assert not running(env, number)
    assert done(env.run("echo on", cancel=CancelToken())).output == "on\n"


@pytest.mark.needs("shell")
def test_cancel_in_the_queue(env: SandboxedEnvironment) -> None:
    token = CancelToken()
    first = done(env.run("sleep 600", session="queue", wait_seconds=0.1)).id
    threading.Timer(0.2, token.cancel).start()
    refused(env.run("echo no", session="queue", cancel=token), "cancelled")
    done(env.kill(first))
    assert done(env.run("echo yes", session="queue")).output == "yes\n"


@pytest.mark.needs("shell")
def test_what_the_callback_raises_stops_the_command(env: SandboxedEnvironment) -> None:
    number = next(_numbers)

    def fail(stream: str, text: str) -> None:
        raise LookupError(text)

    with pytest.raises(LookupError, match="begun"):
        env.run(f"echo begun; sleep {number}", on_output=fail)
    assert not seen_until(lambda: running(env, number), lambda still: not still)


# --- asyncio -----------------------------------------------------------------------------------------------------------


@pytest.mark.needs("commands")
def test_operations_are_coroutines(env: SandboxedEnvironment, folder: str) -> None:
    async def work() -> None:
        aio = AsyncEnvironment(env)
        done(await aio.write(f"{folder}/a", "text"))
        assert done(await aio.read(f"{folder}/a")).content == "text"
        assert len(done(await aio.list(folder)).entries) == 1
        ran, listed = await asyncio.gather(aio.run("printf hello"), aio.execute("list", {"path": folder}))
        assert (done(ran).output, listed.ok) == ("hello", True)
        stream = aio.stream("printf hello")
        assert [(c.stream, c.text) async for c in stream] == [("stdout", "hello")]
        assert stream.envelope is not None
        assert done(stream.envelope).exit_code == 0
        with pytest.raises(AttributeError, match="no 'nonsense'"):
            _ = aio.nonsense  # type: ignore[attr-defined]

    asyncio.run(work())


@pytest.mark.needs("commands")
def test_execute_is_the_same_as_a_coroutine(env: SandboxedEnvironment, folder: str) -> None:
    async def work() -> None:
        aio = AsyncEnvironment(env)
        for name in ("run", "logs", "wait_for", "list"):
            refused(await aio.execute(name, {"cmd": "a"}), "invalid_arguments", "cmd")
        heard: list[str] = []
        watch = Watch(on_output=lambda _, text: heard.append(text))
        assert done(await aio.execute("run", {"command": "printf hello"}, watch=watch)).output == "hello"
        assert "".join(heard) == "hello"
        token = CancelToken()
        token.cancel()
        refused(await aio.execute("run", {"command": "printf hello"}, watch=Watch(cancel=token)), "cancelled")
        assert (await aio.describe())["sandbox"] == env.describe()["sandbox"]

    asyncio.run(work())


@pytest.mark.needs("shell")
def test_calls_that_wait_hold_up_no_operation(env: SandboxedEnvironment, folder: str) -> None:
    async def work() -> None:
        aio = AsyncEnvironment(env)
        ident = done(await aio.run("sleep 600", background=True)).id
        token = CancelToken()

        async def follow() -> None:
            async for _ in aio.follow(ident, cancel=token):
                pass

        done(await aio.upload(b"x", f"{folder}/x", mode=0o700))
        assert done(await aio.run(f"stat -c %a {folder}/x")).output == "700\n"
        many = env.limits.concurrent_actions + 4
        arguments = {"id": ident, "exit": True, "timeout_seconds": 600}
        waits = [asyncio.create_task(aio.execute("wait_for", arguments)) for _ in range(many)]
        following = asyncio.create_task(follow())
        await asyncio.sleep(0.3)
        async with asyncio.timeout(60):
            done(await aio.list(folder))
            token.cancel()
            with pytest.raises(SandboxError) as caught:
                await following
            assert caught.value.code is ErrorCode.cancelled
            done(await aio.kill(ident))
            await asyncio.gather(*waits)

    asyncio.run(work())


@pytest.mark.needs("shell")
def test_a_cancelled_task_stops_its_command(env: SandboxedEnvironment) -> None:
    number = next(_numbers)

    async def work() -> None:
        task = asyncio.create_task(AsyncEnvironment(env).run(f"sleep {number}"))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not running(env, number)

    asyncio.run(work())


@pytest.mark.needs("shell")
def test_a_stream_that_is_left_stops_its_command(env: SandboxedEnvironment) -> None:
    number = next(_numbers)

    async def work() -> None:
        aio = AsyncEnvironment(env)
        async with aio.stream(f"sleep {number} & yes") as output:
            async for chunk in output:
                assert chunk.text.startswith("y\n")
                assert seen_until(lambda: running(env, number), bool)
                break
        assert not running(env, number)

        async def take_all() -> list[OutputChunk]:
            return [chunk async for chunk in aio.stream(f"sleep {number}")]

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(take_all(), 0.3)
        assert not running(env, number)

    asyncio.run(work())
