"""wait_for: a port, a line, a file, the end of a command; in time, at once, and never held up by what is looked for."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sandbox import AsyncEnvironment, CancelToken, FakeEnvironment
from sandbox.environment.sandboxed import SandboxedEnvironment
from sandbox.testing import Ran

from .checks import begun, done, refused, so_far

# The local case has the host's ports, which other workers' tests take too: outside of those that the kernel gives by itself.
_ports = itertools.count(random.SystemRandom().randrange(10_000, 32_000))
# A server that says when it listens; ours to choose the address.
SERVER = "import socket,time; s = socket.create_server(('{host}', {port})); print('up', flush=True); time.sleep(600)"


def background(env: SandboxedEnvironment, command: str, **options: str) -> str:
    return done(env.run(command, background=True, session=None, **options)).id  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ({}, "exactly one of port, log, file, exit, not none"),
        ({"port": 80, "file": "a"}, "not port and file"),
        ({"log": "x"}, "log needs the id"),
        ({"exit": True}, "exit needs the id"),
        ({"file": "a", "host": "127.0.0.1"}, "host is for port"),
        ({"port": 80, "contains": "a"}, "contains is for file"),
        ({"port": 80, "literal": True}, "literal is for log"),
        ({"port": 80, "host": "example.com"}, "'example.com' is not an IP address"),
        ({"id": "c1", "log": "a\nb"}, "no line end"),
        ({"port": 0}, "port"),
        ({"port": 80, "timeout_seconds": 0}, "timeout_seconds"),
    ],
)
def test_what_cannot_be_waited_for(env: SandboxedEnvironment, args: dict[str, Any], problem: str) -> None:
    refused(env.wait_for(**args), "invalid_arguments", problem)


def test_of_a_command_that_is_not_there(env: SandboxedEnvironment) -> None:
    refused(env.wait_for(id="c0", exit=True), "unknown_command", "'c0'")


def test_a_file_that_is_there(env: SandboxedEnvironment, folder: str) -> None:
    done(env.write(f"{folder}/a", "hello world"))
    assert done(env.wait_for(file=f"{folder}/a")).path == f"{folder}/a"
    assert done(env.wait_for(file=f"{folder}/a", contains="o w")).condition == "file"
    assert done(env.wait_for(file=folder)).path == folder
    failure = refused(
        env.wait_for(file=f"{folder}/a", contains="moon", timeout_seconds=0.1), "not_ready", "a still does not contain 'moon'"
    )
    assert failure.retryable
    refused(env.wait_for(file="/etc/passwd"), "path_outside_roots")


@pytest.mark.needs("commands")
def test_a_line_that_was_printed(env: SandboxedEnvironment) -> None:
    ident = done(env.run("printf 'hello\\n'", session=None)).id
    seen = done(env.wait_for(id=ident, log="ell"))
    assert (seen.line, seen.groups, seen.offset, seen.next_offset) == ("hello", (), 0, 6)
    assert done(env.wait_for(id=ident, log=r"^h(.)l+(x)?")).groups == ("e", None)
    ended = done(env.wait_for(id=ident, exit=True))
    assert (ended.exit_code, ended.running, ended.last_output) == (0, False, "hello\n")
    failure = refused(
        env.wait_for(id=ident, log="l.o$", literal=True), "command_ended", "exit code 0, and no line of its output contains"
    )
    assert so_far(failure).last_output == "hello\n"


# --- what only real commands do -----------------------------------------------------------------------------------------


@pytest.mark.needs("shell", "python")
def test_a_port(env: SandboxedEnvironment) -> None:
    port = next(_ports)
    refused(env.wait_for(port=port, timeout_seconds=0.1), "not_ready", f"port {port} is still not open")
    server = background(env, f'sleep 0.2; exec python3 -c "{SERVER.format(host="127.0.0.1", port=port)}"')
    seen = done(env.wait_for(port=port, id=server))
    assert (seen.condition, seen.address, seen.running) == ("port", "127.0.0.1", True)
    assert done(env.wait_for(port=port, host="127.0.0.1")).address == "127.0.0.1"
    assert done(env.wait_for(port=port, host="localhost")).address == "127.0.0.1"
    done(env.wait_for(id=server, log="up"))  # it listens before it says so
    failure = refused(
        env.wait_for(port=port, host="10.9.8.7", id=server, timeout_seconds=0.1), "not_ready", "at 10.9.8.7"
    )
    assert so_far(failure).last_output == "up\n"
    done(env.kill(server))


@pytest.mark.needs("shell")
def test_the_end_of_the_command_ends_the_wait(env: SandboxedEnvironment, folder: str) -> None:
    began = time.monotonic()
    for condition in ({"port": next(_ports)}, {"file": f"{folder}/none"}, {"log": "never"}, {"log": "^never$"}):
        ident = background(env, "echo no such table >&2; exit 3")
        failure = refused(
            env.wait_for(id=ident, timeout_seconds=60, **condition), "command_ended", "ended with exit code 3, and "
        )
        assert (so_far(failure).last_output, so_far(failure).exit_code) == ("no such table\n", 3)
    assert time.monotonic() - began < 60  # of four waits of as long


@pytest.mark.needs("shell")
def test_what_came_with_the_end_counts(env: SandboxedEnvironment, folder: str) -> None:
    assert done(env.wait_for(id=background(env, "sleep 0.1; touch made", cwd=folder), file=f"{folder}/made")).path
    last = background(env, "seq 30000; sleep 0.1; printf 'all done'")
    assert done(env.wait_for(id=last, log="done")).line == "all done"
    assert done(env.wait_for(id=last, log=r"d.ne$")).line == "all done"
    assert done(env.wait_for(id=last, log="29990")).line == "29990"


@pytest.mark.needs("shell")
def test_what_a_command_left_behind_may_still_do_it(env: SandboxedEnvironment, folder: str) -> None:
    ident = background(env, "(until [ -e go ]; do sleep 0.01; done; echo late; sleep 600) & exit 0", cwd=folder)
    assert done(env.wait_for(id=ident, exit=True)).exit_code == 0
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(env.wait_for, id=ident, log="late")
        time.sleep(0.2)
        done(env.write(f"{folder}/go", ""))
        seen = done(waiting.result(timeout=60))
    assert (seen.running, seen.exit_code, seen.left_running > 0) == (False, 0, True)
    done(env.kill(ident))
    refused(env.wait_for(id=ident, log="never"), "command_ended")


@pytest.mark.needs("shell")
@pytest.mark.parametrize("log", ["line 81", "line 8[0-9]"])
def test_a_line_is_looked_at_whole_and_from_an_offset_on(env: SandboxedEnvironment, log: str) -> None:
    ident = background(env, "printf 'line 80\\nline 8'; sleep 0.3; printf '1\\r\\n'; sleep 600")
    seen = done(env.wait_for(id=ident, log=log, offset=8))
    assert (seen.line, seen.offset, seen.next_offset) == ("line 81", 8, 17)
    refused(env.wait_for(id=ident, log=log, offset=seen.next_offset, timeout_seconds=0.3), "not_ready", "line 8")
    done(env.kill(ident))


@pytest.mark.needs("shell")
@pytest.mark.parametrize("log", ["login: ", "^login: $"])
def test_a_prompt_and_colours(env: SandboxedEnvironment, log: str) -> None:
    ident = background(env, "printf '\\033[1mlog\\033[0min: '; sleep 600")
    seen = done(env.wait_for(id=ident, log=log))
    assert (seen.line, seen.offset) == ("login: ", 0)
    done(env.kill(ident))


@pytest.mark.needs("shell")
def test_an_end_is_told_as_it_was(env: SandboxedEnvironment) -> None:
    ident = background(env, "sleep 0.2; echo bye; kill -TERM $$")
    ended = done(env.wait_for(id=ident, exit=True))
    assert (ended.exit_code, ended.signal, ended.last_output) == (None, "SIGTERM", "bye\n")
    other = background(env, "sleep 600")
    waiting = ThreadPoolExecutor(1).submit(env.wait_for, id=other, exit=True)
    time.sleep(0.1)
    done(env.kill(other))
    assert done(waiting.result(timeout=60)).stop_reason == "killed"
    seconds, timed = begun(lambda most: env.run("sleep 600", wait_seconds=0.1, timeout_seconds=most, session=None))
    words = f"did not end within {seconds:g} seconds", "no line of its output matches 'x'"
    refused(env.wait_for(id=timed.id, log="x"), "command_ended", *words)


@pytest.mark.exhaustive
@pytest.mark.needs("shell")
def test_an_expression_that_never_ends_holds_up_nobody(env: SandboxedEnvironment) -> None:
    ident = background(env, f"echo {'a' * 60}; sleep 600")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(env.wait_for, id=ident, log="(a+a+)+b", timeout_seconds=60)
        time.sleep(0.5)
        for _ in range(5):
            assert done(env.run("echo on", session=None)).output == "on\n"
        assert not waiting.done()
        refused(waiting.result(timeout=60), "invalid_pattern", "too slow")
    refused(env.wait_for(id=ident, log="("), "invalid_pattern", "'('")
    late = refused(env.wait_for(id=ident, log="(a+a+)+b", timeout_seconds=0.5), "not_ready")
    assert late.duration_ms < 60_000
    done(env.kill(ident))


@pytest.mark.exhaustive
@pytest.mark.needs("shell")
@pytest.mark.parametrize("log", ["never", "n.ver"])
def test_a_firehose_does_not_outlast_the_wait(env: SandboxedEnvironment, log: str) -> None:
    ident = background(env, "yes")
    failure = refused(env.wait_for(id=ident, log=log, timeout_seconds=0.5), "not_ready")
    assert failure.duration_ms < 60_000
    assert set(so_far(failure).last_output) <= {"y", "\n"}
    done(env.kill(ident))


@pytest.mark.needs("shell")
def test_many_wait_at_once_and_a_token_ends_a_wait(env: SandboxedEnvironment, folder: str) -> None:
    ident = background(env, "until [ -e go ]; do sleep 0.01; done; echo gone; sleep 600", cwd=folder)
    token = CancelToken()
    conditions: tuple[dict[str, Any], ...] = (
        {"log": "gone"},
        {"log": "g.ne"},
        {"file": f"{folder}/go"},
        {"file": f"{folder}/go", "contains": "x"},
    )
    with ThreadPoolExecutor(24) as pool:
        waits = [pool.submit(env.wait_for, id=ident, **condition) for condition in conditions for _ in range(5)]
        given_up = [pool.submit(env.wait_for, id=ident, cancel=token, **condition) for condition in conditions]
        time.sleep(0.3)
        token.cancel()
        for wait in given_up:
            refused(wait.result(timeout=60), "cancelled")
        done(env.write(f"{folder}/go", "x"))
        for wait in waits:
            done(wait.result(timeout=60))
    done(env.kill(ident))


@pytest.mark.needs("shell")
def test_asyncio_waits(env: SandboxedEnvironment, folder: str) -> None:
    async def work() -> None:
        aio = AsyncEnvironment(env)
        ident = done(await aio.run("sleep 600", background=True, session=None)).id
        task = asyncio.create_task(aio.wait_for(id=ident, exit=True, timeout_seconds=600))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        waiting = asyncio.create_task(aio.wait_for(file=f"{folder}/there"))
        await aio.write(f"{folder}/there", "")
        done(await waiting)
        await aio.kill(ident)

    asyncio.run(work())


@pytest.mark.needs("shell")
def test_a_text_in_a_file_that_is_written_bit_by_bit(env: SandboxedEnvironment, folder: str) -> None:
    filler = "head -c 3000000 /dev/zero | tr '\\0' x"
    ident = background(
        env, f"{filler} > f; for c in r e a d y; do printf $c >> f; sleep 0.05; done; sleep 600", cwd=folder
    )
    done(env.wait_for(id=ident, file=f"{folder}/f", contains="xready"))
    done(env.kill(ident))
    refused(env.wait_for(file=folder, contains="x"), "is_a_directory")


def test_a_fake_says_what_is_so() -> None:
    env = FakeEnvironment({"a": "text"}, {"ls": "1\n2\n", "serve": Ran(stdout="up\n", seconds=9)})
    server = done(env.run("serve", background=True)).id
    assert done(env.wait_for(id=server, log="u.")).line == "up"
    failure = refused(env.wait_for(id=server, port=80), "not_ready", "After 30 seconds", "port 80 is still not open")
    assert so_far(failure).last_output == "up\n"
    refused(env.wait_for(id=server, exit=True, timeout_seconds=2), "not_ready", f"{server} is still running")
    done(env.kill(server))
    assert done(env.wait_for(id=server, exit=True)).signal == "SIGKILL"
